"""``l2h ask``: a bundle's answers to inputs from a file, with the server's help where it pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from l2h.cli.options import ServerPrices, Texts, by_name, read_bounds, read_prices, takes_groups
from l2h.cli.output import make_console, make_table, print_json, print_line, print_pairs

if TYPE_CHECKING:
    from l2h.bundle import Manifest
    from l2h.decision import AnyCosts
    from l2h.edge import EdgeClient
    from l2h.edge.stats import EdgeStats

#: Rows of the table.
_SHOWN = 20


@dataclass(frozen=True)
class AskOptions:
    """The bundle, the inputs, and how the server is asked."""

    bundle: Annotated[Path, Argument(help="The bundle's folder, as l2h export writes it; or a run, as l2h train does.")]
    inputs: Annotated[
        list[str] | None,
        Argument(
            metavar="INPUT",
            help="One input or many: images, or one .npy, .npz, table (.csv, Parquet), or what l2h train takes as "
            "--data (its test part). Without it the server is only checked. "
            "For the run of a router: a prompt, a table of prompts, or a .npy of embeddings.",
        ),
    ] = None
    server: Annotated[
        Texts,
        Option(
            "--server",
            "-s",
            help="http://HOST:PORT, https://HOST, or module:function; of a bundle with several servers NAME=ADDRESS, "
            "repeated. One that is not named is not asked.",
        ),
    ] = None
    deadline: Annotated[float, Option(help="Seconds for an answer.")] = 0.2
    c_e: Annotated[float | None, Option("--c-e", help="Price of a request. (default: the bundle's)")] = None
    c_1: Annotated[float | None, Option("--c-1", help="Price of a wrong remote answer. (default: the bundle's)")] = None
    price: ServerPrices = None
    limit: Annotated[
        Texts,
        Option(
            help="A bound on asking: 20%, 20%@95%, 20%/1000, 20%+-50, 100/1h; of one of several servers NAME=100/1h, "
            "repeated, and all=20% for all of them. Without prices asking is free."
        ),
    ] = None
    key_file: Annotated[
        Texts,
        Option(
            help="File that holds the key, or NAME=FILE for one of several servers. (default: the variable L2H_KEY)"
        ),
    ] = None
    local_only: Annotated[bool, Option("--local-only", help="Ask nobody.")] = False
    index: Annotated[
        list[int] | None, Option("--index", "-i", help="Only this input, counted from 0; repeat for several.")
    ] = None
    batch: Annotated[int, Option(help="Inputs per call.", min=1)] = 1
    model: Annotated[
        Texts, Option(help="The model's name at the server, or NAME=MODEL. (default: as l2h serve calls it)")
    ] = None
    binary: Annotated[
        bool, Option("--binary/--no-binary", help="Tensors as bytes, or as JSON for servers that know no other.")
    ] = True
    ca_file: Annotated[Path | None, Option(help="Certificates to trust, for https.")] = None
    verify_key: Annotated[
        Path | None, Option(help="The public key that must have signed the bundle (l2h sign key).")
    ] = None
    as_json: Annotated[bool, Option("--json", help="Print JSON: every answer, and the summary.")] = False


@takes_groups
def ask(options: AskOptions) -> None:
    """Answer inputs as a device does: locally, or by the server where that pays and comes in time.

    Example: [bold]l2h ask bundle digits --index 3 --server http://127.0.0.1:8080[/]

    Example: [bold]l2h ask bundle photo.jpg other.png[/], of any size where the bundle was trained with --size

    Example: [bold]l2h ask bundle photos.npy --c-e 0.02 --limit 20% --json[/]

    Example: [bold]l2h ask bundle photos.npy --server box=http://10.0.0.2:8080 --server cloud=https://example.org
    --price cloud=0.3 --limit cloud=100/1h[/], of a bundle with two servers

    Example: [bold]l2h ask bundle rows.csv[/], or [bold]l2h ask runs/mine rows.csv[/] with the run's own server

    Example: [bold]l2h ask bundle --server http://127.0.0.1:8080[/] only sees whether the server fits the bundle.

    Example: [bold]l2h ask runs/router "How many primes are below 100?" --c-e 0.05[/] says weak or strong, and why.
    """
    from l2h.bundle import DeviceBundle
    from l2h.data.load import read_inputs
    from l2h.edge import EdgeClient
    from l2h.routing.saving import holds_router

    limit = by_name(options.limit, "--limit")
    if holds_router(options.bundle):
        from l2h.cli import routing

        if isinstance(limit, dict):
            raise typer.BadParameter("a router has one server, without a name", param_hint="--limit")
        prices = (options.c_e, options.c_1)
        return routing.ask(options.bundle, options.inputs or (), prices, limit, options.as_json)
    if (options.bundle / "config.json").is_file() and not (options.bundle / "manifest.json").is_file():
        return _ask_run(options)
    inputs, server = options.inputs, by_name(options.server, "--server")
    if not inputs and (server is None or options.local_only):
        raise typer.BadParameter("give INPUT, or --server to check it", param_hint="INPUT")
    bundle = DeviceBundle(options.bundle, verify_key=options.verify_key)
    asked = None if server is None else _each(server, _address)
    with EdgeClient(
        bundle,
        None if options.local_only else asked,
        deadline=options.deadline,
        costs=_costs(bundle.manifest, options),
        limit=limit,
        key=None if callable(asked) else _key(by_name(options.key_file, "--key-file")),
        model=by_name(options.model, "--model"),
        binary=options.binary,
        verify_tls=True if options.ca_file is None else options.ca_file,
    ) as edge:
        if not inputs:
            edge.check(timeout=max(options.deadline, 5.0))
            _print_checked(edge, server, options.as_json)
            return
        X = read_inputs(inputs, bundle.input_shape, bundle.manifest.input.size)
        rows = _answers(edge, X, options.index, options.batch)
        stats = edge.stats()
    if options.as_json:
        print_json({"answers": rows, "summary": _summary(rows, stats)})
    else:
        _print(rows, stats)


def _ask_run(options: AskOptions) -> None:
    """Answer with a finished run, whose own server is asked in this process."""
    from l2h.experiments.finished import open_run

    if not options.inputs or options.server is not None:
        raise typer.BadParameter(
            f"{options.bundle} is a run, which answers INPUT with its own server: l2h export makes a bundle of it",
            param_hint="BUNDLE",
        )
    run = open_run(options.bundle)
    prices, limits = read_prices(options.price), read_bounds(options.limit)
    given = prices or options.c_e is not None or options.c_1 is not None
    costs = run.costs(options.c_e, options.c_1, prices) if given else None
    rows = run.ask(options.inputs, options.index, costs, limits[0] if limits else None)
    if options.as_json:
        print_json({"answers": rows})
    else:
        _print(rows, None)


def _address(text: str) -> Any:
    from l2h.functions import is_function, load_function

    return load_function(text) if is_function(text) else text


def _key(files: str | dict[str, str] | None) -> Any:
    from l2h.edge.options import read_key

    return read_key() if files is None else _each(files, read_key)


def _each(value: str | dict[str, str], read: Callable[[str], Any]) -> Any:
    return read(value) if isinstance(value, str) else {name: read(text) for name, text in value.items()}


def _costs(manifest: Manifest, options: AskOptions) -> AnyCosts | None:
    """Return the prices of the options, None where there are none; those that are not given are the bundle's."""
    from l2h.costs import Costs

    c_e, c_1, named = options.c_e, options.c_1, read_prices(options.price)
    if c_e is None and c_1 is None and not named:
        return None
    if named and (c_e is not None or c_1 is not None):
        raise typer.BadParameter(
            "it is for each server, --c-e and --c-1 for all: give one or the other", param_hint="--price"
        )
    prices = {
        name: Costs(c_e=made.c_e if c_e is None else c_e, c_1=made.c_1 if c_1 is None else c_1)
        for name, made in manifest.prices.items()
    }
    return {**prices, **named} if manifest.named or named else prices["server"]


