"""``l2h compare`` with several servers: methods for several experts side by side, at every price of a grid."""

import itertools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from l2h import methods
from l2h.budgets import DEFAULT_BUDGET, Budget
from l2h.costs import Costs, FloatArray
from l2h.data import Dataset
from l2h.decision import FREE
from l2h.errors import RunError
from l2h.experiments import runs
from l2h.experiments.carry_out import working
from l2h.experiments.clusters import ClusterWork, RayCluster, reached
from l2h.experiments.compare.seed import SeedStudy, make_bench
from l2h.experiments.plan import check_prices, with_augment
from l2h.methods import Bench, Learned, LearnedRule, Outcomes, Prices, cascade_losses, fit_cascade, fit_together
from l2h.methods.deferral import TwoStageConfidence
from l2h.methods.helping import PricedRule
from l2h.metrics import AnswererChoice, spread
from l2h.system.sizing import size_method
from l2h.training import Context, Progress

log = logging.getLogger("l2h")
CSV, JSON = "several.csv", "several.json"
SCHEMA = 1
NEVER, CASCADE, SECOND_OPINION = "all-local", "cascade", "second-opinion"
OURS, ONE_VS_ALL, TWO_STAGE = methods.DEFAULT, "ova-l2d", "two-stage-confidence"
FIELDS = ("data", "samples", "seed", "prices", "method", "risk", "error", "more", "more_error", "accuracy", "shares")
Pricing = dict[str, Costs]  # by the servers' names
Row = dict[str, Any]


