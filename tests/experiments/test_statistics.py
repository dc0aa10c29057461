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
    rng: np.random.Generator, seeds: int, n: int, a: float, b: float, rest: int = 0
) -> npt.NDArray[np.float64]:
    """(seeds, n), of the same n samples, or of n that each seed takes from ``n + rest``."""
    drawn = np.array([rng.permutation(n + rest)[:n] if rest else np.arange(n) for _ in range(seeds)])
    samples = b * rng.normal(size=n + rest)[drawn]
    return DELTA + a * rng.normal(size=(seeds, 1)) + samples + rng.normal(size=(seeds, n))


def held(seeds: int, a: float, b: float, rest: int, told: int | None) -> float:
    """How often the interval has the true difference, where it is told of so many samples that are not tested."""
    rng = np.random.default_rng(0)
    found = (
        contrast([block_means(one) for one in differences(rng, seeds, 200, a, b, rest)], 200, told) for _ in range(SETS)
    )
    return sum(one.low <= DELTA <= one.high for one in found) / SETS


@pytest.mark.parametrize(
    ("seeds", "a", "b"), [(5, 0.2, 0.5), (3, 0.0, 2.0), (3, 0.5, 0.0), (1, 0.0, 1.0)], ids="{}".format
)
def test_an_interval_holds_as_often_as_it_says(seeds: int, a: float, b: float) -> None:
    """Never less often; more often where the noise of seeds and samples, which both errors see, is all there is."""
    assert 0.95 - TOLERANCE <= held(seeds, a, b, 0, None) <= 0.985


@pytest.mark.parametrize(("seeds", "a", "b"), [(5, 0.05, 1.0), (10, 0.0, 0.5), (10, 0.05, 2.0)])
def test_it_holds_where_each_seed_divides_the_samples_anew(seeds: int, a: float, b: float) -> None:
    """With the overlap of the test sets forgotten, it would not."""
    assert 0.95 - TOLERANCE <= held(seeds, a, b, 300, 300) <= 1.0
    assert held(seeds, a, b, 300, 10**9) < 0.95 - TOLERANCE


def test_the_sampling_error_is_also_that_of_what_all_seeds_divide() -> None:
    """Where seeds add nothing, the mean over them differs from the truth by that alone."""
    rng = np.random.default_rng(3)
    found = [
        contrast([block_means(one) for one in differences(rng, 5, 200, 0.0, 3.0, 300)], 200, 300) for _ in range(SETS)
    ]
    apart = np.std([one.difference - DELTA for one in found])
    assert np.mean([one.sample_error for one in found]) == pytest.approx(apart, rel=0.1)


def test_with_test_sets_that_hardly_overlap_it_is_the_t_test_of_scipy() -> None:
    rng = np.random.default_rng(1)
    data = differences(rng, 4, 90, 0.3, 0.5)
    found = contrast([block_means(one) for one in data], 90, 10**12)
    test = stats.ttest_1samp(data.mean(axis=1), 0)
    assert found.p == pytest.approx(test.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found.seed_error == pytest.approx(stats.sem(data.mean(axis=1)))
    assert found.below == (found.high < 0)


def test_the_sampling_error_is_that_of_the_samples() -> None:
    """Of 40 blocks it is known to about a tenth."""
    losses = np.random.default_rng(2).normal(size=8000)
    found = contrast([block_means(losses)], 8000, None)
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
        found = contrast([np.full(40, value)] * 3, 80, None)
        assert (found.low, found.difference, found.high, found.p) == pytest.approx((value, value, value, p))


def test_holm_steps_down() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_no_losses_are_refused() -> None:
    with pytest.raises(DataError, match="one loss per sample"):
        block_means([])
