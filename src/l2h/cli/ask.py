"""``l2h ask``: a bundle's answers to inputs from a file, with the server's help where it pays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from l2h.bundle import DeviceBundle
    from l2h.costs import Costs
    from l2h.edge import EdgeClient
    from l2h.edge.stats import EdgeStats

#: Rows of the table.
_SHOWN = 20


def ask(
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder, as l2h export writes it.")],
    inputs: Annotated[
        str | None,
        typer.Argument(
            metavar="INPUT",
            help="One input or many: a .npy, an .npz, an image, or what l2h train takes as --data (its test part). "
            "Without it the server is only checked.",
        ),
    ] = None,
    server: Annotated[str | None, typer.Option("--server", "-s", help="http://HOST:PORT or https://HOST.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds for an answer.")] = 0.2,
    c_e: Annotated[float | None, typer.Option("--c-e", help="Price of a request. (default: the bundle's)")] = None,
    c_1: Annotated[
        float | None, typer.Option("--c-1", help="Price of a wrong remote answer. (default: the bundle's)")
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option(help="A bound on asking: 20%, 20%@95%, 20%/1000, 100/1h. Without --c-e asking is free."),
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="File that holds the key for the server. (default: the variable L2H_KEY)")
    ] = None,
    local_only: Annotated[bool, typer.Option("--local-only", help="Ask nobody.")] = False,
    index: Annotated[
        list[int] | None, typer.Option("--index", "-i", help="Only this input, counted from 0; repeat for several.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Inputs a call.", min=1)] = 1,
    model: Annotated[str | None, typer.Option(help="The model's name at the server. (default: the bundle's)")] = None,
    binary: Annotated[
        bool, typer.Option("--binary/--no-binary", help="Tensors as bytes, or as JSON for servers that know no other.")
    ] = True,
    ca_file: Annotated[Path | None, typer.Option(help="Certificates to trust, for https.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every answer, and the summary.")] = False,
) -> None:
    """Answer inputs as a device does: locally, or by the server where that pays and comes in time.

    Example: [bold]l2h ask bundle digits --index 3 --server http://127.0.0.1:8080[/]

    Example: [bold]l2h ask bundle photos.npy --c-e 0.02 --limit 20% --json[/]

    Example: [bold]l2h ask bundle --server http://127.0.0.1:8080[/] only sees whether the server fits the bundle.
    """
    from l2h.bundle import DeviceBundle
    from l2h.edge import EdgeClient
    from l2h.edge.keys import read_key
    from l2h.limits import RateLimit

    if inputs is None and (server is None or local_only):
        raise typer.BadParameter("give INPUT, or --server to check it", param_hint="INPUT")
    loaded = DeviceBundle(bundle)
    with EdgeClient(
        loaded,
        None if local_only else server,
        deadline=deadline,
        costs=_costs(loaded.costs, c_e, c_1),
        limit=None if limit is None else RateLimit.parse(limit),
        key=read_key(key_file),
        model=model,
        binary=binary,
        verify_tls=True if ca_file is None else ca_file,
    ) as edge:
        if inputs is None:
            edge.check(timeout=max(deadline, 5.0))
            _print_checked(edge, str(server), as_json)
            return
        rows = _answers(edge, read_inputs(inputs, loaded), index, batch)
        stats = edge.stats()
    if as_json:
        from l2h.cli.output import print_json

        print_json({"answers": rows, "summary": _summary(rows, stats)})
    else:
        _print(rows, stats)


def read_inputs(source: str, bundle: DeviceBundle) -> Any:
    """Inputs for a bundle from a file, or from the test part of a data set; not compared with the bundle's yet.

    Raises:
        DataError: it is none of these, or damaged.
    """
    import numpy as np

    from l2h.data.images import SUFFIXES, decode_images
    from l2h.errors import DataError

    path = Path(source).expanduser()
    if path.suffix.lower() in SUFFIXES and path.is_file():
        pixels = decode_images([path], lambda _: str(path), workers=1)
        # As in training: a grey image among colour ones has three equal channels.
        in_colour = len(bundle.input_shape) == 3 and bundle.input_shape[0] == 3
        return np.repeat(pixels, 3, axis=1) if in_colour and pixels.shape[1] == 1 else pixels
    if path.suffix not in (".npy", ".npz") or not path.is_file():
        from l2h.data import load_dataset

        return load_dataset(source).X_test
    try:
        found = np.load(path, allow_pickle=False)
        if path.suffix == ".npy":
            return found
        with found:
            names = [name for name in ("X_test", "X", "X_train") if name in found.files] or found.files
            if not names or (names == found.files and len(names) > 1):
                raise DataError(f"{source} holds {', '.join(found.files) or 'nothing'}: name the inputs X or X_test")
            return found[names[0]]
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{source!r} is no whole file of plain arrays: {error}") from error


def _costs(made_for: Costs, c_e: float | None, c_1: float | None) -> Costs | None:
    from l2h.costs import Costs

    if c_e is None and c_1 is None:
        return None
    return Costs(c_e=made_for.c_e if c_e is None else c_e, c_1=made_for.c_1 if c_1 is None else c_1)


def _answers(edge: EdgeClient, X: Any, index: list[int] | None, batch: int) -> list[dict[str, Any]]:
    """A row for each answer."""
    import numpy as np

    X = edge.bundle.check(X)
    chosen = np.arange(len(X))
    if index:
        wrong = [i for i in index if not 0 <= i < len(X)]
        if wrong:
            raise typer.BadParameter(f"{wrong[0]} is not in 0..{len(X) - 1}", param_hint="--index")
        chosen = np.array(index)
    rows = []
    for start in range(0, len(chosen), batch):
        part = chosen[start : start + batch]
        answers = edge.predict(X[part])
        saving = edge.judge(X[part]).saving(edge.costs)
        for i, answer, saved in zip(part.tolist(), answers, saving.tolist(), strict=True):
            rows.append(
                {
                    "index": i,
                    "label": answer.label,
                    "class": edge.bundle.classes[answer.label],
                    "source": answer.source,
                    "reason": answer.reason,
                    "expected_saving": saved,
                    "cost": answer.cost,
                    "latency": answer.latency,
                }
            )
    return rows


def _summary(rows: list[dict[str, Any]], stats: EdgeStats) -> dict[str, Any]:
    return {
        "answers": len(rows),
        "remote": sum(row["source"] == "remote" for row in rows),
        "reasons": stats.reasons,
        "cost": sum(row["cost"] for row in rows),
        "latency": stats.latency,
        "round_trip": stats.round_trip,
        "requests": stats.requests,
        "retries": stats.retries,
        "charged": stats.charged,
        "breaker": stats.breaker,
        "version": stats.version,
        "error": stats.error,
    }


def _print(rows: list[dict[str, Any]], stats: EdgeStats) -> None:
    from rich import box
    from rich.table import Table

    from l2h.cli.output import make_console, print_pairs

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name, side in (("input", "right"), ("label", "right"), ("class", "left"), ("source", "left"),
                       ("reason", "left"), ("expected saving", "right"), ("latency", "right")):  # fmt: skip
        table.add_column(name, justify="right" if side == "right" else "left")
    for row in rows[:_SHOWN]:
        table.add_row(
            str(row["index"]),
            str(row["label"]),
            row["class"],
            row["source"],
            row["reason"],
            f"{row['expected_saving']:+.4f}",
            _milliseconds(row["latency"]),
        )
    console = make_console()
    console.print(table)
    if len(rows) > _SHOWN:
        console.print(f"{_SHOWN} of {len(rows)}; --json has all of them\n")
    remote = sum(row["source"] == "remote" for row in rows)
    pairs = {
        "answers": f"{len(rows)}, {remote} of them by the server",
        "reasons": ", ".join(f"{reason} {count}" for reason, count in stats.reasons.items()),
        "paid for asking": f"{sum(row['cost'] for row in rows):g}",
        "latency": f"{_milliseconds(stats.latency['p50'])} median, {_milliseconds(stats.latency['p99'])} 99%",
    }
    if stats.error is not None:
        pairs["the server"] = stats.error
    print_pairs("", pairs)


def _print_checked(edge: EdgeClient, server: str, as_json: bool) -> None:
    manifest = edge.bundle.manifest
    compared, versions = edge.classes_compared, edge.server_versions
    if as_json:
        from l2h.cli.output import print_json

        said = {"server": server, "model": manifest.name, "version": manifest.version, "fits": True}
        print_json(said | {"classes_compared": compared, "server_versions": versions})
        return
    same = manifest.version in versions
    whose = (
        f"is that of the bundle ({manifest.name} {manifest.version})" if same else f"fits the bundle ({manifest.name})"
    )
    typer.echo(f"{server} is ready, and its model {whose}.")
    if not same and versions:
        typer.echo(f"It is another version: {', '.join(versions)} there, {manifest.version} in the bundle.")
    if not compared:
        typer.echo(f"It gives no names of its {len(edge.bundle.classes)} classes to compare.")


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
