"""The paired bootstrap: its spread is that of the theory, and its intervals hold as often as they say.

The model behind every test: on sample i with seed k two methods differ by ``delta + a_k + b_i + e_ki``. Seeds add
``a`` (another training), samples add ``b`` (an easy or a hard one), and ``e`` is what is left. With test samples of
each seed's own there is no common ``b``.
"""

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from l2h.errors import DataError
from l2h.metrics import bootstrap_means, interval

Array = npt.NDArray[np.float64]
#: Data sets simulated at once, one a column. Columns share the draws, not the data, so their intervals are independent
#: but for the error of the draws themselves.
SETS, DRAWS = 600, 600
DELTA = 0.3
#: Of a share of 0.95 among SETS: three standard deviations, 0.027, and 0.01 for what 600 draws and 40 seeds leave.
TOLERANCE = 3 * math.sqrt(0.95 * 0.05 / SETS) + 0.01


def make_sets(seeds: int, n: int, *, a: float, b: float, e: float, common: bool, seed: int, sets: int = SETS) -> Array:
    """(seeds, n, sets): differences of two methods in each data set, with standard deviations a, b and e."""
    rng = np.random.default_rng(seed)
    training = a * rng.normal(size=(seeds, 1, sets))
    sample = b * rng.normal(size=(1 if common else seeds, n, sets))
    return DELTA + training + sample + e * rng.normal(size=(seeds, n, sets))


def intervals(data: Array, shared: bool) -> tuple[Array, Array]:
    """The ends of the 95% interval of every data set."""
    draws = bootstrap_means(list(data), draws=DRAWS, shared=shared)
    means = data.mean(axis=(0, 1))
    found = [interval(draws[:, k], means[k]) for k in range(data.shape[2])]
    return np.array([one.low for one in found]), np.array([one.high for one in found])


def coverage(data: Array, shared: bool) -> float:
    low, high = intervals(data, shared)
    return float(((low <= DELTA) & (high >= DELTA)).mean())


def parts(data: Array) -> tuple[Array, Array, Array]:
    """Variances (M,) of the seeds' means, of the samples' means, and of what is left."""
    mean = data.mean(axis=(0, 1))
    by_seed, by_sample = data.mean(axis=1) - mean, data.mean(axis=0) - mean
    rest = data - mean - by_seed[:, None] - by_sample[None]
    return (by_seed**2).mean(axis=0), (by_sample**2).mean(axis=0), (rest**2).mean(axis=(0, 1))


@pytest.mark.parametrize("shared", [False, True])
def test_a_constant_difference_has_an_interval_of_no_width(shared: bool) -> None:
    rng = np.random.default_rng(0)
    losses = [np.stack([base, base + 0.25], axis=1) for base in rng.normal(size=(3, 50))]
    draws = bootstrap_means(losses, draws=500, shared=shared)
    found = interval(draws[:, 1] - draws[:, 0], 0.25)
    # Means of 50 numbers of the order of 1.
    assert (found.low, found.high) == pytest.approx((0.25, 0.25), abs=1e-12)
    # The columns themselves do spread.
    assert np.ptp(draws[:, 0]) > 0.1


@pytest.mark.parametrize("shared", [False, True])
def test_draws_centre_on_the_mean_of_the_seeds(shared: bool) -> None:
    data = make_sets(5, 40, a=1.0, b=1.0, e=1.0, common=shared, seed=1, sets=20)
    draws = bootstrap_means(list(data), draws=4000, shared=shared)
    error = draws.std(axis=0) / math.sqrt(4000)
    # Twenty means, each within four standard errors of its draws.
    assert (np.abs(draws.mean(axis=0) - data.mean(axis=(0, 1))) < 4 * error).all()


def test_seeds_count_alike_however_many_samples_each_has() -> None:
    losses = [np.zeros((8, 1)), np.ones((1024, 1))]  # powers of two: means are exact
    draws = bootstrap_means(losses, draws=4000)
    # Two seeds of two: both the first, one of each, both the second, as 1 : 2 : 1.
    values, counts = np.unique(draws[:, 0], return_counts=True)
    assert values.tolist() == [0.0, 0.5, 1.0]
    # Four standard deviations of a share of 4000.
    assert counts / 4000 == pytest.approx([0.25, 0.5, 0.25], abs=4 * math.sqrt(0.25 / 4000))


