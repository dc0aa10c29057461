"""``l2h tune``: choose settings by the risk on validation samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from l2h.cli.options import MoneyOptions, Texts, check_on, run_option, takes_groups
from l2h.cli.output import command_line, log, print_line, print_summary
from l2h.cli.train import read_plan, with_file, with_values
from l2h.cli.train_options import ApiOptions, FeedOptions, ModelOptions, TrainingOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from l2h.experiments.plan import Plan


@dataclass(frozen=True)
class TuneOptions:
    """What is tried, how often, and where it goes."""

    tried: Annotated[
        Texts,
        run_option(
            "--try",
            help="What to try: server.lr=0.0001..0.01 (from a range), rejector.epochs=10,20,40 (of these); any name of "
            "--set and --option. Repeat for several.",
        ),
    ] = None
    trials: Annotated[int, run_option(help="How many trials; the first is what is given, unchanged.", min=1)] = 20
    out: Annotated[Path, run_option("--out", "-o", help="The folder.")] = Path("runs/tune")
    on: Annotated[
        str,
        run_option(
            "--on",
            callback=check_on,
            help="The Ray cluster: ray (the one of RAY_ADDRESS or of this machine, else a new one here), or "
            "ray://HOST:10001.",
        ),
    ] = "ray"
    at_once: Annotated[int | None, run_option(help="Trials at once. (default: as many as have room)", min=1)] = None
    stop_early: Annotated[
        bool, run_option("--stop-early/--all-to-the-end", help="Stop trials that fall behind others (ASHA).")
    ] = True
    force: Annotated[bool, run_option("--force", help="Replace the trials that are in the folder.")] = False
    as_json: Annotated[bool, run_option("--json", help="Print tuning.json.")] = False


@takes_groups
def tune(
    models: ModelOptions, feeds: FeedOptions, tuning: TuneOptions, training: TrainingOptions, money: MoneyOptions
) -> None:
    """Choose settings by the risk on validation samples, over trials that Ray Tune runs.

    A tenth of the training samples is kept for validation; the test part is never used. Trials that are over are kept:
    the same command goes on where it was broken off, and with more --trials adds to them.

    Example: [bold]l2h tune --data data/cifar10 --client legacy.onnx --try server.lr=0.0001..0.01 --try
    rejector.epochs=10,20,40 --trials 30 --out runs/tune[/]

    Example: [bold]l2h train --data data/cifar10 --client legacy.onnx --settings runs/tune/best.json --out runs/best[/]
    trains with what it found.
    """
    from l2h.cli.bars import count_progress
    from l2h.experiments.tune.space import parse_tried
    from l2h.experiments.tune.study import Search, tune_settings
    from l2h.report import tuning_headline, tuning_table, write_tuning

    if models.data is None:
        raise typer.BadParameter("give the data", param_hint="--data")

    def make_plan(values: Mapping[str, Any]) -> Plan:
        return read_plan(models, ApiOptions(), feeds, with_values(training, values), money)

    training = with_file(training)

    search = Search(
        make_plan,
        parse_tried(tuning.tried or []),
        trials=tuning.trials,
        stop_early=tuning.stop_early,
        at_once=tuning.at_once,
        augment=training.augment or ("none" if training.recipe == "paper" else None),
    )
    with count_progress("trials") as tell:
        summary = tune_settings(search, tuning.out, tuning.on, command_line(), force=tuning.force, tell=tell)
    page = write_tuning(summary, tuning.out)
    print_summary(summary, tuning.as_json, [tuning_table(summary)], tuning_headline(summary))
    if not tuning.as_json:
        print_line(f"The settings, for l2h train --settings: {tuning.out / 'best.json'}")
        log.info("The page with every trial: %s", page)
