"""``l2h bench``: how fast the two sides are here, beside what bounds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from l2h.errors import SettingsError

KeyFile = Annotated[
    Path | None, typer.Option(help="File that holds the key for the server. (default: the variable L2H_KEY)")
]
CaFile = Annotated[Path | None, typer.Option(help="Certificates to trust, where the server's is not public.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def edge(
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder, as l2h export writes it.")],
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", help="Inputs, as l2h ask takes them. (default: random ones)"),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Answers to time.", min=1)] = 2000,
    server: Annotated[str | None, typer.Option("--server", "-s", help="Time this server's answers as well.")] = None,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Time a local answer beside the model calls it makes, and the server's answer where one is given.

    Example: [bold]l2h bench edge bundle --data digits --server http://127.0.0.1:8080[/]
    """
    from rich.table import Table

    from l2h.bundle import DeviceBundle
    from l2h.cli.ask import read_inputs
    from l2h.cli.output import make_console, print_json
    from l2h.edge.keys import read_key
    from l2h.edge.timing import measure

    loaded = DeviceBundle(bundle)
    X = _random(loaded.input_shape, loaded.input_dtype, 256) if data is None else read_inputs(data, loaded)
    trusted = True if ca_file is None else ca_file
    found = measure(loaded, X, repeats=repeats, server=server, key=read_key(key_file), verify_tls=trusted)
    if as_json:
        print_json(found.as_dict())
        return
    table = Table(title=f"{loaded.manifest.name}: milliseconds of one input, {repeats} in turn")
    for column in ("", "p50", "p90", "p99"):
        table.add_column(column, justify="right" if column else "left")
    rows = {"model calls alone": found.model, "local answer": found.local, "answer by the server": found.remote}
    for name, at in rows.items():
        if at is not None:
            table.add_row(name, *(f"{at[key]:.3f}" for key in ("p50", "p90", "p99")))
    console = make_console()
    console.print(table)
    console.print(f"A local answer takes {found.ratio:.2f} times the model calls it makes, at the median.")
    if found.remote is not None:
        console.print(f"The server answered {found.answered} of {repeats}.")


def serve(
    target: Annotated[
        str, typer.Argument(metavar="URL|BUNDLE", help="A running server, or a bundle to start one for.")
    ],
    model: Annotated[
        str | None, typer.Option(help="The model's name. (default: the bundle's, or the only one)")
    ] = None,
    connections: Annotated[int, typer.Option(help="At a time.", min=1)] = 64,
    seconds: Annotated[float, typer.Option(help="To measure, for each way of sending.")] = 5.0,
    inputs: Annotated[int, typer.Option(help="In each request.", min=1)] = 1,
    workers: Annotated[int, typer.Option(help="Of the server that is started for a bundle.", min=1)] = 1,
    threads: Annotated[
        int, typer.Option(help="Of one model call in that server. (default: the processors a worker has)", min=0)
    ] = 0,
    batch_delay: Annotated[
        float | None, typer.Option(help="Seconds that server waits for more. (default: that of l2h serve)", min=0.0)
    ] = None,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Load a server with many connections, in JSON and in binary tensors.

    For a bundle a server is started with keys, ledger and metrics on, and the model alone is measured beside it.

    Example: [bold]l2h bench serve bundle --workers 2[/]

    Example: [bold]l2h bench serve http://127.0.0.1:8080 --model digits --inputs 8[/]
    """
    from rich.table import Table

    from l2h.cli.output import make_console, print_json
    from l2h.edge.keys import read_key
    from l2h.serving.bench.load import measure
    from l2h.serving.bench.server import describe, raw_throughput, running

    rows: dict[str, dict[str, Any]] = {}
    bounds: dict[str, Any] = {}
    if target.startswith(("http://", "https://")):
        address, key = target, read_key(key_file)
        context = _trusting(ca_file)
        name, shape, dtype = describe(address, model, key, context)
        for kind in ("JSON", "binary"):
            X = _random(shape, dtype, inputs)
            options: dict[str, Any] = {"connections": connections, "seconds": seconds, "binary": kind == "binary"}
            rows[kind] = measure(address, name, X, key=key, context=context, **options).as_dict()
    else:
        settings: dict[str, Any] = {"workers": workers, "threads": threads}
        settings |= {} if batch_delay is None else {"batch_delay": batch_delay}
        with running(Path(target), **settings) as (address, key, loaded):
            X = _random(loaded.input_shape, loaded.input_dtype, inputs)
            for kind in ("JSON", "binary"):
                options = {"connections": connections, "seconds": seconds, "binary": kind == "binary"}
                rows[kind] = measure(address, loaded.name, X, key=key, **options).as_dict()
        bounds = raw_throughput(loaded, seconds=min(seconds, 3.0))
    if as_json:
        print_json({"target": target, "results": rows, "model_alone": bounds or None})
        return
    table = Table(title=f"{target}: {connections} connections, {inputs} input{'' if inputs == 1 else 's'} a request")
    for column in ("tensors", "requests/s", "inputs/s", "p50 ms", "p90 ms", "p99 ms", "answers by status"):
        table.add_column(column, justify="left" if column in ("tensors", "answers by status") else "right")
    for kind, row in rows.items():
        statuses = ", ".join(f"{status}: {count}" for status, count in row["statuses"].items())
        latency = [f"{row['latency_ms'][at]:.1f}" for at in ("p50", "p90", "p99")]
        table.add_row(kind, f"{row['requests_per_second']:.0f}", f"{row['inputs_per_second']:.0f}", *latency, statuses)
    console = make_console()
    console.print(table)
    if bounds:
        best = bounds["inputs_per_second"]
        share = 100 * rows["binary"]["inputs_per_second"] / best
        console.print(
            f"The model alone: {best:.0f} inputs/s at its best batch of {bounds['batch']}; the server reaches "
            f"{share:.0f}% of it with binary tensors."
        )


def _trusting(ca_file: Path | None) -> Any:
    import ssl

    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"--ca-file {ca_file}: {error.strerror or error}") from error


def _random(shape: tuple[int, ...], dtype: str, n: int) -> Any:
    import numpy as np

    rng = np.random.default_rng(0)
    if dtype == "uint8":
        return rng.integers(0, 256, (n, *shape), dtype=np.uint8)
    return rng.normal(size=(n, *shape)).astype(dtype)


COMMANDS: dict[str, Callable[..., None]] = {"edge": edge, "serve": serve}
