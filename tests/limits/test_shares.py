"""Shares of several servers: the optimum of the linear programme, met exactly on the calibration samples."""

import numpy as np
import pytest
from scipy.optimize import linprog

from l2h.limits import LimitError, ServerShares, shares_for, threshold_for

SHARES = [0.0, 0.1, 0.25, 0.3, 0.5, 1.0]


def optimum(gain: np.ndarray, own: list[float | None], total: float | None) -> float:
    """Return the most that can be saved within shares, by another solver."""
    n, servers = gain.shape
    each = np.eye(n * servers).reshape(n * servers, n, servers)
    rows = [(each[:, i].sum(1), 1.0) for i in range(n)]
    rows += [(each[:, :, k].sum(1), q * n) for k, q in enumerate(own) if q is not None]
    rows += [] if total is None else [(np.ones(n * servers), total * n)]
    left, right = zip(*rows, strict=True)
    return -float(linprog(-gain.ravel(), np.array(left), right, bounds=(0, 1)).fun)


def expected(met: ServerShares, gain: np.ndarray) -> np.ndarray:
    """Return (n, S), how likely each sample goes to each server."""
    left = np.column_stack([np.zeros(len(gain)), gain - met.prices])
    tied = left >= left.max(axis=1, keepdims=True) - 1e-9
    chosen = np.zeros_like(left)
    for i, options in enumerate(tied):
        mask = sum(1 << int(o) for o in np.flatnonzero(options))
        chosen[i] = met.ties.get(mask, options)
    assert np.allclose(chosen.sum(axis=1), 1)
    return chosen[:, 1:]


def problem(rng: np.random.Generator) -> tuple[np.ndarray, list[float | None], float | None]:
    n, servers = int(rng.integers(1, 20)), int(rng.integers(1, 4))
    # Half of the problems have few values, and so many ties.
    gain = rng.normal(size=(n, servers)) if rng.random() < 0.5 else rng.integers(-4, 5, size=(n, servers)) / 8
    own = [None if rng.random() < 0.3 else float(rng.choice(SHARES)) for _ in range(servers)]
    return gain, own, None if rng.random() < 0.3 else float(rng.choice(SHARES))


def test_what_is_saved_is_the_optimum_of_the_linear_programme_and_every_share_is_met() -> None:
    rng = np.random.default_rng(0)
    random_ties = 0
    for _ in range(250):
        gain, own, total = problem(rng)
        met = shares_for(gain, own, total)
        chosen = expected(met, gain)
        # Sums of at most 60 numbers of the size of 1; scipy's solver is exact to about 1e-9.
        assert (chosen * gain).sum() == pytest.approx(optimum(gain, own, total), abs=1e-7)
        used = chosen.sum(axis=0)
        assert all(q is None or u <= q * len(gain) + 1e-9 for u, q in zip(used, own, strict=True))
        assert total is None or used.sum() <= total * len(gain) + 1e-9
        random_ties += any(max(p) < 1 for p in met.ties.values())
    assert random_ties > 40


def test_a_limit_that_is_to_be_used_up_asks_as_often_as_it_may_and_saves_most_of_all_that_do() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        gain, own, total = problem(rng)
        chosen = expected(shares_for(gain, own, total, fill=True), gain)
        most = min([total or 0 if total is not None else 1.0, sum(1.0 if q is None else q for q in own)])
        assert chosen.sum() == pytest.approx(most * len(gain), abs=1e-9)
        # With a bonus that outweighs all gains the optimum asks as often as possible.
        assert ((chosen * (gain + 100)).sum()) == pytest.approx(optimum(gain + 100, own, total), abs=1e-6)


def test_one_share_over_all_decides_as_the_threshold_does() -> None:
    rng = np.random.default_rng(2)
    for levels in (4, 10**6):
        gain = rng.integers(-levels, levels, size=(400, 2)) / levels
        met = shares_for(gain, [None, None], 0.3)
        cut = threshold_for(gain.max(axis=1), 0.3)
        assert max(met.prices) == pytest.approx(max(cut.value, 0.0), abs=1e-12)
        sure = np.abs(gain.max(axis=1) - cut.value) > 1e-9
        assert ((met.choose(gain, 0) >= 0) == cut.apply(gain.max(axis=1), 0))[sure].all()
        assert expected(met, gain).sum() == pytest.approx(0.3 * 400)


def test_ties_are_broken_so_that_shares_are_met_in_expectation() -> None:
    gain = np.tile([[0.25, 0.25]], (1000, 1))  # every sample is like every other
    met = shares_for(gain, [0.5, 0.2], 0.6)
    drawn = np.stack([np.bincount(met.choose(gain, seed) + 1, minlength=3) for seed in range(100)]) / 1000
    used = drawn.mean(axis=0)
    # Means of 100,000 draws: three standard errors are 0.005.
    assert used[0] == pytest.approx(0.4, abs=0.005)
    assert used[2] <= 0.2 + 0.005
    assert (met.choose(gain, 7) == met.choose(gain, 7)).all(), "the seed decides"


def test_only_servers_without_a_share_take_over_what_another_does_not_answer() -> None:
    gain = np.random.default_rng(3).uniform(0, 1, size=(300, 3))
    met = shares_for(gain, [0.2, 0.3, None], None)
    choice, (left, able) = met.choose(gain, 0), met.apply(gain, 0)
    rows = np.flatnonzero(choice >= 0)
    assert able[rows, choice[rows]].all()
    assert (np.where(able, left, -np.inf).argmax(axis=1) == choice)[rows].all(), "the chosen one comes first"
    for k in (0, 1):
        assert (able[:, k] == (choice == k)).all()
    assert able[:, 2].all(), "it saves something everywhere"


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_the_currency_does_not_matter(unit: float) -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        gain, own, total = problem(rng)
        plain, other = shares_for(gain, own, total), shares_for(gain * unit, own, total)
        assert (plain.choose(gain, 0) == other.choose(gain * unit, 0)).all()


def test_larger_problems_are_solved_at_once() -> None:
    rng = np.random.default_rng(4)
    gain = rng.beta(2, 1, size=(5000, 4)) - rng.beta(2, 1, size=(5000, 1))
    own = [0.05, 0.1, 0.15, 0.3]
    used = expected(shares_for(gain, own, 0.5), gain).mean(axis=0)
    assert used.sum() == pytest.approx(0.5, abs=1e-9)
    assert (used <= np.array(own) + 1e-9).all()


def test_shares_need_samples_and_lie_between_0_and_1() -> None:
    with pytest.raises(LimitError, match="calibration samples"):
        shares_for(np.empty((0, 2)), [0.5, None], None)
    with pytest.raises(LimitError, match="outside"):
        shares_for(np.zeros((3, 2)), [1.5, None], None)