def test_the_spread_of_samples_of_each_seeds_own_is_that_of_the_theory() -> None:
    data = make_sets(6, 30, a=0.2, b=1.0, e=0.5, common=False, seed=2, sets=40)
    draws = bootstrap_means(list(data), draws=4000)
    # Each of S slots draws a seed, then n of its samples: the two variances add, and the mean of S slots has 1/S.
    within = data.var(axis=1).mean(axis=0) / 30
    theory = (data.mean(axis=1).var(axis=0) + within) / 6
    # A variance from 4000 draws is off by sqrt(2 / 4000), 2.2%, as standard deviation; forty within four of them.
    np.testing.assert_allclose(draws.var(axis=0), theory, rtol=4 * math.sqrt(2 / 4000))


def test_the_spread_of_shared_samples_is_that_of_the_theory() -> None:
    data = make_sets(6, 30, a=0.2, b=1.0, e=0.5, common=True, seed=3, sets=40)
    draws = bootstrap_means(list(data), draws=4000, shared=True)
    by_seed, by_sample, rest = parts(data)
    theory = by_seed / 6 + by_sample / 30 + rest / (6 * 30)
    np.testing.assert_allclose(draws.var(axis=0), theory, rtol=4 * math.sqrt(2 / 4000))


@pytest.mark.parametrize("shared", [False, True])
def test_the_interval_of_one_seed_holds_as_often_as_it_says(shared: bool) -> None:
    data = make_sets(1, 120, a=0.0, b=0.6, e=0.8, common=True, seed=4)
    assert abs(coverage(data, shared) - 0.95) <= TOLERANCE


def test_the_interval_over_many_seeds_holds_as_often_as_it_says() -> None:
    # Seeds that differ more than the mean over their samples does: their spread is the error.
    data = make_sets(40, 25, a=1.0, b=0.5, e=0.0, common=False, seed=5)
    assert abs(coverage(data, shared=False) - 0.95) <= TOLERANCE


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_over_a_few_seeds_that_differ_by_more_than_their_samples_the_interval_is_too_narrow(seeds: int) -> None:
    # With the seeds' spread as the only error the interval is 1.96 of their standard errors, without the correction by
    # S / (S - 1), where Student's quantile of S - 1 degrees of freedom would be due: known of every bootstrap.
    data = make_sets(seeds, 10, a=1.0, b=0.01, e=0.0, common=False, seed=14)
    theory = 1 - 2 * stats.t.sf(1.96 * math.sqrt((seeds - 1) / seeds), seeds - 1)
    assert theory < 0.91
    # Three standard deviations of such a share among SETS, and 0.02 for the few values that draws of 3 seeds have.
    assert abs(coverage(data, shared=False) - theory) <= 3 * math.sqrt(theory * (1 - theory) / SETS) + 0.02


def test_the_interval_over_shared_samples_holds_as_often_as_it_says() -> None:
    # Errors of seeds and of samples of one size: 0.5 / sqrt(40) and 0.8 / sqrt(100).
    data = make_sets(40, 100, a=0.5, b=0.8, e=0.4, common=True, seed=6)
    assert abs(coverage(data, shared=True) - 0.95) <= TOLERANCE


@pytest.mark.parametrize("shared", [False, True])
def test_where_seeds_differ_by_their_samples_alone_the_interval_is_too_wide_and_never_too_narrow(shared: bool) -> None:
    # Noise alone, of variance v a mean. It is counted among the seeds' means and again within them; with shared samples
    # once more, among the samples' means. So the draws' variance is 2v or 3v (Owen 2007), but for 1/S and 1/n.
    seeds, n = 12, 60
    data = make_sets(seeds, n, a=0.0, b=0.0, e=1.0, common=shared, seed=7)
    assert coverage(data, shared) >= 0.95 - TOLERANCE
    draws = bootstrap_means(list(data), draws=DRAWS, shared=shared)
    of_seeds, of_samples = 1 - 1 / seeds, 1 - 1 / n
    theory = of_seeds + of_samples + (of_seeds * of_samples if shared else 0)
    # The mean of 600 variances, each off by 6% as standard deviation.
    assert draws.var(axis=0).mean() * seeds * n == pytest.approx(theory, rel=0.03)


def test_what_all_seeds_find_hard_widens_the_interval_of_shared_samples() -> None:
    # Samples of every seed's own would average b over S * n samples, shared ones only over n.
    seeds = 9
    data = make_sets(seeds, 60, a=0.0, b=1.0, e=0.05, common=True, seed=8, sets=50)
    low, high = intervals(data, shared=True)
    own_low, own_high = intervals(data, shared=False)
    ratio = float(np.mean(high - low) / np.mean(own_high - own_low))
    # Widths of 600 draws are off by some 4%, and their mean over 50 sets by less.
    assert ratio == pytest.approx(math.sqrt(seeds), rel=0.05)