def _answers(edge: EdgeClient, X: Any, index: list[int] | None, batch: int) -> list[dict[str, Any]]:
    X = edge.bundle.check(X)
    wrong = [i for i in index or [] if not 0 <= i < len(X)]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]} is not in 0..{len(X) - 1}", param_hint="--index")
    chosen = index or list(range(len(X)))
    rows = []
    for start in range(0, len(chosen), batch):
        part = chosen[start : start + batch]
        answers = edge.predict(X[part])
        saving = edge.judge(X[part]).saving(edge.costs)
        for i, answer, saved in zip(part, answers, saving.tolist(), strict=True):
            rows.append(
                {
                    "index": i,
                    "label": answer.label,
                    "class": edge.bundle.labels.name(answer.label),
                    "source": answer.source,
                    "by": answer.by,
                    "reason": answer.reason,
                    "expected_saving": saved,
                    "cost": answer.cost,
                    "latency": answer.latency,
                }
            )
    return rows


def _summary(rows: list[dict[str, Any]], stats: EdgeStats) -> dict[str, Any]:
    kept = ("latency", "round_trip", "requests", "retries", "charged", "breaker", "version", "error")
    return {
        "answers": len(rows),
        "remote": sum(row["source"] == "remote" for row in rows),
        "answerers": stats.answerers,
        "reasons": stats.reasons,
        "cost": sum(row["cost"] for row in rows),
        **{name: getattr(stats, name) for name in kept},
    }


