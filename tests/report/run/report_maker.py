"""Realistic reports from seeded random outcomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from l2h import Costs
from l2h.metrics import Report, evaluate

CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def make_report(
    n: int = 600,
    classes: int = 10,
    *,
    costs: Costs | None = None,
    rate: float | None = None,
    skill: float = 1.0,
    heads: bool = True,
    confidence: bool = True,
    names: tuple[str, ...] | None = None,
    absent: tuple[int, ...] = (),
    client_accuracy: float = 0.64,
    server_accuracy: float = 0.78,
    seed: int = 0,
) -> Report:
    """A client and a server of these accuracies, and a rejector that sees how hard a sample is.

    Args:
        n: samples.
        classes: how many.
        costs: the prices.
        rate: share to send; the Bayes rule on the heads where it is ``None``.
        skill: 1 where the rejector ranks well, 0 where at random, -1 where backwards.
        heads: whether the rejector states probabilities.
        confidence: whether the confidence rule was measured.
        names: of the classes.
        absent: classes with no samples.
        client_accuracy: on average.
        server_accuracy: on average.
        seed: of all of it.
    """
    rng = np.random.default_rng(seed)
    costs = costs or Costs(c_e=0.1, c_1=1.0)
    present = np.setdiff1d(np.arange(classes), absent)
    y = rng.choice(present, size=n)
    easy = np.clip(rng.normal(0, 1, n) + 0.5 * np.sin(y), -3, 3)
    p_client = _around(client_accuracy, 1.3 * easy)
    p_server = _around(server_accuracy, 0.6 * easy)
    client_label = _answer(rng, y, rng.random(n) < p_client, classes)
    server_label = _answer(rng, y, rng.random(n) < p_server, classes)
    sure = rng.beta(6, 2, n) * 0.6 + 0.35
    server_probability = np.full((n, classes), ((1 - sure) / (classes - 1))[:, None])
    server_probability[np.arange(n), server_label] = sure
    q_m = _around(float(client_accuracy), 1.2 * easy + rng.normal(0, 0.7, n))
    q_e = np.clip(p_server + rng.normal(0, 0.04, n), 0.01, 0.99)
    saving = (1 - q_m) - costs.c_e - costs.c_1 * (1 - q_e)
    score = skill * saving + (1 - abs(skill)) * rng.normal(0, 1, n)
    remote = score >= 0 if rate is None else _most(score, rate)
    doubt = -np.clip(q_m + rng.normal(0, 0.15, n), 0, 1)
    return evaluate(
        y=y,
        client_label=client_label,
        client_confidence=-doubt,
        server_probability=server_probability,
        remote=remote,
        score=score,
        costs=costs,
        confidence_remote=doubt > -0.6 if confidence else None,
        head_probability={"client": q_m, "server": q_e} if heads else {},
        class_names=names or (CIFAR if classes == 10 else tuple(f"class {k}" for k in range(classes))),
        dataset="made up",
        seed=seed,
    )


def make_images(n: int, channels: int, size: int = 32, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Smooth random pictures, uint8 (n, C, H, W)."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (n, channels, 8, 8), dtype=np.uint8)
    return np.kron(coarse, np.ones((1, 1, size // 8, size // 8), dtype=np.uint8))


def make_history(stages: tuple[str, ...] = ("server", "rejector"), epochs: int = 8) -> list[dict[str, Any]]:
    """Falling losses; the last stage has none held out, as a CSV file would say it."""
    return [
        {
            "stage": stage,
            "epoch": epoch,
            "train_loss": 2.0 * 0.8**epoch + 0.05 * k,
            "held_out_loss": "" if stage == stages[-1] else 2.1 * 0.85**epoch + 0.05 * k,
        }
        for k, stage in enumerate(stages)
        for epoch in range(1, epochs + 1)
    ]


def _around(mean: float, shift: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Probabilities that follow ``shift`` and have this mean, by bisection on the offset."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        if float((1 / (1 + np.exp(-(shift + middle)))).mean()) < mean:
            low = middle
        else:
            high = middle
    return 1 / (1 + np.exp(-(shift + low)))


def _answer(
    rng: np.random.Generator, y: npt.NDArray[np.int64], right: npt.NDArray[np.bool_], classes: int
) -> npt.NDArray[np.int64]:
    other = (y + rng.integers(1, classes, len(y))) % classes
    return np.where(right, y, other)


def _most(score: npt.NDArray[np.float64], rate: float) -> npt.NDArray[np.bool_]:
    remote = np.zeros(len(score), dtype=bool)
    remote[np.argsort(-score)[: round(rate * len(score))]] = True
    return remote
