"""Samples, prices and benches made by hand: what a method's loss and a method's rule look at, with nothing trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from l2h import methods
from l2h.classifiers import ClassifierAnswers
from l2h.costs import Costs, FloatArray
from l2h.decision import TWO
from l2h.methods import Bench, Learned, Outcomes, Prices
from l2h.models import client_view
from l2h.training import SamplePool

Labels = npt.NDArray[np.int64]
CPU = torch.device("cpu")
LEARNED = [method.name for method in methods.get(methods.known()) if isinstance(method, Learned)]


def learned(name: str) -> Learned:
    """The named method."""
    (method,) = methods.get([name])
    assert isinstance(method, Learned)
    return method


@dataclass(frozen=True)
class TrainedFor:
    """The prices of as many rejectors, and how often the server is right on held-out samples."""

    costs: tuple[Costs, ...]
    server_accuracy: float = 0.5

    def tensors(self, name: str = "two-stage-separate") -> Prices:
        """What the loss of a method is given."""
        return learned(name).prices(self.costs, CPU, self.server_accuracy)


def prices_of(costs: Sequence[Costs]) -> TrainedFor:
    """For as many rejectors as there are costs."""
    return TrainedFor(tuple(costs))


def loss_of(method: Learned, scores: torch.Tensor, pool: SamplePool, prices: TrainedFor) -> torch.Tensor:
    """Losses (R, n) by the method's objective."""
    specs = method.specs(prices.costs)
    specs = specs * len(scores) if method.any_price else specs
    return method.objective(specs, CPU, prices.server_accuracy)(scores, pool)


def score_of(method: Learned, numbers: npt.NDArray[np.float32], client: ClassifierAnswers, costs: Costs) -> FloatArray:
    """What asking saves by a rejector's outputs (n, 2)."""
    return method.judgement(method.specs([costs])[0], numbers, client.log_probability).saving(costs)


def answers(
    probability: npt.ArrayLike, label: npt.ArrayLike | None = None, has_scores: bool = True
) -> ClassifierAnswers:
    """A client that states these probabilities (n, K); its labels are the likeliest ones where none are given."""
    p = np.asarray(probability, dtype=np.float64)
    labels = p.argmax(axis=1) if label is None else np.asarray(label)
    return ClassifierAnswers(labels.astype(np.int64), np.log(p).astype(np.float32), None, has_scores)


def make_pool(
    y: npt.ArrayLike,
    client_probability: npt.ArrayLike,
    server_probability: npt.ArrayLike,
    *,
    client_label: npt.ArrayLike | None = None,
    client_target: npt.ArrayLike | None = None,
    server_target: npt.ArrayLike | None = None,
    dtype: torch.dtype = torch.float64,
) -> SamplePool:
    """Samples with what client and server say of them.

    The labels are the likeliest ones and the targets whether they are right, where none are given.
    """
    truth = torch.as_tensor(np.asarray(y, dtype=np.int64))
    client = torch.as_tensor(np.asarray(client_probability, dtype=np.float64))
    server = torch.as_tensor(np.asarray(server_probability, dtype=np.float64))
    label = client.argmax(-1) if client_label is None else torch.as_tensor(np.asarray(client_label, dtype=np.int64))
    client_right, server_right = label == truth, server.argmax(-1) == truth
    return SamplePool(
        x=torch.zeros(len(truth), 1),
        view=client_view(torch.log(client)).to(dtype),
        y=truth,
        client_correct=client_right,
        server_correct=server_right,
        server_probability=server.to(dtype),
        client_target=_target(client_right, client_target).to(dtype),
        server_target=_target(server_right, server_target).to(dtype),
        teacher=server.to(dtype),
    )


def bench_of(calibration: Outcomes, costs: Sequence[Costs], seed: int = 0) -> Bench:
    """What rules look at of a bench, without one: nothing is trained."""
    context = SimpleNamespace(device=CPU)
    known = {"calibration": calibration, "costs": tuple(costs), "seed": seed, "context": context, "answerers": TWO}
    return cast(Bench, SimpleNamespace(**known))


