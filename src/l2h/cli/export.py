"""``l2h export``: a finished run as a bundle for devices and a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from l2h.cli.options import MethodFiles, SecondOpinion, ServerPrices, ServerRun, read_prices
from l2h.cli.output import make_console, make_table, print_json, print_line

if TYPE_CHECKING:
    from l2h.bundle import Manifest


def export(
    run: Annotated[Path, Argument(help="The run folder.")],
    out: Annotated[Path, Option("--out", "-o", help="The folder of the bundle; it appears in one piece.")],
    name: Annotated[str | None, Option(help="Of the model, on the wire too. (default: the data set's)")] = None,
    c_1: Annotated[
        float | None, Option("--c-1", help="Price of a wrong remote answer that it is made for. (default: the run's)")
    ] = None,
    c_e: Annotated[
        float | None, Option("--c-e", help="Price of a request that it is made for. (default: the run's)")
    ] = None,
    price: ServerPrices = None,
    second_opinion: SecondOpinion = None,
    which: Annotated[int | None, Option(help="Number of the only rejector to export. (default: all)", min=0)] = None,
    int8: Annotated[
        bool, Option("--int8", help="Quantise the rejector; kept only where it is faster and no worse.")
    ] = False,
    data: Annotated[
        str | None,
        Option("--data", "-d", help="Samples for --int8: their training part. (default: the run's calibration part)"),
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace the bundle that is in the folder.")] = False,
    server_run: ServerRun = None,
    method_files: MethodFiles = None,
    as_json: Annotated[bool, Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Write a run as a bundle: ONNX files for the device and the server, checked against the run.

    Neither side needs torch to use it, and the two halves can be copied apart.

    Example: [bold]l2h export runs/demo --out bundles/digits[/]

    Example: [bold]l2h export runs/demo --out bundles/digits --c-e 0.05 --int8 --force[/]

    Example: [bold]l2h export runs/two --out bundles/two --price box=0.02 --price cloud=0.1:1.25[/], of two servers
    """
    from l2h.bundle.writing import check_target
    from l2h.errors import RunError
    from l2h.experiments.finished import open_run
    from l2h.routing.saving import holds_router
    from l2h.rows import in_memory

    if holds_router(run):
        hint = f"copy it to the device, where l2h.Router.load(FOLDER) and l2h ask {run} PROMPT need no torch"
        raise RunError(f"{run} holds a router, which is its own bundle: {hint}")
    if data is not None and not int8:
        raise typer.BadParameter("--data goes with --int8", param_hint="--data")
    check_target(out, force)
    finished = open_run(run, server_run)
    if second_opinion is not None:
        finished.allow_second_opinion(second_opinion)
    samples = None
    if int8:
        X, y = finished.calibration_samples(data, stream=None)
        samples = in_memory(X), y
    costs = finished.export_costs(c_e, c_1, read_prices(price))
    manifest = finished.system.export(out, name=name, costs=costs, which=which, int8=samples, force=force)
    if as_json:
        print_json({"folder": str(out), **manifest.as_dict()})
    else:
        _print(manifest, out)


def _print(manifest: Manifest, folder: Path) -> None:
    """Print the files with their sizes, hashes and agreement; what was left out; what to do next."""
    table = make_table(("file", "for the", "bytes", "sha256", "differs by"), right=("bytes", "differs by"))
    for name, part in manifest.files.items():
        difference = manifest.agreement.get(name)
        shown = "" if difference is None else f"{difference:.1e}"
        table.add_row(name, part.side, f"{part.bytes:,}", part.sha256[:12], shown)
    from l2h.costs import prices_text

    print_line(f"{folder}: {manifest.name}, version {manifest.version}, made for {prices_text(manifest.costs)}")
    make_console().print(table)
    measured = manifest.rejector.int8_measured
    if measured is not None:
        print_line(f"int8: {measured['why']}")
    if manifest.client.file is None:
        print_line("The client is not in the bundle: give it with EdgeClient(..., client=...).")
    next_step = "Next"
    for name, server in manifest.servers.items():
        which, whose = (f" --server {name}", f"The server {name}") if manifest.named else ("", "The server")
        if server.file is not None:
            print_line(f"{next_step}: l2h serve {folder}{which}    answers requests")
            next_step = "Then"
        else:
            print_line(
                f"{whose} is not in the bundle: EdgeClient(..., server=function) asks a function, and l2h serve "
                f"MODULE:FUNCTION --bundle {folder}{which} serves one."
            )
    print_line(f"{next_step}: l2h ask {folder} ...    answers, and asks where it pays")