def _print(rows: list[dict[str, Any]], stats: EdgeStats | None) -> None:
    latency = [] if stats is None else ["latency"]
    table = make_table(
        ("input", "label", "class", "by", "reason", "expected saving", *latency),
        right=("input", "label", "expected saving", *latency),
        padding=(0, 1),
    )
    for row in rows[:_SHOWN]:
        table.add_row(
            str(row["index"]),
            str(row["label"]),
            row["class"],
            row["by"],
            row["reason"],
            f"{row['expected_saving']:+.4f}",
            *(_milliseconds(row[name]) for name in latency),
        )
    make_console().print(table)
    if len(rows) > _SHOWN:
        print_line(f"{_SHOWN} of {len(rows)}; --json has all of them\n")
    by = Counter(row["by"] for row in rows)
    pairs = {
        "answers": f"{len(rows)}: " + ", ".join(f"{count} by {name}" for name, count in by.items()),
        "reasons": ", ".join(f"{reason} {count}" for reason, count in Counter(row["reason"] for row in rows).items()),
        "paid for asking": f"{sum(row['cost'] for row in rows):g}",
    }
    if stats is not None:
        slowest = _milliseconds(stats.latency["p99"])
        pairs["latency"] = f"{_milliseconds(stats.latency['p50'])} median, {slowest} 99%"
    if stats is not None and stats.error is not None:
        pairs["the server"] = stats.error
    print_pairs("", pairs)


def _print_checked(edge: EdgeClient, server: str | dict[str, str] | None, as_json: bool) -> None:
    manifest, versions, compared = edge.bundle.manifest, edge.server_versions, edge.classes_compared
    assert server is not None
    known = {"version": manifest.version, "fits": True}
    if as_json:
        checked = {"server": server, "model": manifest.name, **known}
        print_json(checked | {"classes_compared": compared, "server_versions": versions})
        return
    names = list(manifest.servers) if isinstance(server, str) else list(server)
    for name in names:
        address = server if isinstance(server, str) else server[name]
        theirs = versions[name] if isinstance(versions, dict) else versions
        same = manifest.version in theirs
        bundle = f"{manifest.model_of(name)} {manifest.version}" if same else manifest.model_of(name)
        whose = f"is that of the bundle ({bundle})" if same else f"fits the bundle ({bundle})"
        typer.echo(f"{address} is ready, and its model {whose}.")
        if not same and theirs:
            typer.echo(f"It is another version: {', '.join(theirs)} there, {manifest.version} in the bundle.")
        if not (compared[name] if isinstance(compared, dict) else compared):
            typer.echo(f"It gives no names of its {len(edge.bundle.classes)} classes to compare.")


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
