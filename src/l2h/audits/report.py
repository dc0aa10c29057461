"""What the pairs of an audit show: without labels, and beside the promise where labels came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from l2h.audits import estimates
from l2h.audits.estimates import Estimate, platt_test, too_few, too_many, weighted_mean
from l2h.audits.lines import AuditError
from l2h.audits.reading import AuditPairs, read_audits
from l2h.costs import BoolArray, FloatArray
from l2h.metrics import Reliability, expected_calibration_error, reliability_curve

#: A p-value below it is called a sign.
SIGN = 0.05
#: Heads are judged in at most so many groups of inputs, each of at least so many pairs.
_GROUPS, _GROUP = 5, 40


@dataclass(frozen=True)
class Saved:
    """What the system saves per input against a rule that needs no rejector; below 0 it costs more.

    ``least`` and ``most`` hold whatever the labels are. ``stated`` holds if the heads are calibrated. ``realised`` is
    of the pairs with labels.
    """

    least: Estimate
    most: Estimate
    stated: Estimate | None
    realised: Estimate | None


@dataclass(frozen=True)
class DisagreementGroup:
    """Pairs whose heads state much the same, and how often their answers differ."""

    pairs: int
    stated: float  # mean probability that the device's answer is right
    least: float  # of them may differ by what the heads state
    most: float
    observed: float


@dataclass(frozen=True)
class HeadCheck:
    """How often an answerer was right on labelled pairs, beside what its head states."""

    pairs: int
    stated: float
    observed: Estimate
    p_value: float  # of the hypothesis that the head needs no other scale and shift
    error: float  # the expected calibration error
    curve: Reliability


@dataclass(frozen=True)
class Risk:
    """What an input costs on the average: as the heads state it, and by labels."""

    stated: Estimate | None
    realised: Estimate | None
    difference: Estimate | None  # realised less stated, on the same pairs
    never: Estimate | None  # by labels, of never asking
    always: Estimate | None  # by labels, of always asking


@dataclass(frozen=True)
class AuditReport:
    """What :func:`audit_report` found; ``as_dict`` gives plain values, ``sentences`` what they mean."""

    bundle: str
    name: str
    devices: tuple[str, ...]
    files: int
    since: float  # seconds since 1970, of the first pair and the last
    until: float
    audited: int  # pairs asked by chance, with the server's answer
    asked: int  # pairs asked anyway
    labels: int
    unanswered: Mapping[str, int]  # requests without an answer, by reason
    inputs: float  # how many the pairs stand for
    asked_share: Estimate  # of all inputs
    agreement: Mapping[str, Estimate | None]  # of the device and the server: on the ``kept`` side, and where ``asked``
    servers: Mapping[str, Estimate | None]  # on the kept side, of each server
    saved: Mapping[str, Saved]  # against ``never`` asking and ``always`` asking
    audit_cost: float  # of the audits themselves, per input
    disagreement: tuple[DisagreementGroup, ...]  # empty where the rejector states no probabilities
    p_value: float | None  # of the hypothesis that the heads are calibrated, by agreement alone
    heads: Mapping[str, HeadCheck]  # by labels
    risk: Risk
    left_out: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = asdict(self)
        for name, check in self.heads.items():
            values["heads"][name]["curve"] = check.curve.as_dict()
        return values | {"calibrated": self.calibrated, "sentences": list(self.sentences())}

    @property
    def calibrated(self) -> bool | None:
        """False where there is a sign that a head is not; None where nothing could be tested."""
        tested = [] if self.p_value is None else [self.p_value]
        # Of several heads the smallest p-value counts as often as there are heads.
        tested += [min(1.0, check.p_value * len(self.heads)) for check in self.heads.values()]
        return min(tested) >= SIGN if tested else None

    def figures(self) -> dict[str, Estimate]:
        """Return every estimate by a name for people."""
        risk = self.risk
        found = {
            "asked": self.asked_share,
            "agree where kept": self.agreement["kept"],
            "agree where asked": self.agreement["asked"],
            **{f"agree where kept, {name}": estimate for name, estimate in self.servers.items()},
            "risk, if the heads are calibrated": risk.stated,
            "risk, by labels": risk.realised,
            "risk of never asking, by labels": risk.never,
            "risk of always asking, by labels": risk.always,
        }
        for rule, saved in self.saved.items():
            found |= {
                f"saved against {rule} asking, at least": saved.least,
                f"saved against {rule} asking, at most": saved.most,
                f"saved against {rule} asking, if the heads are calibrated": saved.stated,
                f"saved against {rule} asking, by labels": saved.realised,
            }
        return {name: estimate for name, estimate in found.items() if estimate is not None}

    def about(self) -> dict[str, str]:
        """Return what the pairs are, for people."""
        unanswered = ", ".join(f"{reason} {count}" for reason, count in self.unanswered.items())
        return {
            "bundle": f"{self.name} {self.bundle}",
            "devices": ", ".join(self.devices) or "without names",
            "pairs": f"{self.audited} asked by chance, {self.asked} asked anyway, {self.labels} with a label",
            "without an answer": unanswered or "none",
            "stand for": f"about {self.inputs:.0f} inputs, {_day(self.since)} to {_day(self.until)} UTC",
            "audits cost": f"{self.audit_cost:.3g} per input",
        }

    def sentences(self) -> Iterator[str]:
        """Yield what the figures mean, one sentence each."""
        kept = self.agreement["kept"]
        if kept is None:
            yield "No input was asked by chance: nothing is known of the kept side."
        else:
            yield f"On the kept side device and server agree on {_percent(kept)} of inputs."
        for rule, saved in self.saved.items():
            yield f"Against {rule} asking, {_saving(saved)}."
        if self.calibrated is None:
            yield "Whether the heads are calibrated cannot be told: the rejector states no probabilities."
        elif not self.calibrated:
            yield f"The heads are no longer calibrated: {self._why()}. Calibrate again: l2h recalibrate."
        else:
            what = "labels and agreement" if self.heads else "agreement"
            yield f"By {what} there is no sign that the heads are not calibrated."
        realised, stated, off = self.risk.realised, self.risk.stated, self.risk.difference
        if realised is not None:
            text = f"The realised risk is {realised}"
            if stated is not None and off is not None:
                clear = "more than" if off.low > 0 else "less than" if off.high < 0 else "in line with"
                text += f", {clear} the {stated.value:.3g} that the heads promise"
            yield f"{text}."

    def _why(self) -> str:
        found = [
            f"the {name} is right on {_percent(check.observed)} of the labelled inputs, its head states "
            f"{100 * check.stated:.3g}% (p = {check.p_value:.2g})"
            for name, check in self.heads.items()
            if check.p_value * len(self.heads) < SIGN
        ]
        if self.p_value is not None and self.p_value < SIGN:
            worst = max(
                self.disagreement, key=lambda group: max(group.observed - group.most, group.least - group.observed)
            )
            more = worst.observed > worst.most
            found.append(
                f"where the device's answer is stated to be right with {100 * worst.stated:.3g}%, device and server "
                f"differ on {100 * worst.observed:.3g}% of inputs, {'more' if more else 'less'} than the heads allow "
                f"({100 * (worst.most if more else worst.least):.3g}%; p = {self.p_value:.2g} over all groups)"
            )
        return "; ".join(found)


def audit_report(*sources: str | Path | AuditPairs, bundle: str | None = None) -> AuditReport:
    """Return what the pairs in folders or files show, of one bundle; that of the newest file where None.

    Example:
        >>> print(*audit_report("audits/").sentences(), sep="\\n")           # doctest: +SKIP

    Raises:
        AuditError: a source cannot be read, holds no pair of the bundle, or none that a server has answered.
    """
    if len(sources) == 1 and isinstance(sources[0], AuditPairs):
        every = sources[0]
    else:
        every = read_audits(*(str(source) for source in sources), bundle=bundle)
    pairs = every.rows(every.answered)
    if not len(pairs):
        reasons = ", ".join(f"{reason} {count}" for reason, count in Counter(every.fault.tolist()).most_common())
        raise AuditError(f"no server answered any of the {len(every)} inputs that were asked: {reasons}")
    agree, w = pairs.own == pairs.server, pairs.weight
    kept = ~pairs.asked
    sides = {name: weighted_mean(agree[side], w[side]) for name, side in (("kept", kept), ("asked", pairs.asked))}
    names = pairs.header.answerers
    by = {name: kept & (pairs.by == j) for j, name in enumerate(names) if j >= pairs.header.local}
    groups, p_value = _disagreement(pairs, agree)
    share = weighted_mean(pairs.asked, w)
    assert share is not None
    prices = pairs.costs[:, 2] - pairs.costs[:, 0]
    return AuditReport(
        bundle=pairs.header.bundle,
        name=pairs.header.name,
        devices=pairs.devices,
        files=pairs.files,
        since=float(every.time.min()),
        until=float(every.time.max()),
        audited=int(kept.sum()),
        asked=int(pairs.asked.sum()),
        labels=int((pairs.label >= 0).sum()),
        unanswered=dict(Counter(every.fault[~every.answered].tolist())),
        inputs=float(w.sum()),
        asked_share=share,
        agreement=sides,
        servers={name: weighted_mean(agree[rows], w[rows]) for name, rows in by.items()} if len(by) > 1 else {},
        saved=_saved(pairs, agree),
        audit_cost=float(prices[kept].sum() / w.sum()),
        disagreement=groups,
        p_value=p_value,
        heads=_heads(pairs),
        risk=_risk(pairs),
        left_out=tuple(map(str, pairs.left_out)),
    )


def _saved(pairs: AuditPairs, agree: BoolArray) -> dict[str, Saved]:
    """Return what the decisions save against never asking, by what was asked, and against always, by what was kept."""
    low, high = estimates.saving_bounds(agree, pairs.costs)
    stated, (own, server) = _stated_costs(pairs), _losses(pairs)
    by_heads = None if stated is None else stated[0] - stated[1]
    less = None if by_heads is None else -by_heads
    return {
        "never": _against(pairs, pairs.asked, (low, high), by_heads, own - server),
        "always": _against(pairs, ~pairs.asked, (-high, -low), less, server - own),
    }


def _against(
    pairs: AuditPairs,
    counts: BoolArray,  # where the decision differs from the rule; elsewhere it saves nothing
    bounds: tuple[FloatArray, FloatArray],
    stated: FloatArray | None,
    realised: FloatArray,
) -> Saved:
    ends = min(0.0, float(bounds[0].min())), max(0.0, float(bounds[1].max()))
    least, most = (weighted_mean(np.where(counts, bound, 0.0), pairs.weight, *ends) for bound in bounds)
    assert least is not None
    assert most is not None
    labelled, weight = _labelled(pairs)
    return Saved(
        least,
        most,
        None if stated is None else weighted_mean(np.where(counts, stated, 0.0), pairs.weight, *ends),
        weighted_mean(np.where(counts, realised, 0.0)[labelled], weight[labelled], *ends),
    )


def _risk(pairs: AuditPairs) -> Risk:
    stated, (labelled, w) = _stated_costs(pairs), _labelled(pairs)
    own, server = _losses(pairs)
    top = float(pairs.costs.max())
    loss = np.where(pairs.asked, server, own)
    expected = None if stated is None else np.where(pairs.asked, stated[1], stated[0])

    def mean(values: FloatArray) -> Estimate | None:
        return weighted_mean(values[labelled], w[labelled], 0.0, top)

    return Risk(
        stated=None if expected is None else weighted_mean(expected, pairs.weight, 0.0, top),
        realised=mean(loss),
        difference=None if expected is None else weighted_mean((loss - expected)[labelled], w[labelled], -top, top),
        never=mean(own),
        always=mean(server),
    )


def _stated_costs(pairs: AuditPairs) -> tuple[FloatArray, FloatArray] | None:
    """Return what the device's answer and the server's are expected to cost (n,); None where no head states it."""
    if np.isnan(pairs.stated).any():
        return None
    rows, (c_cc, c_ce, c_sc, c_se) = np.arange(len(pairs)), pairs.costs.T
    own, server = pairs.stated[rows, pairs.local], pairs.stated[rows, pairs.by]
    return c_ce - (c_ce - c_cc) * own, c_se - (c_se - c_sc) * server


def _losses(pairs: AuditPairs) -> tuple[FloatArray, FloatArray]:
    """Return what the device's answer and the server's cost (n,), of pairs with labels."""
    c_cc, c_ce, c_sc, c_se = pairs.costs.T
    return np.where(pairs.own == pairs.label, c_cc, c_ce), np.where(pairs.server == pairs.label, c_sc, c_se)


def _labelled(pairs: AuditPairs) -> tuple[BoolArray, FloatArray]:
    """Return which pairs have labels, and weights with which these stand for all pairs of their kind."""
    labelled, w = pairs.label >= 0, pairs.weight
    for kind in (pairs.asked, ~pairs.asked):
        known = kind & labelled
        if known.any():
            w = np.where(kind, w * (pairs.weight[kind].sum() / pairs.weight[known].sum()), w)
    return labelled, w


def _disagreement(pairs: AuditPairs, agree: BoolArray) -> tuple[tuple[DisagreementGroup, ...], float | None]:
    """Return how often answers differ beside what the heads allow, in groups, and the p-value over all of them.

    In a group of independent pairs the number that differ is at most, and at least, that of independent events with
    the bounds as their probabilities. There are two tests per group, so the smallest p-value counts that many times.
    """
    if np.isnan(pairs.stated).any():
        return (), None
    rows = np.arange(len(pairs))
    own, server = pairs.stated[rows, pairs.local], pairs.stated[rows, pairs.by]
    least, most = estimates.disagreement_bounds(own, server)
    count = max(1, min(_GROUPS, len(pairs) // _GROUP))
    groups, p_values = [], []
    for part in np.array_split(np.argsort(own, kind="stable"), count):
        differ = int((~agree[part]).sum())
        p_values += [too_many(differ, most[part]), too_few(differ, least[part])]
        ends = float(least[part].mean()), float(most[part].mean())
        groups.append(DisagreementGroup(len(part), float(own[part].mean()), *ends, differ / len(part)))
    return tuple(groups), min(1.0, min(p_values) * len(p_values))


def _heads(pairs: AuditPairs) -> dict[str, HeadCheck]:
    out = {}
    for j, name in enumerate(pairs.header.answerers):
        remote = j >= pairs.header.local
        answer = pairs.server if remote else pairs.client if j == 0 else pairs.student
        rows = (pairs.label >= 0) & (answer >= 0) & ~np.isnan(pairs.stated[:, j])
        if remote:
            rows &= pairs.by == j
        if not rows.any():
            continue
        p, right = pairs.stated[rows, j], (answer == pairs.label)[rows]
        observed = weighted_mean(right, np.ones(len(right)))
        assert observed is not None
        inside = np.clip(p, 1e-12, 1 - 1e-12)
        out[name] = HeadCheck(
            pairs=len(right),
            stated=float(p.mean()),
            observed=observed,
            p_value=platt_test(np.log(inside) - np.log1p(-inside), right),
            error=expected_calibration_error(p, right),
            curve=reliability_curve(p, right),
        )
    return out


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.3g}% ({100 * estimate.low:.3g}% to {100 * estimate.high:.3g}%)"


def _saving(saved: Saved) -> str:
    parts = [f"between {saved.least.low:.3g} and {saved.most.high:.3g} per input, whatever the labels are"]
    if saved.stated is not None:
        parts.append(f"{saved.stated} if the heads are calibrated")
    if saved.realised is not None:
        parts.append(f"{saved.realised} by the labels")
    return f"it saves {'; '.join(parts)}"


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
