"""``l2h compare``: every method of the field on one client, one server and one set of prices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from l2h.cli import options as shared
from l2h.cli.options import (
    Prices,
    StudyOptions,
    Texts,
    by_name,
    price_option,
    read_price_grid,
    run_option,
    takes_groups,
    training_option,
)
from l2h.cli.output import command_line, console, log, make_console, print_summary
from l2h.errors import SettingsError

if TYPE_CHECKING:
    from l2h.experiments.compare.comparing import Tell


@dataclass(frozen=True)
class CompareOptions(StudyOptions):
    """What is compared, how often, and where it goes."""

    methods: Annotated[
        Texts,
        Option(
            "--method", help="Compare only this one; repeat for several. (default: all that fit the number of classes)"
        ),
    ] = None
    seeds: Annotated[int, run_option(help="How many seeds.")] = 5
    out: Annotated[Path, run_option("--out", "-o", help="The folder.")] = Path("runs/compare")
    c_1: Annotated[Prices, price_option("--c-1", help="A value of the grid; repeat. (default: 1 and 1.25)")] = None
    c_e: Annotated[
        Prices, price_option("--c-e", help="A value of the grid; repeat. (default: 0.05, 0.1, 0.15, 0.25)")
    ] = None
    price: Annotated[
        Texts,
        price_option(
            help="With several servers, NAME=C_E or NAME=C_E:C_1; repeat. Every price of one is taken with every price "
            "of the others."
        ),
    ] = None
    method_files: shared.MethodFiles = None
    outcomes: Annotated[
        str | None,
        Option(
            help="A table of outcomes instead of --data, as in l2h train: a text, or numbers, and who was right. What "
            "needs more is left out.",
        ),
    ] = None
    text_column: shared.TextColumn = None
    classes: Annotated[
        str | None, Option(help="Only these classes, by name, with commas: 3,8. Two make it a binary task.")
    ] = None
    client_share: Annotated[float | None, Option(help="As in l2h train. (default: 1; digits: 0.3)")] = None
    server: Annotated[
        Texts,
        Option(
            "--server",
            "-e",
            help="As in l2h train; NAME=... and repeated, several servers. (default: alexnet; digits: lenet5)",
        ),
    ] = None
    calibration: Annotated[
        float | None, Option(help="Share of the training samples kept for calibration. (default: 0.1; digits: 0.15)")
    ] = None
    crossed: Annotated[
        bool,
        Option(
            "--crossed",
            help="Cross every loss with every net (separate, attached, with a student) and both kinds of training "
            "samples (outcomes; the server's softmax too).",
        ),
    ] = False
    budgets: Annotated[
        Texts,
        Option(
            "--budget",
            "-b",
            help="What a rejector may cost, as in l2h frontier: 0.3, 200k, 50us; with --crossed repeat for several. "
            "(default: nets of one width; with --crossed: 1)",
        ),
    ] = None
    rates: Annotated[
        list[float] | None,
        training_option(
            "--rate", help="With --crossed, a learning rate to tune over; repeat. (default: 0.01 and 0.003)"
        ),
    ] = None
    jobs: Annotated[int | None, run_option(help="Seeds at once. (default: one per CPU core; 1 on a GPU)", min=1)] = None
    on: shared.On = None
    rows: Annotated[
        list[Path] | None,
        run_option(
            "--rows",
            help="Run nothing: show the rows of this file (rows.csv, crossed.csv, several.csv), with every interval "
            "computed again; repeat to join those of several calls.",
        ),
    ] = None
    force: Annotated[bool, run_option("--force", help="Replace the comparison that is in the folder.")] = False
    as_json: Annotated[bool, run_option("--json", help="Print comparison.json.")] = False


@takes_groups
def compare(options: CompareOptions) -> None:
    """Compare methods: same data, same client, same server, same nets and steps, several seeds.

    Finished seeds are kept: the same command goes on where it was broken off, and with more --seeds adds to them.

    Example: [bold]l2h compare --dataset digits --seeds 5[/]

    Example: [bold]l2h compare --dataset data/cifar10 --method confidence --method priced-attached --seeds 3 --out
    runs/compare-cifar10[/]

    Example: [bold]l2h compare --dataset digits --classes 4,9 --out runs/compare-binary[/]

    Example: [bold]l2h compare --data data/cifar10 --server box=lenet5 --server cloud=alexnet --price box=0.05 --price
    cloud=0.2 --price cloud=0.3:1.25 --seeds 3 --out runs/two-servers[/]

    Example: [bold]l2h compare --data data/cifar10 --budget 0.3 --seeds 3 --out runs/equal-cost[/]

    Example: [bold]l2h compare --outcomes answers.parquet --seeds 5 --out runs/compare-outcomes[/]

    Example: [bold]l2h compare --crossed --data data/cifar10 --c-1 1 --c-e 0.1 --c-e 0.25 --seeds 3 --out
    runs/crossed[/]

    Example: [bold]l2h compare --data data/cifar10 --seeds 16 --on ray://head:10001 --out runs/compare-cluster[/]
    """
    _refuse_what_does_not_go_together(options)
    if options.rows:
        _show_rows(options)
        return
    if options.crossed:
        _print_crossed(_compare_crossed(options), options.as_json)
        return
    if options.price or len(options.server or ()) > 1:
        _print_several(_compare_several(options), options.as_json)
        return
    from l2h.budgets import DEFAULT_BUDGET
    from l2h.data.outcomes import TEXT_COLUMN
    from l2h.experiments.compare.comparing import GRID_1, GRID_E, compare_methods, with_budget

    prices = {"c_1": tuple(options.c_1 or GRID_1), "c_e": tuple(options.c_e or GRID_E)}
    server = options.server[0] if options.server else None
    named = options if options.outcomes is None else replace(options, data=options.outcomes)
    plan = named.plan(sized=bool(options.budgets or options.outcomes), server=server, **prices, **_given(options))
    plan = with_budget(plan, options.budgets or [str(DEFAULT_BUDGET)]) if options.budgets or options.outcomes else plan
    summary = compare_methods(
        plan,
        options.methods,
        options.all_seeds,
        options.out,
        _progress,
        classes=_classes(options),
        augment=options.augment,
        jobs=options.jobs,
        command=command_line(),
        force=options.force,
        text_column=(options.text_column or TEXT_COLUMN) if options.outcomes else None,
        on=options.on,
    )
    _print_comparison(summary, options)


def _refuse_what_does_not_go_together(options: CompareOptions) -> None:
    if options.jobs and options.on:
        raise SettingsError("--jobs is for this machine: a cluster runs as much at once as it has room for")
    if options.rows and options.on:
        raise SettingsError("--rows runs nothing: leave --on out")
    if options.outcomes and (options.client or options.server or options.classes or options.augment):
        raise SettingsError("--outcomes has no client, server, classes or images: leave those options out")
    if options.outcomes and options.crossed:
        raise SettingsError("--crossed needs samples and a server's softmax: --outcomes has none")
    for flag, value, needed in (
        ("--rate", options.rates, options.crossed),
        ("--text-column", options.text_column, options.outcomes),
    ):
        if value and not needed:
            raise SettingsError(f"{flag} goes with {'--crossed' if flag == '--rate' else '--outcomes'}")


def _print_comparison(summary: dict[str, Any], options: CompareOptions) -> None:
    """Write the page and print the tables."""
    from l2h.report import comparison_headline, comparison_table, grid_tables, property_table, write_comparison

    page = write_comparison(summary, options.out)
    tables = (comparison_table(summary), *grid_tables(summary), property_table(summary["methods"]))
    print_summary(summary, options.as_json, tables, comparison_headline(summary))
    if not options.as_json:
        _print_left_out(summary)
        log.info("The page with every number and picture: %s", page)


def _compare_several(options: CompareOptions) -> dict[str, Any]:
    """Compare methods for several servers, which are others than those for one."""
    from l2h.experiments.several import SeveralStudy, compare_several, price_grid

    given = {"--method": options.methods, "--c-1": options.c_1, "--c-e": options.c_e, "--budget": options.budgets}
    for flag, value in given.items():
        if value:
            raise SettingsError(f"{flag} is for one server: with several, all methods for them run at every --price")
    servers = by_name(options.server, "--server")
    if not isinstance(servers, dict):
        raise SettingsError("--price goes with servers that have names: --server box=... --server cloud=...")
    plan = options.plan(sized=True, servers=servers, **_given(options))
    prices = price_grid(read_price_grid(options.price), list(servers))
    study = SeveralStudy(replace(plan, rejector_options={}), options.all_seeds, _classes(options), prices)
    return _run_study(compare_several, study, options)


def _show_rows(options: CompareOptions) -> None:
    """Show the rows of files, by the kind of comparison that their columns tell."""
    from l2h.experiments.compare import rows
    from l2h.experiments.compare.comparing import join_comparisons
    from l2h.experiments.crossed.rows import FIELDS
    from l2h.experiments.crossed.study import join_crossed
    from l2h.experiments.runs import columns_of
    from l2h.experiments.several import join_several

    paths = options.rows or []
    columns = columns_of(paths[0])
    if columns == rows.FIELDS:
        _print_comparison(join_comparisons(paths, command_line()), options)
    elif columns == FIELDS:
        _print_crossed(join_crossed(paths, options.out, command_line()), options.as_json)
    else:
        _print_several(join_several(paths, options.out, command_line()), options.as_json)


def _compare_crossed(options: CompareOptions) -> dict[str, Any]:
    """Cross losses, nets and training samples."""
    from l2h.experiments.compare.comparing import GRID_1, GRID_E
    from l2h.experiments.crossed.study import BUDGETS, RATES, CrossedStudy, crossable, measure_crossed

    if options.price or len(options.server or ()) > 1:
        raise SettingsError("--crossed is for one server: leave out --price and further --server")
    prices = {"c_1": tuple(options.c_1 or GRID_1), "c_e": tuple(options.c_e or GRID_E)}
    plan = options.plan(sized=True, server=options.server[0] if options.server else None, **prices, **_given(options))
    study = CrossedStudy(
        replace(plan, rejector_options={}),
        options.all_seeds,
        _classes(options),
        methods=crossable(options.methods),
        budgets=tuple(options.budgets or BUDGETS),
        rates=tuple(options.rates or RATES),
    )
    return _run_study(measure_crossed, study, options)


def _run_study(measure: Callable[..., dict[str, Any]], study: Any, options: CompareOptions) -> dict[str, Any]:
    from l2h.cli.bars import training_progress

    given = {"augment": options.augment, "command": command_line(), "force": options.force, "on": options.on}
    with training_progress() as progress:
        return measure(study, options.out, progress, **given)


def _print_crossed(summary: dict[str, Any], as_json: bool) -> None:
    from l2h.report import crossed_sentences, crossed_tables

    print_summary(summary, as_json, crossed_tables(summary), crossed_sentences(summary))
    if not as_json:
        _print_left_out(summary)


def _print_left_out(summary: dict[str, Any]) -> None:
    reasons: dict[str, list[str]] = {}
    for method in summary["skipped"]:
        reasons.setdefault(method["why"], []).append(method["method"])
    for why, names in reasons.items():
        make_console().print(f"Left out: {', '.join(names)} ({why}).", markup=False)


def _given(options: CompareOptions) -> dict[str, Any]:
    """Return the fields of a plan that both kinds of comparison take, and a frontier does not."""
    files = tuple(options.method_files or ())
    return {"client_share": options.client_share, "calibration": options.calibration, "method_files": files}


def _classes(options: CompareOptions) -> tuple[str, ...] | None:
    return tuple(options.classes.split(",")) if options.classes else None


def _print_several(summary: dict[str, Any], as_json: bool) -> None:
    from l2h.report import several_sentences, several_table

    print_summary(summary, as_json, [several_table(summary)], several_sentences(summary))


@contextmanager
def _progress(total: int, apart: bool) -> Iterator[tuple[Tell, Any]]:
    """Show seeds and methods as they finish, and each training where it runs in this process."""
    from l2h.cli.bars import training_progress
    from l2h.training.bars import make_bars

    finished = 0

    def log_line(seed: int, what: str) -> None:
        nonlocal finished
        finished += 1
        log.info("seed %d: %s done (%d of %d)", seed, what, finished, total)

    if not apart:
        with training_progress() as progress:
            yield log_line, progress
    elif not (console.is_terminal and log.isEnabledFor(logging.INFO)):
        yield log_line, None
    else:
        with make_bars(console, 40) as bars:
            task = bars.add_task("client and server", total=total)
            yield lambda seed, what: bars.update(task, advance=1, description=f"seed {seed}: {what}"), None
