"""Training a router from outcomes: two logistic heads, their strength and calibration found by cross-validation."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, FloatArray
from l2h.data.outcomes import CLIENT_COLUMN, SERVER_COLUMN, OutcomeTable, check_outcomes
from l2h.data.reading import need
from l2h.decision import Judgement
from l2h.errors import DataError, SettingsError
from l2h.metrics import frontier
from l2h.ngrams import NGrams, inverse_document_frequency, weigh
from l2h.routing.router import Router, logit_terms

#: Inverse strengths of the L2 penalty that cross-validation chooses from.
STRENGTHS = (0.1, 0.2, 0.4, 0.8)
EMBEDDING_STRENGTHS = (0.1, 1.0, 10.0, 100.0)
#: An n-gram that fewer training texts have is left out.
_RAREST = 2
#: Limits are met on one row of so many, but on about so many rows at most. Nothing is trained on them, not even which
#: n-grams are used: a text whose n-grams were counted has other scores than one that is new.
_ONE_OF, _HELD_OUT = 7, 1000

_log = logging.getLogger("l2h.routing")
#: Called after each step with how many are done and how many there are.
Told = Callable[[int, int], None]


def fit_router(
    X: Any,
    client_right: npt.ArrayLike,
    server_right: npt.ArrayLike,
    *,
    ngrams: NGrams | None = None,
    strengths: Sequence[float] | None = None,
    folds: int = 5,
    seed: int = 0,
    dataset: str = "unnamed",
    progress: Told | None = None,
) -> Router:
    """Train a router from n texts or embeddings (n, d) and who was right about them; nothing else is known.

    Of the ``strengths`` (inverse strengths of the penalty; ``STRENGTHS`` or ``EMBEDDING_STRENGTHS`` where None) the one
    with the largest area under the cross-validated frontier is taken. ``progress`` is told how many of how many fits
    are done.
    """
    known = check_outcomes(X, client_right, server_right, dataset)
    _require_both(known, folds)
    held_out = np.flatnonzero(_folds(known, max(_ONE_OF, len(known) // _HELD_OUT), seed) == 0)
    fresh, known = known.part(held_out), known.part(np.setdiff1d(np.arange(len(known)), held_out))
    if strengths is None:
        strengths = STRENGTHS if isinstance(known.X, list) else EMBEDDING_STRENGTHS
    if not strengths or min(strengths) <= 0:
        raise SettingsError(f"strengths={list(strengths)!r} must be numbers above 0")
    design, parts = _design(known.X, ngrams)
    fold = _folds(known, folds, seed)
    steps, done = 2 * (len(strengths) * folds + 1), 0

    def fit(rows: npt.NDArray[np.int64], right: BoolArray, strength: float) -> tuple[FloatArray, float]:
        nonlocal done
        fitted = _fit_head(design[rows], right[rows], strength)
        done += 1
        if progress is not None:
            progress(done, steps)
        return fitted

    outcomes = (known.client_right, known.server_right)
    tried = []
    for strength in strengths:
        logits = np.empty((len(known), 2))
        for k in range(folds):
            inside, outside = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
            for j, right in enumerate(outcomes):
                weights, bias = fit(inside, right, strength)
                logits[outside, j] = design[outside] @ weights + bias
        terms = logit_terms(logits, _span(logits))
        calibration = _fit_calibration(terms, outcomes)
        gain = Judgement.from_heads(terms @ calibration.T, None).gain
        tried.append((frontier(gain, *outcomes).area, strength, logits, calibration))
    area, strength, logits, calibration = max(tried, key=lambda one: one[0])
    heads = [fit(np.arange(len(known)), right, strength) for right in outcomes]
    _log.info("cross-validation over %d folds chose the strength %g of %s", folds, strength, list(strengths))
    all_weights = np.zeros((2, len(parts["scale"])), dtype=np.float32)
    all_weights[:, parts.pop("columns")] = [weights for weights, _ in heads]
    router = Router(
        weights=all_weights,
        bias=np.array([bias for _, bias in heads]),
        calibration=calibration,
        span=_span(logits),
        held_out=np.zeros((0, 2), dtype=np.float32),
        dataset=dataset,
        seed=seed,
        choice={"strength": float(strength), "area": area},
        **parts,
    )
    return replace(router, held_out=router.logits(fresh.X).astype(np.float32))


def _design(X: Any, ngrams: NGrams | None) -> tuple[Any, dict[str, Any]]:
    """Return the matrix to train on, the columns that it has of all, and the router's fields that follow from it."""
    if not isinstance(X, list):
        if ngrams is not None:
            raise SettingsError("ngrams= is for texts; X is numbers")
        centre, spread = X.mean(axis=0), X.std(axis=0)
        # Divided by sqrt(d) as well: a row then has about the length 1, whatever d is.
        scale = np.where(spread > 0, 1 / np.maximum(spread, 1e-12), 0.0) / np.sqrt(X.shape[1])
        fields = {"ngrams": None, "centre": centre.astype(np.float32), "scale": scale.astype(np.float32)}
        return (X - fields["centre"]) * fields["scale"], fields | {"columns": np.arange(X.shape[1])}
    sparse = need("scipy.sparse", "scipy", "training a router")
    ngrams = ngrams or NGrams()
    counts = ngrams.count(X)
    scale = inverse_document_frequency(counts, ngrams.columns, len(X), min(_RAREST, len(X))).astype(np.float32)
    rows = weigh(counts, ngrams, scale, len(X))
    matrix = sparse.csr_matrix((rows.value, (rows.row, rows.column)), shape=(len(X), ngrams.columns))
    matrix.eliminate_zeros()
    columns = np.unique(matrix.indices)  # most columns are never met: heads are trained on the others alone
    none = np.zeros(0, dtype=np.float32)
    return matrix[:, columns], {"ngrams": ngrams, "centre": none, "scale": scale, "columns": columns}


