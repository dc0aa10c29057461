"""Small data and plans, benches made from them, and twins of a bench whose outcomes are dealt out anew."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l2h.data import Dataset
from l2h.experiments.compare.seed import make_bench
from l2h.experiments.plan import Plan
from l2h.methods import Bench, Outcomes
from l2h.settings import Settings, StageSettings
from l2h.training import Context, SamplePool, repeatable

CPU = torch.device("cpu")


def clouds(classes: int, train: int = 360, test: int = 150, features: int = 6) -> Dataset:
    """Overlapping clouds of vectors."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, features)) * 0.9
    y = rng.integers(0, classes, train + test)
    X = (centres[y] + rng.normal(size=(len(y), features))).astype(np.float32)
    names = tuple(f"cloud {k}" for k in range(classes))
    return Dataset("clouds", X[:train], y[:train], X[train:], y[train:], names)


def spots(classes: int, train: int = 400, test: int = 100) -> Dataset:
    """Images of 8 by 8 pixels with a spot that is somewhere else for each class, under much noise."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, classes, train + test)
    X = rng.normal(110, 45, size=(len(y), 1, 8, 8))
    rows, columns = 1 + 4 * (y // 2 % 2), 1 + 4 * (y % 2)
    for i in range(len(y)):
        X[i, 0, rows[i] : rows[i] + 2, columns[i] : columns[i] + 2] += 90
    X = X.clip(0, 255).astype(np.uint8)
    names = tuple(f"spot {k}" for k in range(classes))
    return Dataset("spots", X[:train], y[:train], X[train:], y[train:], names, augment="shift")


def clouds_plan(*, rejector_epochs: int = 8, rejector_options: dict[str, Any] | None = None, **settings: Any) -> Plan:
    """Perceptrons for clouds: a client that saw little, a server, two prices."""
    stage = StageSettings(epochs=10, batch=32, lr=1e-2)
    return Plan(
        data="clouds",
        client="mlp",
        client_share=0.25,
        calibration=0.2,
        server="mlp",
        c_1=(1.0,),
        c_e=(0.05, 0.2),
        client_options={"hidden": [4]},
        server_options={"hidden": [24]},
        rejector_options={"width": 0.25} if rejector_options is None else rejector_options,
        settings=Settings(
            **{
                "device": "cpu",
                "folds": 2,
                "threads": 1,
                "server": stage,
                "rejector": replace(stage, epochs=rejector_epochs),
                **settings,
            }
        ),
    )


def spots_plan(*, rejector_epochs: int = 5, **settings: Any) -> Plan:
    """Small convolutional nets for spots, with a holdout and changed copies of what the server was fitted to."""
    stage = StageSettings(epochs=8, batch=32, lr=5e-3)
    return Plan(
        data="spots",
        client="tree",
        client_share=0.3,
        calibration=0.2,
        server="lenet5",
        c_1=(1.0,),
        c_e=(0.05, 0.2),
        client_options={"max_depth": 3},
        rejector_options={"width": 0.5},
        settings=Settings(
            **{
                "device": "cpu",
                "honest": "holdout",
                "holdout": 0.4,
                "augment": "shift",
                "copies": 2,
                "threads": 1,
                "server": stage,
                "rejector": replace(stage, epochs=rejector_epochs),
                **settings,
            }
        ),
    )


def make(plan: Plan, dataset: Dataset) -> Bench:
    """A fresh bench."""
    with repeatable(plan.settings, CPU):
        return make_bench(plan, dataset, Context(plan.settings, CPU))


@cache
def clouds_bench(classes: int) -> Bench:
    """One bench of clouds for all tests of a process; to be left as it is."""
    return make(clouds_plan(), clouds(classes))


@cache
def clouds_test(classes: int) -> Outcomes:
    """Its test samples."""
    data = clouds(classes)
    return clouds_bench(classes).outcomes(data.X_test, data.y_test)


# Twins of a bench. All shares stay as they are: only which sample has which outcome is dealt out anew.


def same_again(bench: Bench) -> Bench:
    """A twin with copies of the same outcomes."""
    return _twin(bench, lambda pool, deal: pool.at(torch.arange(len(pool))), lambda held, deal: held)


def client_dealt_anew(bench: Bench) -> Bench:
    """A twin in which the client's answers, and whether they are right, belong to other samples."""

    def pool(before: SamplePool, deal: Tensor) -> SamplePool:
        return replace(
            before,
            view=before.view[deal],
            client_correct=before.client_correct[deal],
            client_target=before.client_target[deal],
        )

    def calibration(held: Outcomes, deal: Tensor) -> Outcomes:
        # A sample of another class takes over whether the answer is right by an exchange of the two labels.
        rows = deal.numpy()
        answers = held.client.at(rows)
        log_p = _exchanged(answers.log_probability, held.y[rows], held.y)
        client = replace(answers, log_probability=log_p, label=log_p.argmax(axis=1))
        return Outcomes(held.X, held.y, client, held.server_log_probability)

    return _twin(bench, pool, calibration)


def server_dealt_anew(bench: Bench) -> Bench:
    """A twin in which the server is right on other samples, as often and as surely as before."""

    def pool(before: SamplePool, deal: Tensor) -> SamplePool:
        there, here = before.y[deal].numpy(), before.y.numpy()
        return replace(
            before,
            server_correct=before.server_correct[deal],
            server_target=before.server_target[deal],
            server_probability=torch.from_numpy(_exchanged(before.server_probability[deal].numpy(), there, here)),
            teacher=torch.from_numpy(_exchanged(before.teacher[deal].numpy(), there, here)),
        )

    def calibration(held: Outcomes, deal: Tensor) -> Outcomes:
        rows = deal.numpy()
        log_p = _exchanged(held.server_log_probability[rows], held.y[rows], held.y)
        return Outcomes(held.X, held.y, held.client, log_p)

    return _twin(bench, pool, calibration)


def _twin(bench: Bench, pool: Any, calibration: Any) -> Bench:
    def deal(samples: int, seed: int) -> Tensor:
        return torch.from_numpy(np.random.default_rng(seed).permutation(samples))

    twin = copy.copy(bench)
    twin.unseen = pool(bench.unseen, deal(len(bench.unseen), 11))
    twin.soft = pool(bench.soft, deal(len(bench.soft), 12))
    twin.pools = replace(bench.pools, stopping=pool(bench.pools.stopping, deal(len(bench.pools.stopping), 13)))
    twin.calibration = calibration(bench.calibration, deal(len(bench.calibration), 14))
    return twin


def _exchanged(values: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Rows (n, K) in which the columns ``one`` and ``other`` of each row have changed places."""
    out, rows = values.copy(), np.arange(len(values))
    out[rows, one], out[rows, other] = values[rows, other], values[rows, one]
    return out


def reordered(one: np.ndarray, other: np.ndarray) -> float:
    """Share of the pairs of inputs that two scores do not put in the same order: 0 for the same ranking."""
    first, second = (np.sign(score[:, None] - score[None, :]) for score in (one, other))
    return float((first != second).mean())
