"""Calibration: bins against a slow loop, the two-parameter fit against other optimisers."""

import json
import math
import warnings

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from l2h.errors import DataError
from l2h.metrics import apply_platt, expected_calibration_error, fit_logistic, fit_platt, reliability_curve

Array = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]


def bins_by_hand(p: Array, right: Bits, bins: int) -> list[tuple[float, float, int]]:
    """(mean stated, share right, count) of every bin that holds a sample; the last one holds 1."""
    table = []
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        members = [i for i in range(len(p)) if low <= p[i] < high or (b == bins - 1 and p[i] == 1.0)]
        if members:
            stated = math.fsum(p[i] for i in members) / len(members)
            table.append((stated, sum(bool(right[i]) for i in members) / len(members), len(members)))
    return table


@pytest.mark.parametrize("bins", [1, 4, 10, 16])
def test_the_reliability_curve_is_that_of_a_loop(bins: int) -> None:
    rng = np.random.default_rng(bins)
    for n in (1, 5, 300):
        p = rng.beta(2, 1, n)
        p[0] = 1.0
        right = rng.random(n) < p**2
        table = bins_by_hand(p, right, bins)
        curve = reliability_curve(p, right, bins)
        # Means of at most 300 numbers below 1.
        assert curve.stated.tolist() == pytest.approx([row[0] for row in table], abs=1e-13)
        assert curve.observed.tolist() == pytest.approx([row[1] for row in table], abs=1e-13)
        assert curve.count.tolist() == [row[2] for row in table]
        expected = math.fsum(abs(s - o) * c for s, o, c in table) / n
        assert expected_calibration_error(p, right, bins) == pytest.approx(expected, abs=1e-13)


def test_edges_belong_to_the_bin_above_and_one_to_the_last() -> None:
    # Quarters are exact in binary.
    curve = reliability_curve([0.0, 0.25, 0.5, 0.75, 1.0], [False, True, True, True, True], bins=4)
    assert curve.count.tolist() == [1, 1, 1, 2]
    assert json.loads(json.dumps(curve.as_dict())) == {
        "stated": [0.0, 0.25, 0.5, 0.875],
        "observed": [0.0, 1.0, 1.0, 1.0],
        "count": [1, 1, 1, 2],
    }


def test_the_error_is_zero_for_the_honest_and_one_for_the_perverse() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(200_000)
    # The share of right answers in a bin of 20,000 scatters by at most 0.0036; the mean of ten by less.
    assert expected_calibration_error(p, rng.random(200_000) < p) < 0.01
    assert expected_calibration_error([1.0, 0.0], [False, True]) == 1.0


@pytest.mark.parametrize(
    ("p", "right"),
    [([], []), ([0.5], [True, False]), ([1.1], [True]), ([-0.1], [True]), ([math.nan], [True])],
)
def test_what_is_no_probability_is_refused(p: list[float], right: list[bool]) -> None:
    with pytest.raises(DataError):
        reliability_curve(p, right)


