"""``l2h evaluate``: finished runs, at other prices or on other data; several seeds with their spread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from l2h.costs import Costs
    from l2h.data import Dataset
    from l2h.experiments.evaluating import Evaluation
    from l2h.limits import RateLimit


def evaluate(
    run: Annotated[list[Path], typer.Argument(help="One run folder, or several of different seeds.")],
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="Other data than the run's; its test part is used.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="The test part, where it is a file of its own.")] = None,
    c_1: Annotated[list[float] | None, typer.Option("--c-1", help="Repeat for a grid. (default: the run's)")] = None,
    c_e: Annotated[list[float] | None, typer.Option("--c-e", help="Repeat for a grid. (default: the run's)")] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            help="A bound on asking: 20%, 20%@95% (guaranteed), 20%/1000 (of any 1000 in a row), 100/1h; repeat for "
            "several. Without --c-e asking is free.",
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="How a share is met: threshold, guaranteed or stochastic. (default: threshold)"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write metrics.json, plots and page of the first price here.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is in the folder.")] = False,
    server_run: Annotated[
        Path | None, typer.Option(help="The run of a server trained by itself (--role server), to judge with.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: a list, one a price; over several runs mean, std and sem.")
    ] = False,
) -> None:
    """Judge a finished run on its test set, at its own prices or at others.

    Example: [bold]l2h evaluate runs/demo --c-e 0.05 --c-e 0.1 --c-e 0.2[/]

    Example: [bold]l2h evaluate runs/demo --limit 10% --limit 20% --rule stochastic[/] asks for at most so many.

    Example: [bold]l2h evaluate runs/seed-0 runs/seed-1 runs/seed-2[/] gives mean and standard error over the seeds.
    """
    from l2h.cli.output import print_json, print_results
    from l2h.errors import RunError
    from l2h.limits import RateLimit

    if out is not None:
        if len(run) > 1:
            raise typer.BadParameter("--out goes with one run")
        if out.exists() and not out.is_dir():
            raise RunError(f"{out} is a file: choose a folder")
        if out.exists() and any(out.iterdir()) and not force:
            raise RunError(f"{out} is not empty: --force replaces what is in it")
    bounds = [RateLimit.parse(text) for text in limit or []]
    if rule is not None and not bounds:
        raise typer.BadParameter("--rule goes with --limit", param_hint="--rule")
    _require_seeds(run)
    asked = Asked(data, test, c_1, c_e, bounds, rule, server_run)
    by_run = [_evaluate(folder, asked, out) for folder in run]
    for folder, results in zip(run, by_run, strict=True):
        if [(r.report.costs, r.spec) for r in results] != [(r.report.costs, r.spec) for r in by_run[0]]:
            raise RunError(f"{folder} has other prices or rejectors than {run[0]}: --c-1 and --c-e set the prices")
    if len(run) > 1:
        _print_spread(by_run, as_json)
    elif as_json:
        print_json([result.as_dict() for result in by_run[0]])
    else:
        print_results(by_run[0])


def _require_seeds(run: list[Path]) -> None:
    """A mean over runs is a mean over seeds: refuse one that would be something else."""
    from l2h.errors import RunError
    from l2h.experiments import runs

    seen: dict[int | None, Path] = {}
    first: dict[str, Any] | None = None
    for folder in run if len(run) > 1 else []:
        training = dict(runs.read_config(folder).get("training", {}))
        settings = dict(training.get("settings", {}))
        seed = settings.pop("seed", None)
        if seed is not None and seed in seen:
            raise RunError(f"{folder} has the seed of {seen[seed]} ({seed}): give runs of different seeds")
        seen[seed] = folder
        training |= {"settings": settings, "c_1": None, "c_e": None}  # prices are compared where they are used
        first = first or training
        other = runs.differences(first, training)
        if other:
            raise RunError(f"{folder} is no other seed of {run[0]}: {'; '.join(other[:4])}")


@dataclass(frozen=True)
class Asked:
    """What the flags say."""

    data: str | None
    test: str | None
    c_1: list[float] | None
    c_e: list[float] | None
    bounds: list[RateLimit]
    rule: str | None
    server_run: Path | None


def _evaluate(folder: Path, asked: Asked, out: Path | None) -> list[Evaluation]:
    """One run at every price; pictures of the first into ``out``."""
    import l2h
    from l2h.cli.console import log
    from l2h.costs import cost_grid
    from l2h.experiments import runs
    from l2h.experiments.evaluating import evaluate_system
    from l2h.report import write_run_page

    config = runs.read_config(folder)
    training = config.get("training", {})
    system = l2h.load(folder, **from_files(config), server_run=asked.server_run)
    dataset = data_of(folder, training, asked.data, asked.test)
    prices: list[Costs | None] = [*cost_grid(asked.c_1 or training.get("c_1") or [1.0], _prices(asked, training))]
    if asked.bounds and asked.c_e is None and asked.c_1 is None:
        prices = [None]  # the bound is the price
    results = evaluate_system(system, dataset, prices, asked.bounds or [None], asked.rule)
    if out is not None:
        runs.write_metrics(out, results[0].as_dict())
        write_run_page(results[0].report, dataset, out, settings=training)
        log.info("The page with every number and picture: %s", out / "report.html")
    return results


def _prices(asked: Asked, training: dict[str, Any]) -> list[float]:
    prices: list[float] = asked.c_e or training.get("c_e") or [0.1]
    return prices


def data_of(folder: Path, training: dict[str, Any], data: str | None, test: str | None) -> Dataset:
    """The data named on the command line, or the run's own."""
    import l2h
    from l2h.errors import RunError

    if data is None and "data" not in training:
        raise RunError(f"{folder} does not say what data it was trained on: give --data")
    return l2h.load_dataset(
        data or training["data"],
        test if data else training["test"],
        seed=training.get("settings", {}).get("seed", 0),
        limit=None if data else training["limit"],
    )


def from_files(config: dict[str, Any]) -> dict[str, Any]:
    """The parts that the run does not hold itself but names the file of: a TorchScript client, a fixed server."""
    training, system = config.get("training", {}), config.get("system") or {}
    return {
        part: training[part]
        for part in ("client", "server")
        if system.get(part, {}).get("kind") in ("given", "fixed") and Path(str(training.get(part, ""))).suffix
    }


def _print_spread(by_run: list[list[Evaluation]], as_json: bool) -> None:
    """Mean and spread over runs, a table a price."""
    from l2h.cli.output import grid_table, make_console, print_json
    from l2h.metrics import spread_of_reports
    from l2h.report import spread_table

    merged = [spread_of_reports([results[i].as_dict() for results in by_run]) for i in range(len(by_run[0]))]
    if as_json:
        print_json(merged)
        return
    console = make_console()
    means = []
    for spread, result in zip(merged, by_run[0], strict=True):
        console.print(spread_table(spread, len(by_run)))
        risk = {k: None if v is None else v["mean"] for k, v in spread["risk"].items()}
        accuracy = {k: v["mean"] for k, v in spread["accuracy"].items()}
        rate = spread["reject_rate"]["mean"]
        means.append(result.as_dict() | {"reject_rate": rate, "risk": risk, "accuracy": accuracy})
    if len(means) > 1:
        console.print(grid_table(means))