@dataclass(frozen=True)
class SeveralStudy(SeedStudy):
    """What is compared, on what, how often; the prices and the rejector of the plan are of no account."""

    prices: tuple[Pricing, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return what a seed's rows depend on."""
        return self.depends_on(prices=[price_text(pricing) for pricing in self.prices], classes=self.classes)


def price_grid(each: Mapping[str, Sequence[Costs]], servers: Sequence[str]) -> tuple[Pricing, ...]:
    """Return every price of one server with every price of the others; refuse what is not of each server."""
    check_prices(each, servers)
    prices = itertools.product(*(each[name] for name in servers))
    return tuple(dict(zip(servers, some, strict=True)) for some in prices)


def price_text(pricing: Mapping[str, Costs]) -> str:
    """Return prices as they are written: ``box=0.05:1 cloud=0.2:1.25``."""
    return " ".join(f"{name}={costs.c_e:g}:{costs.c_1:g}" for name, costs in pricing.items())


def compare_several(
    study: SeveralStudy,
    folder: Path,
    progress: Progress,
    *,
    augment: str | None,
    command: str,
    force: bool,
    on: str | None = None,
) -> dict[str, Any]:
    """Compare what of a study is not in the folder yet, seed by seed, and return the content of ``several.json``.

    ``on`` is a cluster as :func:`l2h.experiments.clusters.ray_cluster` takes it, which runs a seed per task.
    """
    study = replace(study, plan=with_augment(study.plan, study.load(study.seeds[0]), augment))
    path = folder / CSV
    with reached(on, study.plan.settings) as cluster, runs.kept_alone(folder):
        runs.prepare_study(folder, "several", study.as_dict(), (CSV, JSON), force=force)
        there = {int(row["seed"]) for row in read_several([path])} if path.exists() else set()
        for seed in sorted(there & {*study.seeds}):
            log.info("%s holds seed %d already: not run again", folder, seed)
        left = [seed for seed in study.seeds if seed not in there]
        here = ((seed, _seed_rows(study, seed, progress)) for seed in left)
        for seed, rows in here if cluster is None else _seeds_on(cluster, study, left):
            runs.append_rows(path, FIELDS, ({"seed": seed} | row for row in rows))
            log.info("seed %d done", seed)
    rows = [row for row in read_several([path]) if int(row["seed"]) in study.seeds]
    return _write_summary(sorted(rows, key=lambda row: study.seeds.index(int(row["seed"]))), folder, command)


def _seeds_on(cluster: RayCluster, study: SeveralStudy, seeds: Sequence[int]) -> Iterator[tuple[int, list[Row]]]:
    request = cluster.request(study.plan.settings)
    there = study.on(request)
    works = [ClusterWork(seed, {seed: partial(_seed_rows, there, seed)}) for seed in seeds]
    return ((seed, rows) for seed, _, rows in cluster.run(works, request))


def _seed_rows(study: SeveralStudy, seed: int, progress: Progress | None = None) -> list[Row]:
    plan = study.plan_of(seed)
    with working(plan, progress) as context:
        return _run_seed(replace(study, plan=plan), study.load(seed), context)


def join_several(paths: Sequence[Path], folder: Path, command: str) -> dict[str, Any]:
    """Return the content of ``several.json`` for the rows of several files, and write it into a folder."""
    return _write_summary(read_several(paths), folder, command)


def _write_summary(rows: Sequence[Row], folder: Path, command: str) -> dict[str, Any]:
    summary = summarise_several(rows, command)
    runs.write_json(folder / JSON, summary)
    return summary


def read_several(paths: Sequence[Path]) -> list[Row]:
    """Return the rows of CSV files; raise a :class:`RunError` for one that is missing or not such a table."""
    return [row for path in paths for row in runs.read_rows(path, FIELDS, "a comparison of several servers")]


def summarise_several(rows: Sequence[Row], command: str) -> dict[str, Any]:
    """Return means and spread over seeds as plain values: what ``several.json`` holds."""
    if len({(row["data"], row["samples"]) for row in rows}) != 1:
        raise RunError("these are the rows of no comparison, or of several data sets: name files of one")
    prices, everyone = (list(dict.fromkeys(row[key] for row in rows)) for key in ("prices", "method"))
    cells = []
    for price, method in itertools.product(prices, everyone):
        own = [row for row in rows if (row["prices"], row["method"]) == (price, method)]
        shares = [json.loads(row["shares"]) for row in own]
        more = spread([float(row["more"]) for row in own])
        # Of the difference: over seeds, and over the samples of one, which seeds with one test set share.
        error = float(np.hypot(more.sem or 0.0, np.mean([float(row["more_error"]) for row in own])))
        cells.append(
            {
                "prices": price,
                "method": method,
                **{key: spread([float(row[key]) for row in own]).as_dict() for key in ("risk", "accuracy")},
                "more": more.as_dict() | {"error": error},
                "shares": {name: float(np.mean([share[name] for share in shares])) for name in shares[0]},
            }
        )
    return {
        "schema": SCHEMA,
        "dataset": rows[0]["data"],
        "samples": int(rows[0]["samples"]),
        "seeds": sorted({int(row["seed"]) for row in rows}),
        "default": OURS,
        "prices": prices,
        "methods": everyone,
        "cells": cells,
        "command": command,
    }


class TwoStageAt(TwoStageConfidence):
    """The two-stage method for one price of each server."""

    def __init__(self, pricing: Pricing) -> None:
        self.pricing = tuple(pricing.values())

    def prices(self, costs: Sequence[Costs], device: torch.device, server_accuracy: float) -> Prices:
        return Prices.of_several([self.pricing], device)


def _run_seed(study: SeveralStudy, dataset: Dataset, context: Context) -> list[Row]:
    """Train client, servers and the rejectors of all methods, and return a row per price and method."""
    bench = make_bench(study.plan, dataset, context)
    bench.costs = (FREE,)  # stands for all: it is the judgements that get the prices
    trainings = {name: (_sized(name, bench), bench) for name in (OURS, ONE_VS_ALL)}
    for k, name in enumerate(study.plan.servers):
        one = bench.only(k)
        trainings[f"{name} alone"] = (_sized(OURS, one), one)
    for pricing in study.prices:
        trainings[price_text(pricing)] = (_sized(TwoStageAt(pricing), bench), bench)
    rules = dict(zip(trainings, fit_together(list(trainings.values()), context), strict=True))
    test, held = bench.outcomes(dataset.X_test, dataset.y_test), bench.calibration
    known = np.column_stack([held.client_correct, held.server_correct])
    rows = []
    for pricing in study.prices:
        choices = _choices(rules, bench, test, pricing)
        losses = {name: choice.losses(pricing) for name, choice in choices.items()}
        cascade = fit_cascade(_confidence(held), known, bench.answerers, pricing)
        choices[CASCADE] = replace(choices[OURS], chosen=cascade.choose(_confidence(test)))
        losses[CASCADE] = cascade_losses(choices[CASCADE].correct, choices[CASCADE].chosen, bench.answerers, pricing)
        rows += [
            {"data": dataset.name, "prices": price_text(pricing), "method": name}
            | _figures(choice, losses[name], losses[OURS])
            for name, choice in choices.items()
        ]
    return rows


def _choices(
    rules: Mapping[str, LearnedRule], bench: Bench, test: Outcomes, pricing: Pricing
) -> dict[str, AnswererChoice]:
    """Return who answers at these prices by every method but the cascade."""
    servers = bench.answerers[1:]
    right = np.column_stack([test.client_correct, test.server_correct])
    nobody = AnswererChoice(bench.answerers, right, np.zeros(len(test), dtype=np.intp))
    choices = {NEVER: nobody} | {f"always {server.name}": nobody.always(server) for server in servers}
    for name, rule in ((OURS, OURS), (ONE_VS_ALL, ONE_VS_ALL), (TWO_STAGE, price_text(pricing))):
        judgement = rules[rule].judgement(test.inputs, FREE)
        choices[name] = replace(nobody, chosen=judgement.choose(pricing, judgement.remote(pricing)))
    for k, server in enumerate(servers, start=1):
        judgement = rules[f"{server.name} alone"].judgement(test.inputs, FREE)
        own = {server.name: pricing[server.name]}
        choices[f"{server.name} alone"] = replace(nobody, chosen=k * judgement.choose(own, judgement.remote(own)))
    ours = rules[OURS]
    if isinstance(ours, PricedRule) and ours.rejectors.has_student:
        judgement, label = ours.second_opinion(test.inputs)
        who = judgement.choose(pricing, judgement.remote(pricing))
        choices[SECOND_OPINION] = AnswererChoice(judgement.answerers, np.insert(right, 1, label == test.y, axis=1), who)
    return choices


def _figures(choice: AnswererChoice, losses: FloatArray, ours: FloatArray) -> Row:
    """Return the figures of who answers; ``more`` is how much more it costs than ours, paired by the samples."""
    root = len(losses) ** 0.5
    return {
        "samples": len(losses),
        "risk": round(float(losses.mean()), 6),
        "error": round(float(losses.std() / root), 6),
        "more": round(float((losses - ours).mean()), 6),
        "more_error": round(float((losses - ours).std() / root), 6),
        "accuracy": round(choice.accuracy, 5),
        "shares": json.dumps({name: round(own.share, 5) for name, own in choice.figures().items()}),
    }


def _confidence(outcomes: Outcomes) -> FloatArray:
    """Return (n, 1 + S), the largest probability of the client and of each server."""
    return np.column_stack([outcomes.client.confidence, outcomes.server_probability.max(axis=-1)])


def _sized(method: str | Learned, bench: Bench) -> Learned:
    """Return a method with the net of the default budget for a bench's servers."""
    made = methods.get([method])[0] if isinstance(method, str) else method
    assert isinstance(made, Learned)
    return size_method(made, Budget.parse(DEFAULT_BUDGET), bench.job)