def logits(n: int, scale: float, shift: float, seed: int) -> tuple[Array, Bits]:
    """Logits z of answers that are right with probability sigmoid(scale * z + shift)."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0.5, 2.0, n)
    return z, rng.random(n) < 1 / (1 + np.exp(-(scale * z + shift)))


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (0.3, 1.0), (2.5, -1.0), (-0.5, 0.2)])
def test_the_fit_is_that_of_logistic_regression(scale: float, shift: float) -> None:
    z, right = logits(5000, scale, shift, seed=1)
    other = LogisticRegression(C=1e12, tol=1e-10, max_iter=1000).fit(z[:, None], right)
    # The pull of 1e-3 towards (1, 0) against a curvature of some hundreds moves the fit by less than 1e-5.
    assert fit_platt(z, right) == pytest.approx((other.coef_[0, 0], other.intercept_[0]), abs=1e-4)
    # And both are near the truth: the standard error is about 0.05.
    assert fit_platt(z, right) == pytest.approx((scale, shift), abs=0.25)


def test_a_fit_of_several_features_is_that_of_logistic_regression() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(0.5, 2.0, (4000, 4)) * [1, 5, 0.2, 1]
    right = rng.random(4000) < 1 / (1 + np.exp(-(0.4 + x @ [0.5, -0.1, 2.0, 0.0])))
    other = LogisticRegression(C=1e12, tol=1e-10, max_iter=1000).fit(x, right)
    assert fit_logistic(x, right, ridge=1e-9) == pytest.approx([other.intercept_[0], *other.coef_[0]], abs=1e-4)
    separable = fit_logistic(x, x[:, 0] > 0)
    assert np.isfinite(separable).all()
    with pytest.raises(DataError, match="finite"):
        fit_logistic(np.full((3, 2), np.nan), [True, False, True])


def penalised(z: Array, right: Bits, theta: Array, ridge: float) -> float:
    """Log-loss with the pull towards (1, 0)."""
    margin = np.where(right, 1.0, -1.0) * (theta[0] * z + theta[1])
    return float(np.logaddexp(0, -margin).sum() + ridge * ((theta[0] - 1) ** 2 + theta[1] ** 2))


@pytest.mark.parametrize("ridge", [1e-3, 1.0, 100.0])
def test_the_fit_minimises_the_penalised_log_loss(ridge: float) -> None:
    z, right = logits(200, 0.5, -0.5, seed=2)
    found = minimize(lambda theta: penalised(z, right, theta, ridge), x0=[0.0, 0.0], method="BFGS", tol=1e-9)
    # BFGS with numerical gradients is good to about 1e-6.
    assert fit_platt(z, right, ridge=ridge) == pytest.approx(tuple(found.x), abs=1e-4)


HARD = {
    "all right": (np.linspace(-3, 3, 50), np.ones(50, dtype=bool)),
    "all wrong": (np.linspace(-3, 3, 50), np.zeros(50, dtype=bool)),
    "constant": (np.full(50, 2.0), np.arange(50) % 3 == 0),
    "constant zero": (np.zeros(50), np.arange(50) % 3 == 0),
    "constant and all right": (np.full(50, 2.0), np.ones(50, dtype=bool)),
    "separated": (np.linspace(-1, 1, 50), np.linspace(-1, 1, 50) > 0),
    "separated the wrong way": (np.linspace(-1, 1, 50), np.linspace(-1, 1, 50) < 0),
    "one sample": (np.array([3.0]), np.array([False])),
    "huge and wrong": (np.full(50, 1e4), np.arange(50) % 2 == 0),
    "huge and far": (1000 + np.linspace(-3, 3, 50), np.arange(50) % 5 > 1),
    "huge spread": (np.linspace(-1e4, 1e4, 50), np.arange(50) % 5 > 1),
    "tiny": (np.linspace(-1e-4, 1e-4, 50), np.arange(50) % 5 > 1),
}


@pytest.mark.parametrize("name", HARD)
def test_the_fit_reaches_the_minimum_where_the_data_say_little(name: str) -> None:
    z, right = HARD[name]
    with warnings.catch_warnings(), np.errstate(over="raise", invalid="raise", divide="raise"):
        warnings.simplefilter("error")
        theta = np.array(fit_platt(z, right))
        stated = apply_platt(z, *theta)
    assert np.isfinite(theta).all()
    assert np.isfinite(stated).all()
    # The loss is convex, and to leading order it lies half of g' H^-1 g above its minimum.
    design = np.stack([z, np.ones_like(z)], axis=1)
    gradient = design.T @ (stated - right) + 2e-3 * (theta - [1, 0])
    hessian = design.T @ (design * (stated * (1 - stated))[:, None]) + 2e-3 * np.eye(2)
    assert gradient @ np.linalg.solve(hessian, gradient) / 2 < 1e-8
    for start in ([1.0, 0.0], [0.0, 0.0], theta.tolist()):
        rival = minimize(lambda at: penalised(z, right, at, 1e-3), x0=start, method="Nelder-Mead")
        assert penalised(z, right, theta, 1e-3) <= rival.fun + 1e-8


def test_the_fit_cures_an_overconfident_head() -> None:
    z, right = logits(20_000, 0.4, 0.3, seed=3)
    half = 10_000
    scale, shift = fit_platt(z[:half], right[:half])
    before = expected_calibration_error(apply_platt(z[half:], 1.0, 0.0), right[half:])
    after = expected_calibration_error(apply_platt(z[half:], scale, shift), right[half:])
    # Ten bins of 1,000 scatter by about 0.015 each.
    assert after < 0.02 < before / 3


def test_apply_platt_is_the_sigmoid_at_any_logit() -> None:
    z = np.linspace(-20, 20, 101)
    expected = [1 / (1 + math.exp(-(0.7 * v - 0.2))) for v in z]
    # One exponential and a quotient.
    assert apply_platt(z, 0.7, -0.2).tolist() == pytest.approx(expected, rel=1e-13)
    with np.errstate(over="raise", invalid="raise"):
        assert apply_platt([-1e4, 1e4], 1.0, 0.0).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("z", "right"),
    [([], []), ([0.5], [True, False]), ([[0.5]], [[True]]), ([math.nan], [True]), ([math.inf], [True])],
)
def test_logits_that_cannot_be_fitted_are_refused(z: object, right: object) -> None:
    with pytest.raises(DataError):
        fit_platt(z, right)
