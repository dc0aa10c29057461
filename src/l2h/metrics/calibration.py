"""Calibration: reliability curves, the expected calibration error, and Platt scaling."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import FloatArray, as_bool
from l2h.errors import DataError


@dataclass(frozen=True)
class Reliability:
    """A reliability curve over the b bins that hold samples."""

    stated: FloatArray  # (b,), mean stated probability in each bin
    observed: FloatArray  # (b,), share of right answers in each bin
    count: npt.NDArray[np.int64]  # (b,), number of samples in each bin
    weight: FloatArray  # (b,), how many samples those in each bin stand for

    def as_dict(self) -> dict[str, Any]:
        return {"stated": self.stated.tolist(), "observed": self.observed.tolist(), "count": self.count.tolist()}


def reliability_curve(
    probability: npt.ArrayLike, correct: npt.ArrayLike, bins: int = 10, weights: npt.ArrayLike | None = None
) -> Reliability:
    """Sort samples by stated probability into ``bins`` of equal width and count how often they were right.

    ``weights`` (n,) say how many samples each stands for.
    """
    p, right = _pair(probability, as_bool("correct", correct))
    if not ((p >= 0) & (p <= 1)).all():
        raise DataError("probabilities must lie in [0, 1]")
    w = _weights(weights, len(p))
    which = np.minimum((p * bins).astype(int), bins - 1)
    count = np.bincount(which, minlength=bins)
    weight = np.bincount(which, weights=w, minlength=bins).astype(np.float64)
    used = count > 0
    stated = np.bincount(which, weights=w * p, minlength=bins)[used] / weight[used]
    observed = np.bincount(which, weights=w * right, minlength=bins)[used] / weight[used]
    return Reliability(stated=stated, observed=observed, count=count[used], weight=weight[used])


def expected_calibration_error(
    probability: npt.ArrayLike, correct: npt.ArrayLike, bins: int = 10, weights: npt.ArrayLike | None = None
) -> float:
    """Return the mean distance between stated and observed over the bins, weighted by their samples.

    Example:
        >>> expected_calibration_error([0.75, 0.75, 0.75, 0.75], [True, True, True, False])
        0.0
    """
    curve = reliability_curve(probability, correct, bins, weights)
    return float(np.average(np.abs(curve.stated - curve.observed), weights=curve.weight))


def fit_platt(
    logit: npt.ArrayLike,
    correct: npt.ArrayLike,
    ridge: float = 1e-3,
    *,
    weights: npt.ArrayLike | None = None,
    start: tuple[float, float] = (1.0, 0.0),
) -> tuple[float, float]:
    """Return ``(scale, shift)`` such that ``sigmoid(scale * logit + shift)`` has the lowest log-loss (Newton's method).

    ``ridge`` pulls towards ``start``, per fit and not per sample: it only matters where the data do not decide, such as
    when every answer was right. ``correct`` may also be how likely each answer is right, and ``weights`` (n,) how many
    samples each stands for.
    """
    target = np.asarray(correct)
    soft = target.dtype.kind == "f"
    if soft and not ((target >= 0) & (target <= 1)).all():
        raise DataError("correct must be true or false, or probabilities in [0, 1]")
    z, right = _pair(logit, target if soft else as_bool("correct", target))
    if not np.isfinite(z).all():
        row = int(np.argmin(np.isfinite(z)))
        raise DataError(f"logit of sample {row} is {z[row]}: the model has diverged")
    design = np.stack([z, np.ones_like(z)], axis=1)
    scale, shift = _fit_newton(design, right, np.array(start), ridge, _weights(weights, len(z)))
    return float(scale), float(shift)


def fit_logistic(features: npt.ArrayLike, correct: npt.ArrayLike, ridge: float = 0.1) -> FloatArray:
    """Return the weights of a logistic regression of features (n, F), by Newton's method: (1 + F,), first the shift.

    ``ridge`` pulls towards 0, per fit and not per sample. It matters where there are few samples: with some 50 of them
    a weaker pull lets the weights run off.
    """
    x = np.asarray(features, dtype=np.float64)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise DataError(f"features must be (n, F) and finite; got shape {x.shape}")
    _, right = _pair(x[:, 0], as_bool("correct", correct))
    design = np.column_stack([x, np.ones(len(x))])
    theta = _fit_newton(design, right, np.zeros(design.shape[1]), ridge, np.ones(len(x)))
    return np.concatenate([theta[-1:], theta[:-1]])


def _fit_newton(
    design: FloatArray, right: FloatArray, start: FloatArray, ridge: float, weights: FloatArray
) -> FloatArray:
    """Return the weights of the lowest log-loss, pulled towards ``start``; the last column of the design is all 1."""

    def loss(at: FloatArray) -> float:
        z = design @ at
        each = right * np.logaddexp(0.0, -z) + (1 - right) * np.logaddexp(0.0, z)
        return float((weights * each).sum() + ridge * ((at - start) ** 2).sum())

    # Where the logits are far too large the sigmoid is flat at the start and Newton's steps do not help: start from the
    # share of right answers if that has the lower loss.
    share = ((weights * right).sum() + 0.5) / (weights.sum() + 1)
    alone = np.zeros_like(start)
    alone[-1] = np.log(share / (1 - share))
    theta = min((start, alone), key=loss)

    for _ in range(100):
        p = _sigmoid(design @ theta)
        gradient = design.T @ (weights * (p - right)) + 2 * ridge * (theta - start)
        hessian = (design * (weights * p * (1 - p))[:, None]).T @ design + 2 * ridge * np.eye(len(start))
        step = np.linalg.solve(hessian, gradient)
        # Newton overshoots where the sigmoid is flat: halve until the loss falls.
        size, before = 1.0, loss(theta)
        while size > 1e-8 and loss(theta - size * step) > before:
            size /= 2
        if size <= 1e-8:
            break
        theta = theta - size * step
        if np.abs(size * step).max() < 1e-10:
            break
    return np.asarray(theta)


def apply_platt(logit: npt.ArrayLike, scale: float | FloatArray, shift: float | FloatArray) -> FloatArray:
    """Return ``sigmoid(scale * logit + shift)``, of one scale and shift, or of one for each logit."""
    return _sigmoid(scale * np.asarray(logit, dtype=np.float64) + shift)


def _sigmoid(z: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-np.logaddexp(0.0, -z)))


def _pair(values: npt.ArrayLike, correct: npt.NDArray[Any]) -> tuple[FloatArray, FloatArray]:
    array, right = np.asarray(values, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if array.ndim != 1 or array.shape != right.shape or not len(array):
        raise DataError(f"need two arrays of one length, not empty; got {array.shape} and {right.shape}")
    return array, right


def _weights(weights: npt.ArrayLike | None, n: int) -> FloatArray:
    if weights is None:
        return np.ones(n)
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != (n,) or not (np.isfinite(w) & (w > 0)).all():
        raise DataError(f"weights must be {n} finite numbers above 0; got shape {w.shape}")
    return w
