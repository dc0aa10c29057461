"""Which tensor inside the client the rejector reads as its features: as the user says, or as a probe finds."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from l2h.classifiers import Classifier, probe_rows
from l2h.classifiers.base import Inputs
from l2h.costs import FloatArray
from l2h.errors import SettingsError
from l2h.models import client_view

AUTO, NONE = "auto", "none"
#: Of the probe: samples, most features of a tensor, and the strengths of its ridge, of which the best is taken.
_SAMPLES, _WIDEST, _RIDGES = 4000, 1024, (1e-3, 1e-2, 1e-1, 1.0)
log = logging.getLogger("l2h")


def check_wanted(wanted: str | None, rejector: str | nn.Module) -> str | None:
    """Return what the user wants of the client's features; a separate rejector reads none."""
    if wanted is not None and rejector == "separate":
        raise SettingsError(f"client_features={wanted!r}: a separate rejector does not read the client: use 'attached'")
    return wanted


def take_features(
    client: Classifier,
    wanted: str | None,
    X: Inputs,
    y: npt.NDArray[np.int64],
    num_classes: int,
    rows: npt.NDArray[np.int64] | None,
) -> tuple[Classifier, Mapping[str, Any] | None]:
    """Return the client with the features that the rejector is to read, and a note about them for reports.

    ``wanted`` is a tensor's name, ``auto`` (the one that says most, on ``rows`` where they are given), ``none``, or
    None for what the client gives out by itself, which has no note.
    """
    if wanted is None:
        return client, None
    errors: dict[str, float] = {}
    name = None if wanted == NONE else wanted
    if wanted == AUTO:
        chosen = probe_rows(len(X), _SAMPLES) if rows is None else rows[probe_rows(len(rows), _SAMPLES)]
        errors = probe_errors(client, X[chosen], y[chosen], num_classes)
        best = min(errors, key=lambda tensor: errors[tensor])
        name = None if best == NONE else best
        told = ", ".join(f"{tensor} {error:.4f}" for tensor, error in sorted(errors.items(), key=lambda e: e[1])[:5])
        log.info("features of the client: %s (squared error of a probe of its mistakes: %s)", best, told)
    note = {"asked": wanted, "name": name, "probe": {tensor: round(error, 5) for tensor, error in errors.items()}}
    return client.with_features(name), note


def probe_errors(client: Classifier, X: Inputs, y: npt.NDArray[np.int64], num_classes: int) -> dict[str, float]:
    """Return how well a linear map of the client's view and one tensor says whether the client is right.

    The error is the mean square on the second half of the samples, by the tensor's name; ``none`` is the view alone.
    """
    answers = client.with_features(None).answers(X, num_classes)
    view = client_view(torch.from_numpy(answers.log_probability)).numpy().astype(np.float64)
    right = (answers.label == y).astype(np.float64)
    errors = {NONE: _held_out_error(view, right)}
    for name, values in client.inner_features(X).items():
        if values.shape[1] <= _WIDEST and np.isfinite(values).all() and np.ptp(values) > 0:
            errors[name] = _held_out_error(np.concatenate([view, values], axis=1), right)
    return errors


def _held_out_error(features: FloatArray, right: FloatArray) -> float:
    """Return the least mean square error of ridge regressions fitted to the first half of the samples."""
    half = len(right) // 2
    spread = features[:half].std(axis=0)
    Z = (features - features[:half].mean(axis=0)) / np.where(spread > 1e-6, spread, np.inf)
    values, vectors = np.linalg.eigh(Z[:half].T @ Z[:half] / half)
    level = right[:half].mean()
    slope = vectors.T @ (Z[:half].T @ (right[:half] - level) / half)
    said = Z[half:] @ vectors
    stated = [np.clip(level + said @ (slope / (np.maximum(values, 0) + ridge)), 0, 1) for ridge in _RIDGES]
    return float(min(np.mean((p - right[half:]) ** 2) for p in stated))
