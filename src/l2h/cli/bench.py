"""``l2h bench``: how fast the two sides are here, beside what bounds them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from rich import box
from typer import Argument, Option

from l2h.cli.options import AsJson, BundleFolder, KeyFile, by_name
from l2h.cli.output import make_console, make_table, print_json
from l2h.errors import SettingsError

CaFile = Annotated[Path | None, Option(help="Certificates to trust, where the server's is not public.")]


def edge(
    bundle: BundleFolder,
    data: Annotated[
        str | None, Option("--data", "-d", help="Inputs, as l2h ask takes them. (default: random ones)")
    ] = None,
    repeats: Annotated[int, Option(help="Answers to time.", min=1)] = 2000,
    server: Annotated[
        str | None,
        Option("--server", "-s", help="Time this server's answers as well; one of several servers: NAME=ADDRESS."),
    ] = None,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Time a local answer beside the model calls it makes, and the server's answer where one is given.

    Example: [bold]l2h bench edge bundle --data digits --server http://127.0.0.1:8080[/]
    """
    from l2h.bundle import DeviceBundle
    from l2h.bundle.sessions import random_inputs
    from l2h.data.load import read_inputs
    from l2h.edge.options import read_key
    from l2h.edge.timing import measure

    loaded = DeviceBundle(bundle)
    shape = loaded.input_shape
    if data is not None:
        X = read_inputs(data, shape, loaded.manifest.input.size)
    else:
        X = loaded.columns.made_rows(256) if loaded.columns else random_inputs(shape, loaded.input_dtype, 256)
    trusted = True if ca_file is None else ca_file
    asked = by_name(None if server is None else [server], "--server")
    timing = measure(loaded, X, repeats=repeats, server=asked, key=read_key(key_file), verify_tls=trusted)
    if as_json:
        print_json(timing.as_dict())
        return
    percentiles = ("p50", "p90", "p99")
    title = f"{loaded.manifest.name}: milliseconds of one input, {repeats} in turn"
    table = make_table(("", *percentiles), right=percentiles, title=title, box=box.HEAVY_HEAD, pad_edge=True)
    rows = {"model calls alone": timing.model, "local answer": timing.local, "answer by the server": timing.remote}
    for name, at in rows.items():
        if at is not None:
            table.add_row(name, *(f"{at[key]:.3f}" for key in percentiles))
    console = make_console()
    console.print(table)
    console.print(f"A local answer takes {timing.ratio:.2f} times the model calls it makes, at the median.")
    if timing.remote is not None:
        console.print(f"The server answered {timing.answered} of {repeats}.")


def serve(
    target: Annotated[str, Argument(metavar="URL|BUNDLE", help="A running server, or a bundle to start one for.")],
    model: Annotated[str | None, Option(help="The model's name. (default: the bundle's, or the only one)")] = None,
    server: Annotated[str | None, Option(help="Of a bundle with several servers: the name of the one.")] = None,
    connections: Annotated[int, Option(help="At a time.", min=1)] = 64,
    seconds: Annotated[float, Option(help="To measure, for each way of sending.")] = 5.0,
    inputs: Annotated[int, Option(help="In each request.", min=1)] = 1,
    workers: Annotated[int, Option(help="Of the server that is started for a bundle.", min=1)] = 1,
    threads: Annotated[
        int, Option(help="Of one model call in that server. (default: the processors a worker has)", min=0)
    ] = 0,
    batch_delay: Annotated[
        float | None, Option(help="Seconds that server waits for more. (default: that of l2h serve)", min=0.0)
    ] = None,
    hour_cost: Annotated[
        float | None, Option(help="What an hour of its host costs: says what a million requests cost.", min=0.0)
    ] = None,
    use: Annotated[float, Option(help="Share of its speed that the host is used to, over a day.", max=1.0)] = 0.5,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Load a server with many connections, in JSON and in binary tensors.

    For a bundle a server is started with keys, ledger and metrics on, and the model alone is measured beside it.

    Example: [bold]l2h bench serve bundle --workers 2[/]

    Example: [bold]l2h bench serve http://127.0.0.1:8080 --model digits --inputs 8[/]

    Example: [bold]l2h bench serve bundle --workers 2 --hour-cost 0.10[/]
    """
    from l2h.edge.options import read_key
    from l2h.serving.bench import cost_per_million, measure_bundle, measure_running

    if use <= 0:
        raise SettingsError(f"--use {use:g}: a share above 0, such as 0.5")
    load: dict[str, Any] = {"connections": connections, "seconds": seconds, "inputs": inputs}
    alone: dict[str, Any] = {}
    if target.startswith(("http://", "https://")):
        results = measure_running(target, model, key=read_key(key_file), ca_file=ca_file, **load)
    else:
        settings: dict[str, Any] = {"workers": workers, "threads": threads, "server": server}
        settings |= {} if batch_delay is None else {"batch_delay": batch_delay}
        results, alone = measure_bundle(Path(target), settings, **load)
    if hour_cost is not None:
        for row in results.values():
            row["cost_per_million"] = cost_per_million(row["requests_per_second"], hour_cost, use)
    if as_json:
        print_json({"target": target, "results": results, "model_alone": alone or None})
    else:
        requests = f"{inputs} input{'' if inputs == 1 else 's'} per request"
        _print(f"{target}: {connections} connections, {requests}", results, alone)
        if hour_cost is not None:
            costs = ", ".join(f"{row['cost_per_million']:.4g} ({kind})" for kind, row in results.items())
            make_console().print(f"A million requests cost {costs}: {hour_cost:g} an hour, used to {use:.0%}.")


def _print(title: str, results: dict[str, dict[str, Any]], alone: dict[str, Any]) -> None:
    figures = ("requests/s", "inputs/s", "p50 ms", "p90 ms", "p99 ms")
    columns = ("tensors", *figures, "answers by status")
    table = make_table(columns, right=figures, title=title, box=box.HEAVY_HEAD, pad_edge=True)
    for kind, row in results.items():
        statuses = ", ".join(f"{status}: {count}" for status, count in row["statuses"].items())
        latency = [f"{row['latency_ms'][at]:.1f}" for at in ("p50", "p90", "p99")]
        table.add_row(kind, f"{row['requests_per_second']:.0f}", f"{row['inputs_per_second']:.0f}", *latency, statuses)
    console = make_console()
    console.print(table)
    if alone:
        best = alone["inputs_per_second"]
        share = 100 * results["binary"]["inputs_per_second"] / best
        console.print(
            f"The model alone: {best:.0f} inputs/s at its best batch of {alone['batch']}; the server reaches "
            f"{share:.0f}% of it with binary tensors."
        )


COMMANDS: dict[str, Callable[..., None]] = {"edge": edge, "serve": serve}
