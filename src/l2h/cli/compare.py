"""``l2h compare``: every method of the field on one client, one server and one set of prices."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from l2h.cli.options import TRAINING, Device, Limit, ModelOption, Precision, Set, TestPart
from l2h.errors import SettingsError

if TYPE_CHECKING:
    from l2h.experiments.compare.seeds import Tell
    from l2h.experiments.plan import Plan

_COSTS, _RUN = "Prices", "Run"
GRID_1, GRID_E = (1.0, 1.25), (0.05, 0.1, 0.15, 0.25)


def compare(
    data: Annotated[
        str,
        typer.Option(
            "--dataset",
            "--data",
            "-d",
            help="digits (with the demo's client and server), or whatever l2h train takes: an .npz, an image folder, "
            "Parquet, CIFAR, SVHN.",
        ),
    ] = "digits",
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method", help="Compare only this one; repeat for several. (default: all that fit the number of classes)"
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds.", rich_help_panel=_RUN)] = 5,
    first_seed: Annotated[int, typer.Option(help="The first of them.", min=0, rich_help_panel=_RUN)] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder.", rich_help_panel=_RUN)] = Path("runs/compare"),
    c_1: Annotated[
        list[float] | None,
        typer.Option("--c-1", help="A value of the grid; repeat. (default: 1 and 1.25)", rich_help_panel=_COSTS),
    ] = None,
    c_e: Annotated[
        list[float] | None,
        typer.Option(
            "--c-e", help="A value of the grid; repeat. (default: 0.05, 0.1, 0.15, 0.25)", rich_help_panel=_COSTS
        ),
    ] = None,
    test: TestPart = None,
    limit: Limit = None,
    classes: Annotated[
        str | None, typer.Option(help="Only these classes, by name, with commas: 3,8. Two make it a binary task.")
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", "-m", help="As in l2h train. (default: lenet5; digits: tree)")
    ] = None,
    client_share: Annotated[float | None, typer.Option(help="As in l2h train. (default: 1; digits: 0.3)")] = None,
    server: Annotated[
        str | None, typer.Option("--server", "-e", help="As in l2h train. (default: alexnet; digits: lenet5)")
    ] = None,
    calibration: Annotated[
        float | None,
        typer.Option(help="Share of the training samples kept for calibration. (default: 0.1; digits: 0.15)"),
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(help="none, shift or flip+shift. (default: what suits the data)", rich_help_panel=TRAINING),
    ] = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    set_: Set = None,
    option: ModelOption = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Seeds at once. (default: one a CPU core; 1 on a GPU)", min=1, rich_help_panel=_RUN),
    ] = None,
    draws: Annotated[int, typer.Option(help="Draws of the bootstrap.", min=100, rich_help_panel=_RUN)] = 2000,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the comparison that is in the folder.", rich_help_panel=_RUN)
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print comparison.json.", rich_help_panel=_RUN)] = False,
) -> None:
    """Compare methods: same data, same client, same server, same nets and steps, several seeds.

    Finished seeds are kept: the same command goes on where it was broken off, and with more --seeds adds to them.

    Example: [bold]l2h compare --dataset digits --seeds 5[/]

    Example: [bold]l2h compare --dataset data/cifar10 --method confidence --method priced-attached --seeds 3 --out
    runs/compare-cifar10[/]

    Example: [bold]l2h compare --dataset digits --classes 4,9 --out runs/compare-binary[/]
    """
    from l2h.cli.console import log
    from l2h.cli.output import make_console, print_json
    from l2h.experiments.compare.seeds import Comparison, prepare, results, run_seeds
    from l2h.experiments.compare.summary import summarise
    from l2h.methods import get, known

    if seeds < 1:
        raise SettingsError(f"--seeds {seeds}: at least 1")
    plan = _plan(
        data,
        {"client": client, "client_share": client_share, "server": server, "calibration": calibration},
        {"test": test, "limit": limit, "c_1": tuple(c_1 or GRID_1), "c_e": tuple(c_e or GRID_E)},
        {"device": device, "precision": precision},
        set_ or [],
        option or [],
    )
    named = tuple(classes.split(",")) if classes else None
    wanted = tuple(method.name for method in get(methods or known()))
    comparison = Comparison(plan, wanted, tuple(range(first_seed, first_seed + seeds)), named)
    first = comparison.load(first_seed)
    skipped = []
    for method in get(comparison.methods):
        if method.classes is not None and method.classes != first.num_classes:
            if methods:
                method.check(first.num_classes)
            skipped.append({"method": method.name, "why": f"it is for {method.classes} classes"})
    kept = tuple(name for name in comparison.methods if name not in {one["method"] for one in skipped})
    if augment is None:
        augment = plan.settings.augment if plan.settings.augment != "none" else first.augment
    workers = jobs or _default_jobs(device, seeds)
    settings = replace(plan.settings, augment=augment)
    if workers > 1 and settings.threads is None:
        settings = replace(settings, threads=1)
    comparison = replace(comparison, plan=replace(plan, settings=settings), methods=kept)
    there = prepare(out, comparison, force=force)
    if there:
        log.info("%s holds seed %s already: not run again", out, ", ".join(map(str, there)))
    left = [seed for seed in comparison.seeds if seed not in there]
    with _telling(len(left) * (1 + len(kept)), workers > 1) as (tell, progress):
        run_seeds(out, comparison, left, jobs=workers, tell=tell, progress=progress)
    from l2h.report import comparison_headline, comparison_table, grid_tables, property_table, write_comparison

    summary = summarise(
        comparison,
        results(out, comparison),
        dataset=first.name,
        classes=first.num_classes,
        draws=draws,
        command=_command(),
        skipped=skipped,
    )
    page = write_comparison(summary, out)
    if as_json:
        print_json(summary)
        return
    console = make_console()
    console.print(comparison_table(summary))
    for table in grid_tables(summary):
        console.print(table)
    console.print(property_table(summary["methods"]))
    for sentence in comparison_headline(summary):
        console.print(sentence, markup=False)
    for one in skipped:
        console.print(f"Left out: {one['method']} ({one['why']}).", markup=False)
    log.info("The page with every number and picture: %s", page)


def _plan(
    data: str,
    if_given: dict[str, Any],
    given: dict[str, Any],
    training: dict[str, Any],
    overrides: list[str],
    option: list[str],
) -> Plan:
    """The digits' own plan, or that of ``l2h train``, with what was asked for put in."""
    from l2h.cli.options import make_settings, parse_options
    from l2h.experiments.plan import Plan, digits_plan

    base = digits_plan() if data == "digits" else Plan(data=data)
    asked = {name: value for name, value in if_given.items() if value is not None}
    values = {name: getattr(base.settings, name) for name in base.settings.__dataclass_fields__} | training
    if asked.get("server", base.server) != base.server:
        values["server"] = None  # what suits the other server
        base = replace(base, server_options={})
    options = parse_options(option)
    return replace(
        base,
        **asked,
        **given,
        client_options=base.client_options | options["client"],
        server_options=base.server_options | options["server"],
        rejector_options=base.rejector_options | options["rejector"],
        settings=make_settings(values, overrides, asked.get("server", base.server)),
    )


def _default_jobs(device: str, seeds: int) -> int:
    from l2h.training import pick_device

    if pick_device(device).type != "cpu":
        return 1
    return max(1, min(seeds, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


@contextmanager
def _telling(total: int, apart: bool) -> Iterator[tuple[Tell, Any]]:
    """One bar over all seeds and methods on a terminal, lines elsewhere; each training's own where it runs here."""
    from l2h.cli.bars import telling
    from l2h.cli.console import console, log

    finished = 0

    def line(seed: int, what: str) -> None:
        nonlocal finished
        finished += 1
        log.info("seed %d: %s done (%d of %d)", seed, what, finished, total)

    if not apart:
        with telling() as progress:
            yield line, progress
        return
    if not console.is_terminal:
        yield line, None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description:<40}"), BarColumn(bar_width=30), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bars:
        task = bars.add_task("client and server", total=total)

        def bar(seed: int, what: str) -> None:
            bars.update(task, advance=1, description=f"seed {seed}: {what}")

        yield bar, None


def _command() -> str:
    import shlex

    return shlex.join(["l2h", *sys.argv[1:]])
