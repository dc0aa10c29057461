"""Classifiers that are functions of the user: any callable, and callables that draw their answers."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from l2h.classifiers.base import Classifier
from l2h.classifiers.reading import Array


class CallableClassifier(Classifier):
    """Any function of a batch that returns scores (n, K) or integer labels (n,).

    It gets the array just as it was given to ``fit`` or ``predict``. What it holds cannot be seen from outside.
    """

    kind = "callable"

    def __init__(self, function: Callable[[Array], Any]) -> None:
        super().__init__()
        self.function = function

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        return _to_numpy(self.function(X)), None

    def weights(self) -> list[bytes]:
        return []


class StochasticClient(Classifier):
    """A classifier whose answer to an input is a random variable.

    One answer per input is drawn, by a generator seeded with ``(seed, the input's bytes)``, and is the client's answer
    to that input from then on: in training, in evaluation, in whatever batch it comes. The rejector sees the very draw
    that the user would get, so ``q_m`` is the chance that *this* answer is right. Another ``seed`` is another draw for
    every input.

    Args:
        sample: called as ``sample(x, rng)`` with a batch of one and a ``numpy.random.Generator``; returns scores
            (1, K) or labels (1,).
        seed: of the draws.

    Example:
        >>> def noisy(x, rng):
        ...     return x.reshape(1, -1) + rng.normal(size=(1, x.size))
        >>> client = StochasticClient(noisy, seed=1)
        >>> X = np.zeros((3, 4), dtype=np.float32)
        >>> bool((client.answers(X, 4).label == client.answers(X[::-1], 4).label[::-1]).all())
        True
    """

    kind = "stochastic client"

    def __init__(self, sample: Callable[[Array, np.random.Generator], Any], seed: int = 0) -> None:
        super().__init__()
        self.sample = sample
        self.seed = seed

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        return np.concatenate([_to_numpy(self.sample(X[i : i + 1], self._rng(X[i]))) for i in range(len(X))]), None

    def weights(self) -> list[bytes]:
        """Return the seed: what the function holds cannot be seen."""
        return [str(self.seed).encode()]

    def _rng(self, x: Array) -> np.random.Generator:
        key = hashlib.sha256(str(self.seed).encode() + np.ascontiguousarray(x).tobytes()).digest()
        return np.random.default_rng(np.frombuffer(key, dtype=np.uint32))


def _to_numpy(value: Any) -> Array:
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
