"""What a new calibration changes on pairs that it was not fitted on: log-loss, calibration error and risk."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.audits import AuditPairs
from l2h.costs import BoolArray, FloatArray
from l2h.metrics import apply_platt
from l2h.metrics.spread import Interval, interval
from l2h.recalibration.fitting import agreement_probability, fit_heads, input_weights, local_answers

#: Of the intervals: a change whose interval is below 0 is one for the better in 95 of 100 cases.
CONFIDENCE = 0.9
_FOLDS, _DRAWS, _BINS = 5, 500, 10
_SMALLEST = 1e-12


@dataclass(frozen=True)
class Change:
    """A figure before and after, on held-out pairs; lower is better."""

    before: float
    after: float
    interval: Interval  # of the difference, after less before

    def as_dict(self) -> dict[str, Any]:
        return {"before": self.before, "after": self.after, **self.interval.as_dict()}


@dataclass(frozen=True)
class _Claim:
    """Probabilities that were stated before and after about some pairs, and what came true."""

    rows: npt.NDArray[np.intp]
    stated: list[FloatArray]  # before and after
    true: BoolArray


def cross_fitted(pairs: AuditPairs, start: FloatArray, servers: list[int]) -> FloatArray:
    """Return scale and shift of every head for every pair, (n, J, 2), fitted on pairs of other parts alone."""
    fold = np.random.default_rng(0).permutation(len(pairs)) % _FOLDS
    found = np.empty((len(pairs), *start.shape))
    for k in range(_FOLDS):
        found[fold == k] = fit_heads(pairs.rows(fold != k), start, servers)
    return found


def measure_changes(pairs: AuditPairs, start: FloatArray, found: FloatArray, by_labels: bool) -> dict[str, Change]:
    """Return what changes, by name, with intervals of 90% from the bootstrap over the pairs.

    Log-loss and calibration error are those of what the heads claim: that an answer is right, where a label says so,
    and that device and server agree, where none does.

    Args:
        pairs: of one rejector, with answers of the servers.
        start: (J, 2), the calibration of the bundle.
        found: (n, J, 2), the new one, of every pair one that was not fitted on it.
        by_labels: whether labels count. The risk is then that on the pairs that have one; else the server's answers are
            taken as right.
    """
    old = np.broadcast_to(start, found.shape)
    labelled = (pairs.label >= 0) & by_labels
    claims = _claims_on_labels(pairs, old, found, labelled) + _claims_on_agreement(pairs, old, found, ~labelled)
    risks = [_losses(pairs, platt, by_labels) for platt in (old, found)]
    weights, judged = input_weights(pairs), labelled if by_labels else np.ones(len(pairs), dtype=bool)
    sums = _sums(claims, risks, weights, weights * judged)
    rng, n = np.random.default_rng(0), len(pairs)
    times = (np.bincount(rng.integers(0, n, n), minlength=n) for _ in range(_DRAWS))
    drawn = _figures(np.array([one @ sums for one in times]))
    before, after = _figures(sums.mean(axis=0, keepdims=True))[:, 0]
    return {
        name: Change(
            float(before[i]),
            float(after[i]),
            interval(drawn[1, :, i] - drawn[0, :, i], float(after[i] - before[i]), CONFIDENCE),
        )
        for i, name in enumerate(("log_loss", "calibration_error", "risk"))
    }


def _claims_on_labels(pairs: AuditPairs, old: FloatArray, new: FloatArray, labelled: BoolArray) -> list[_Claim]:
    """Return what each head says about its own answers."""
    claims = []
    for j in range(len(pairs.header.answerers)):
        answer = local_answers(pairs, j) if j < pairs.header.local else np.where(pairs.by == j, pairs.server, -1)
        rows = np.flatnonzero(labelled & (answer >= 0))
        if len(rows):
            stated = [apply_platt(pairs.heads[rows, j], *platt[rows, j].T) for platt in (old, new)]
            claims.append(_Claim(rows, stated, answer[rows] == pairs.label[rows]))
    return claims


def _claims_on_agreement(pairs: AuditPairs, old: FloatArray, new: FloatArray, unlabelled: BoolArray) -> list[_Claim]:
    """Return what the heads together say about the device and the server giving the same answer."""
    claims = []
    for j in range(pairs.header.local):
        answer = local_answers(pairs, j)
        rows = np.flatnonzero(unlabelled & (answer >= 0))
        by, stated = pairs.by[rows], []
        for platt in (old, new):
            p = apply_platt(pairs.heads[rows, j], *platt[rows, j].T)
            q = apply_platt(pairs.heads[rows, by], *platt[rows, by].T)
            stated.append(agreement_probability(p, q, len(pairs.header.classes)))
        if len(rows):
            claims.append(_Claim(rows, stated, answer[rows] == pairs.server[rows]))
    return claims


def _losses(pairs: AuditPairs, platt: FloatArray, by_labels: bool) -> FloatArray:
    """Return what each pair would cost where these heads decide between the device and the server that was asked."""
    n, local = np.arange(len(pairs)), pairs.header.local
    p = apply_platt(pairs.heads, platt[..., 0], platt[..., 1])
    c_cc, c_ce, c_sc, c_se = pairs.costs.T
    mine = np.stack([local_answers(pairs, j) for j in range(local)], axis=1)
    best = np.where(mine >= 0, p[:, :local], -1.0).argmax(axis=1)
    kept = c_ce - (c_ce - c_cc) * p[n, best]
    remote = kept - (c_se - (c_se - c_sc) * p[n, pairs.by]) >= 0
    truth = pairs.label if by_labels else pairs.server
    asked, own = np.where(pairs.server == truth, c_sc, c_se), np.where(mine[n, best] == truth, c_cc, c_ce)
    return np.asarray(np.where(remote, asked, own))


def _sums(claims: list[_Claim], risks: list[FloatArray], weights: FloatArray, judged: FloatArray) -> FloatArray:
    """Return columns (n, M) whose sums over pairs make up the figures of :func:`_figures`.

    The weights of the claims and of the risks, then before and after: log-loss, risk, and of each claim and bin how
    much more was stated than came true.
    """
    n, totals = len(weights), np.stack([np.zeros_like(weights), judged], axis=1)
    for claim in claims:
        totals[claim.rows, 0] += weights[claim.rows]
    sides = []
    for side, risk in enumerate(risks):
        loss, bins = np.zeros(n), np.zeros((n, len(claims), _BINS))
        for c, claim in enumerate(claims):
            p, w = np.clip(claim.stated[side], _SMALLEST, 1 - _SMALLEST), weights[claim.rows]
            loss[claim.rows] -= w * np.log(np.where(claim.true, p, 1 - p))
            bins[claim.rows, c, np.minimum((p * _BINS).astype(int), _BINS - 1)] = w * (p - claim.true)
        sides += [loss[:, None], (judged * risk)[:, None], bins.reshape(n, -1)]
    return np.concatenate([totals, *sides], axis=1)


def _figures(sums: FloatArray) -> FloatArray:
    """Return log-loss, calibration error and risk, (2, draws, 3), before and after, from the sums (draws, M)."""
    claimed, judged = np.maximum(sums[:, 0], _SMALLEST), np.maximum(sums[:, 1], _SMALLEST)
    out = []
    for side in np.split(sums[:, 2:], 2, axis=1):
        error = np.abs(side[:, 2:]).sum(axis=1)
        out.append(np.stack([side[:, 0] / claimed, error / claimed, side[:, 1] / judged], axis=1))
    return np.stack(out)