def outcomes_of(
    y: npt.ArrayLike, client: ClassifierAnswers, server_probability: npt.ArrayLike, X: npt.ArrayLike | None = None
) -> Outcomes:
    """What client and server say of samples, and the truth."""
    truth = np.asarray(y, dtype=np.int64)
    log_p = np.log(np.asarray(server_probability, dtype=np.float64)).astype(np.float32)
    inputs = np.zeros((len(truth), 1), dtype=np.float32) if X is None else np.asarray(X)
    return Outcomes(inputs, truth, client, log_p)


def outcomes_by_right(client_correct: npt.ArrayLike, server_correct: npt.ArrayLike, X: npt.ArrayLike) -> Outcomes:
    """Outcomes of two classes in which just these answers are right."""
    client_right, server_right = np.asarray(client_correct, dtype=bool), np.asarray(server_correct, dtype=bool)
    sure = np.array([[0.9, 0.1], [0.1, 0.9]])  # the row of the class that is named
    client = answers(sure[np.where(client_right, 0, 1)])
    return outcomes_of(np.zeros(len(client_right)), client, sure[np.where(server_right, 0, 1)], X)


@dataclass(frozen=True)
class World:
    """A law over (x, y) on finitely many x: everything that is expected can be added up.

    The server is the Bayes classifier, and its softmax is the posterior.

    Attributes:
        posterior: (n, K), the true class probabilities of each x.
        client_probability: (n, K), what the client says they are.
        client_label: int (n,), the client's answers.
    """

    posterior: FloatArray
    client_probability: FloatArray
    client_label: Labels

    def __len__(self) -> int:
        return len(self.posterior)

    @property
    def num_classes(self) -> int:
        return self.posterior.shape[1]

    @property
    def client_right(self) -> FloatArray:
        """P(m = y | x), (n,)."""
        return self.posterior[np.arange(len(self)), self.client_label]

    @property
    def server_right(self) -> FloatArray:
        """P(e = y | x), (n,)."""
        return self.posterior.max(axis=1)

    @property
    def client(self) -> ClassifierAnswers:
        return answers(self.client_probability, self.client_label)

    def remote_loss(self, costs: Costs) -> FloatArray:
        """What asking costs at each x, expected."""
        return costs.c_e + costs.c_1 * (1 - self.server_right)

    def clear(self, costs: Costs, by: float) -> npt.NDArray[np.bool_]:
        """Where the expected losses of the two sides differ by more than ``by``."""
        return np.abs((1 - self.client_right) - self.remote_loss(costs)) > by

    def enumerated(self) -> tuple[SamplePool, torch.Tensor]:
        """Every pair (x, y) as a sample, y fastest, and the probability (n, K) of y given x."""
        n, K = self.posterior.shape
        each = np.repeat(np.arange(n), K)
        pool = make_pool(
            np.tile(np.arange(K), n),
            self.client_probability[each],
            self.posterior[each],
            client_label=self.client_label[each],
        )
        return pool, torch.as_tensor(self.posterior)


def make_world(seed: int, n: int = 24, num_classes: int = 3, *, client: str = "any") -> World:
    """A random law.

    ``client``: ``any`` says something of its own, often right, often overconfident; ``posterior`` states the posterior.
    """
    rng = np.random.default_rng([seed, n, num_classes])
    sharpness = rng.choice([0.2, 1.0, 5.0], size=n)
    posterior = np.stack([rng.dirichlet(np.full(num_classes, s)) for s in sharpness])
    # No class is impossible: losses then have their minimum at finite scores.
    posterior = 0.98 * posterior + 0.02 / num_classes
    if client == "posterior":
        return World(posterior, posterior, posterior.argmax(axis=1))
    stated = np.stack([rng.dirichlet(np.full(num_classes, 0.3)) for _ in range(n)])
    stated = 0.98 * np.where(rng.random((n, 1)) < 0.5, posterior**3, stated) + 0.02 / num_classes
    stated /= stated.sum(axis=1, keepdims=True)
    return World(posterior, stated, stated.argmax(axis=1))


def _target(right: torch.Tensor, given: npt.ArrayLike | None) -> torch.Tensor:
    return right.double() if given is None else torch.as_tensor(np.asarray(given, dtype=np.float64))
