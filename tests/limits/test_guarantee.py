"""What the guarantee of a share needs of the calibration samples: how often it is broken over many draws of them.

The law is that of drawing from a fixed population, so the true rate of a cut is a mean over all of it.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from l2h.limits import guaranteed_threshold
from l2h.metrics import fit_platt

Floats = npt.NDArray[np.float64]
POPULATION, N, Q, CONFIDENCE = 4000, 100, 0.2, 0.95
ALLOWED = 1 - CONFIDENCE


def share_broken(scores_of: Callable[[np.random.Generator], tuple[Floats, npt.NDArray[np.intp]]], draws: int) -> float:
    """How often the true rate exceeds the bound; a draw gives the scores of all, and the rows to calibrate on."""
    rng = np.random.default_rng(0)
    broken = 0
    for _ in range(draws):
        scores, rows = scores_of(rng)
        broken += bool((scores > guaranteed_threshold(scores[rows], Q, CONFIDENCE).value).mean() > Q)
    return broken / draws


def error(draws: int) -> float:
    """Three standard errors of a share of 5%."""
    return 3 * math.sqrt(ALLOWED * CONFIDENCE / draws)


@pytest.mark.long
def test_scale_and_shift_may_come_from_the_same_samples_as_the_threshold() -> None:
    """Two heads whose logits are too large and shifted; the saving is the difference of their probabilities."""
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(POPULATION, 2)) @ np.array([[1.2, 0.4], [0.0, 0.9]]) + np.array([0.6, 1.8])
    chance = 1 / (1 + np.exp(-(0.6 * logits + np.array([-0.2, 0.1]))))

    def saving(platt: list[tuple[float, float]]) -> Floats:
        client, server = (1 / (1 + np.exp(-(a * logits[:, k] + b))) for k, (a, b) in enumerate(platt))
        return server - client

    def draw(rng: np.random.Generator, split: bool) -> tuple[Floats, npt.NDArray[np.intp]]:
        rows = rng.integers(POPULATION, size=N)
        fitted = rng.integers(POPULATION, size=N) if split else rows
        right = rng.random((N, 2)) < chance[fitted]
        return saving([fit_platt(logits[fitted, k], right[:, k]) for k in (0, 1)]), rows

    draws = 500
    same, apart = (share_broken(lambda rng, split=split: draw(rng, split), draws) for split in (False, True))
    assert max(same, apart) <= ALLOWED + error(draws)
    assert abs(same - apart) <= math.sqrt(2) * error(draws)


def test_samples_that_choose_the_rejector_break_the_guarantee_and_others_do_not() -> None:
    """Forty rejectors of equal worth, as an epoch each leaves one. A high score is a loss wherever the client is right.

    The one that scores these samples lowest is chosen, so its scores on others are higher than on these.
    """
    scores = np.random.default_rng(2).random((40, POPULATION))

    def draw(rng: np.random.Generator, split: bool) -> tuple[Floats, npt.NDArray[np.intp]]:
        stopping, rows = rng.integers(POPULATION, size=(2, N))
        best = int((-np.log1p(-scores[:, stopping])).mean(axis=1).argmin())
        return scores[best], rows if split else stopping

    draws = 1000
    assert share_broken(lambda rng: draw(rng, True), draws) <= ALLOWED + error(draws)
    assert share_broken(lambda rng: draw(rng, False), draws) > 3 * ALLOWED
