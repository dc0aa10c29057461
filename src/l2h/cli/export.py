"""``l2h export``: a finished run as a bundle for devices and a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from l2h.bundle import Manifest
    from l2h.costs import Costs
    from l2h.system import HelpSystem


def export(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the bundle; it appears in one piece.")],
    name: Annotated[str | None, typer.Option(help="Of the model, on the wire too. (default: the data set's)")] = None,
    c_1: Annotated[float | None, typer.Option("--c-1", help="The prices it is made for. (default: the run's)")] = None,
    c_e: Annotated[float | None, typer.Option("--c-e", help="Likewise.")] = None,
    which: Annotated[
        int | None, typer.Option(help="Number of the only rejector to export. (default: all)", min=0)
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantise the rejector; kept only where it is faster and no worse.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", "-d", help="Samples for --int8: their training part. (default: the run's calibration part)"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the bundle that is in the folder.")] = False,
    server_run: Annotated[
        Path | None, typer.Option(help="The run of a server trained by itself (--role server).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Write a run as a bundle: ONNX files for the device and the server, checked against the run.

    Neither side needs torch to use it, and the two halves can be copied apart.

    Example: [bold]l2h export runs/demo --out bundles/digits[/]

    Example: [bold]l2h export runs/demo --out bundles/digits --c-e 0.05 --int8 --force[/]
    """
    import l2h
    from l2h.cli.evaluate import data_of, from_files
    from l2h.cli.output import print_json
    from l2h.experiments import runs
    from l2h.experiments.plan import divide, plan_of
    from l2h.export.folder import check_target

    if data is not None and not int8:
        raise typer.BadParameter("--data goes with --int8", param_hint="--data")
    check_target(out, force)
    config = runs.read_config(run)
    training = config.get("training", {})
    system = l2h.load(run, **from_files(config), server_run=server_run)
    samples = None
    if int8:
        dataset = data_of(run, training, data, None)
        own = data is None
        samples = divide(dataset, plan_of(training)).calibration if own else (dataset.X_train, dataset.y_train)
    costs = _costs(system, training, c_e, c_1)
    manifest = system.export(out, name=name, costs=costs, which=which, int8=samples, force=force)
    if as_json:
        print_json({"folder": str(out), **manifest.as_dict()})
    else:
        _print(manifest, out)


def _costs(system: HelpSystem, training: dict[str, Any], c_e: float | None, c_1: float | None) -> Costs | None:
    """The prices named on the command line, filled up from the run's; None where the rejectors have their own."""
    from l2h.costs import Costs

    if c_e is None and c_1 is None and system.specs[0].costs is not None:
        return None
    return Costs(
        c_e=training.get("c_e", [0.1])[0] if c_e is None else c_e,
        c_1=training.get("c_1", [1.0])[0] if c_1 is None else c_1,
    )


def _print(manifest: Manifest, folder: Path) -> None:
    """Files with their sizes, hashes and agreement; what was left out; what to do next."""
    from rich import box
    from rich.table import Table

    from l2h.cli.output import make_console

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, side in (("file", "left"), ("for the", "left"), ("bytes", "right"), ("sha256", "left")):
        table.add_column(column, justify=side)  # type: ignore[arg-type]
    table.add_column("differs by", justify="right")
    for name, part in manifest.files.items():
        difference = manifest.agreement.get(name)
        told = "" if difference is None else f"{difference:.1e}"
        table.add_row(name, part.side, f"{part.bytes:,}", part.sha256[:12], told)
    console = make_console()
    title = f"{folder}: {manifest.name}, version {manifest.version}, made for {manifest.costs}"
    console.print(title, highlight=False, soft_wrap=True, markup=False)
    console.print(table)
    measured = manifest.rejector.int8_measured
    if measured is not None:
        console.print(f"int8: {measured['why']}", highlight=False, soft_wrap=True, markup=False)
    if manifest.client.file is None:
        console.print("The client is not in the bundle: give it with EdgeClient(..., client=...).")
    if manifest.server.file is not None:
        console.print(f"Next: l2h serve {folder}    answers requests", highlight=False, soft_wrap=True, markup=False)
    console.print(
        f"{'Then' if manifest.server.file else 'Next'}: l2h ask {folder} ...    answers, and asks where it pays",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
