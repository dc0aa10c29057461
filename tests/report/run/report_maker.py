"""Realistic reports from seeded random outcomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from l2h import Costs
from l2h.decision import Answerer, AnyCosts, Judgement
from l2h.metrics import Answered, Report, evaluate

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


def make_several(
    n: int = 600, classes: int = 10, *, second_opinion: bool = False, costs: AnyCosts | None = None, seed: int = 0
) -> Report:
    """A client, a student, servers ``box`` (small) and ``cloud`` (large), and heads that know how hard a sample is."""
    rng = np.random.default_rng(seed)
    costs = costs or {"box": Costs(c_e=0.05), "cloud": Costs(c_e=0.2, c_1=1.25)}
    y = rng.integers(classes, size=n)
    easy = rng.normal(0, 1, n)
    means = {"client": (0.62, 1.3), "student": (0.7, 1.0), "box": (0.76, 0.8), "cloud": (0.9, 0.4)}
    chance = {name: _around(mean, slope * easy + rng.normal(0, 1, n)) for name, (mean, slope) in means.items()}
    labels = {name: _answer(rng, y, rng.random(n) < p, classes) for name, p in chance.items()}

    def judged(*names: str) -> Judgement:
        answerers = tuple(Answerer(name, remote=name in ("box", "cloud")) for name in names)
        probability = np.stack([chance[name] for name in names], axis=1)
        return Judgement(probability, probability, answerers)

    def named(judgement: Judgement, remote: npt.NDArray[np.bool_]) -> npt.NDArray[np.str_]:
        return np.array([one.name for one in judgement.answerers])[judgement.choose(costs, remote)]

    def deciding(*names: str) -> npt.NDArray[np.str_]:
        judgement = judged(*names)
        prices = costs if isinstance(costs, Costs) else {name: costs[name] for name in names if name in costs}
        by = np.array(names)[judgement.choose(prices, judgement.remote(prices))]
        return np.asarray(by)

    local = ("client", "student") if second_opinion else ("client",)
    judgement = judged(*local, "box", "cloud")
    other = {"two_ways": ("client",)} if second_opinion else {"three_ways": ("client", "student")}
    alternatives = {name: deciding(*which, "box", "cloud") for name, which in other.items()}
    alternatives |= {name: deciding(*local, name) for name in ("box", "cloud")}
    none, all_ = np.zeros(n, dtype=bool), np.ones(n, dtype=bool)
    return evaluate(
        y=y,
        client_label=labels["client"],
        client_confidence=chance["client"],
        server_probability={name: np.eye(classes)[labels[name]] for name in ("box", "cloud")},
        student_label=labels["student"],
        score=judgement.saving(costs),
        costs=costs,
        answered=Answered(
            judgement.answerers,
            deciding(*local, "box", "cloud"),
            named(judgement, none),
            named(judgement, all_),
            np.where(chance["client"] < 0.5, "box", "client"),
            alternatives,
        ),
        head_probability=judgement.stated,
        class_names=CIFAR if classes == 10 else tuple(f"class {k}" for k in range(classes)),
        dataset="made up",
        seed=seed,
        compute={
            "multiply_adds": {"client": 651_720, "rejector": 640_100, "box": 2_100_000, "cloud": None},
            "budget": None,
        },
    )