def _fit_head(design: Any, right: BoolArray, strength: float) -> tuple[FloatArray, float]:
    linear = need("sklearn.linear_model", "scikit-learn", "training a router")
    dual = design.shape[0] < design.shape[1]  # the quicker of the two ways to the same solution
    model = linear.LogisticRegression(C=strength, solver="liblinear", dual=dual, tol=1e-2, random_state=0)
    model.fit(design, right)
    return model.coef_[0], float(model.intercept_[0])


def _span(logits: FloatArray) -> FloatArray:
    return np.stack([logits.min(axis=0), logits.max(axis=0)], axis=1)


def _fit_calibration(terms: FloatArray, outcomes: Sequence[BoolArray]) -> FloatArray:
    """Return (2, 6): each head's calibrated logit from the terms of both, fitted to cross-validated logits."""
    linear = need("sklearn.linear_model", "scikit-learn", "training a router")
    model = linear.LogisticRegression(C=100.0, fit_intercept=False, max_iter=1000)
    return np.array([model.fit(terms, right).coef_[0] for right in outcomes])


def _folds(known: OutcomeTable, folds: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the fold of each row; every fold has its share of each pair of outcomes."""
    pair = 2 * known.client_right.astype(np.int64) + known.server_right
    order = np.lexsort((np.random.default_rng(seed).random(len(pair)), pair))
    out = np.empty(len(pair), dtype=np.int64)
    out[order] = np.arange(len(pair)) % folds
    return out


def _require_both(known: OutcomeTable, folds: int) -> None:
    if folds < 2:
        raise SettingsError(f"folds={folds}: cross-validation needs 2 or more")
    for name, right in ((CLIENT_COLUMN, known.client_right), (SERVER_COLUMN, known.server_right)):
        for value, count in ((1, int(right.sum())), (0, int((~right).sum()))):
            if count == 0:
                raise DataError(f"{name} is {1 - value} in all {len(right)} rows: there is nothing to learn about it")
            if count < folds:
                raise DataError(
                    f"{name} is {value} in only {count} of {len(right)} rows: at least {folds} are needed (folds)"
                )