def test_shared_samples_taken_for_separate_ones_promise_too_much() -> None:
    data = make_sets(9, 60, a=0.0, b=1.0, e=0.05, common=True, seed=9)
    assert abs(coverage(data, shared=True) - 0.95) <= TOLERANCE
    # A third of the width: 2 * Phi(1.96 / 3) - 1 is 0.49.
    assert coverage(data, shared=False) < 0.6


@pytest.mark.parametrize("shared", [False, True])
def test_pairing_makes_the_interval_narrower(shared: bool) -> None:
    rng = np.random.default_rng(10)
    hard = rng.normal(size=(4, 80, 1)) if not shared else np.repeat(rng.normal(size=(1, 80, 1)), 4, axis=0)
    losses = hard + np.array([0.0, 0.1]) + 0.2 * rng.normal(size=(4, 80, 2))
    draws = bootstrap_means(list(losses), draws=4000, shared=shared)
    elsewhere = bootstrap_means(list(losses), draws=4000, shared=shared, seed=1)
    difference = float(np.diff(losses.mean(axis=(0, 1)))[0])
    paired = interval(draws[:, 1] - draws[:, 0], difference)
    unpaired = interval(draws[:, 1] - elsewhere[:, 0], difference)
    # Of the variances 1 + 0.04 of each column only 2 * 0.04 are left in the difference: a fifth of the width.
    assert paired.high - paired.low < (unpaired.high - unpaired.low) / 3
    assert (paired.low, paired.high) == pytest.approx((difference,) * 2, abs=0.1)
    # Unpaired is what two columns that know nothing of each other would give.
    theory = math.sqrt(draws[:, 0].var() + draws[:, 1].var())
    assert (draws[:, 1] - elsewhere[:, 0]).std() == pytest.approx(theory, rel=0.06)


@pytest.mark.parametrize("shared", [False, True])
def test_every_column_is_averaged_over_the_same_draw(shared: bool) -> None:
    data = np.random.default_rng(11).normal(size=(3, 20, 1))
    losses = [np.concatenate([one, 2 * one + 1, -one], axis=1) for one in data]
    draws = bootstrap_means(losses, draws=100, shared=shared)
    # Linear maps of a column give the same maps of its draws, up to rounding.
    np.testing.assert_allclose(draws[:, 1], 2 * draws[:, 0] + 1, atol=1e-12)
    np.testing.assert_allclose(draws[:, 2], -draws[:, 0], atol=1e-12)


@pytest.mark.parametrize("shared", [False, True])
def test_the_seed_alone_decides_the_draws(shared: bool) -> None:
    losses = list(np.random.default_rng(12).normal(size=(3, 20, 2)))
    first, same, other = (bootstrap_means(losses, draws=150, seed=s, shared=shared) for s in (5, 5, 6))
    assert first.shape == (150, 2)
    assert (first == same).all()
    assert (first != other).any(axis=1).all()
    # No two draws are alike: a chunk does not repeat the one before.
    assert len(np.unique(first[:, 0])) == 150


def test_an_interval_is_made_of_the_quantiles() -> None:
    values = np.random.default_rng(13).permutation(1001).astype(float)
    found = interval(values, 400.0, confidence=0.9)
    assert (found.difference, found.low, found.high) == pytest.approx((400.0, 50.0, 950.0))
    assert found.as_dict() == {"difference": found.difference, "low": found.low, "high": found.high}
    wide, narrow = interval(values, 400.0), interval(values, 400.0, confidence=0.5)
    assert wide.low < found.low < narrow.low < narrow.high < found.high < wide.high


@pytest.mark.parametrize(
    "losses",
    [
        [],
        [np.zeros(4)],
        [np.zeros((4, 2, 1))],
        [np.zeros((0, 2))],
        [np.zeros((4, 2)), np.zeros((4, 3))],
        [np.zeros((4, 2)), np.zeros((0, 2))],
        [np.zeros((4, 2)), np.zeros(4)],
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_losses_of_another_shape_are_refused(losses: list[Array], shared: bool) -> None:
    with pytest.raises(DataError, match="one per seed"):
        bootstrap_means(losses, draws=10, shared=shared)


def test_shared_samples_must_be_as_many_for_every_seed() -> None:
    losses = [np.zeros((4, 2)), np.zeros((5, 2))]
    with pytest.raises(DataError, match="shared"):
        bootstrap_means(losses, draws=10, shared=True)
    assert bootstrap_means(losses, draws=10).shape == (10, 2)
