"""Intervals of differences: they hold as often as they say, agree with scipy, and Holm is Holm.

The model: on sample i with seed k two methods differ by ``delta + a_k + b_i + e_ki``. Seeds add ``a`` (another
training), samples add ``b`` (an easy or a hard one), and ``e`` is what is left.
"""

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from l2h.errors import DataError
from l2h.experiments.statistics import block_means, block_weights, contrast, holm

DELTA, SETS = 0.3, 400
#: Of a share of 0.95 among 400: three standard deviations.
TOLERANCE = 3 * (0.95 * 0.05 / SETS) ** 0.5


def differences(
    rng: np.random.Generator, seeds: int, n: int, a: float, b: float, shared: bool
) -> npt.NDArray[np.float64]:
    """(seeds, n)"""
    samples = b * rng.normal(size=(1 if shared else seeds, n))
    return DELTA + a * rng.normal(size=(seeds, 1)) + samples + rng.normal(size=(seeds, n))


@pytest.mark.parametrize(
    ("seeds", "a", "b", "shared"),
    [(5, 0.2, 0.5, False), (5, 0.2, 0.5, True), (3, 0.0, 2.0, True), (3, 0.5, 0.0, True), (1, 0.0, 1.0, True)],
)
def test_an_interval_holds_as_often_as_it_says(seeds: int, a: float, b: float, shared: bool) -> None:
    """Never less often; more often where the noise of seeds and samples, which both errors see, is all there is."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(SETS):
        found = contrast(
            [block_means(one) for one in differences(rng, seeds, 200, a, b, shared)], [200] * seeds, shared
        )
        held += found.low <= DELTA <= found.high
    assert 0.95 - TOLERANCE <= held / SETS <= 0.985


def test_with_test_sets_of_their_own_it_is_the_t_test_of_scipy() -> None:
    rng = np.random.default_rng(1)
    data = differences(rng, 4, 90, 0.3, 0.5, shared=False)
    found = contrast([block_means(one) for one in data], [90] * 4, shared=False)
    test = stats.ttest_1samp(data.mean(axis=1), 0)
    assert found.p == pytest.approx(test.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found.seed_error == pytest.approx(stats.sem(data.mean(axis=1)))
    assert found.below == (found.high < 0)


def test_the_sampling_error_is_that_of_the_samples() -> None:
    """Of 40 blocks it is known to about a tenth."""
    losses = np.random.default_rng(2).normal(size=8000)
    found = contrast([block_means(losses)], [8000], shared=True)
    assert found.sample_error == pytest.approx(losses.std(ddof=1) / 8000**0.5, rel=0.3)
    assert found.seed_error is None
    assert found.difference == pytest.approx(losses.mean())


@pytest.mark.parametrize("n", [1, 7, 40, 41, 999])
def test_blocks_keep_the_mean(n: int) -> None:
    losses = np.random.default_rng(n).random(n)
    means = block_means(losses)
    assert len(means) == len(block_weights(n)) == min(40, n)
    assert block_weights(n) @ means == pytest.approx(losses.mean())


def test_differences_that_are_all_the_same_have_no_width() -> None:
    for value, p in ((0.0, 1.0), (0.5, 0.0)):
        found = contrast([np.full(40, value)] * 3, [80] * 3, shared=True)
        assert (found.low, found.difference, found.high, found.p) == pytest.approx((value, value, value, p))


def test_holm_steps_down() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_no_losses_are_refused() -> None:
    with pytest.raises(DataError, match="one loss per sample"):
        block_means([])
