"""What a report says in words and rows, shared by the terminal tables, the plots and the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from l2h.costs import BoolArray, generalized_loss
from l2h.decision import oracle
from l2h.metrics import Report

KEPT, SENT, ALL = "kept (LOCAL)", "sent (REMOTE)", "all"
_SAME = 1e-12  # risks closer than this differ by rounding alone
_Z95 = 1.959963984540054


@dataclass(frozen=True)
class RiskRow:
    """One rule and what it costs.

    Attributes:
        key: its name in ``metrics.json``.
        name: its name for people.
        risk: generalized 0-1 risk; ``None`` where it was not measured.
        versus: its risk less the system's.
        rate: share of the inputs that it sends; ``None`` where it is not known.
        best: whether no rule but the oracle has a lower risk.
    """

    key: str
    name: str
    risk: float | None
    versus: float | None
    rate: float | None
    best: bool


@dataclass(frozen=True)
class ContrastiveRow:
    """One side of the test set; the accuracies of an empty side are ``None``."""

    name: str
    share: float
    client: float | None
    server: float | None
    difference: float | None


@dataclass(frozen=True)
class Verdict:
    """Whether the system is worth having at these prices.

    Attributes:
        pays: its risk is below that of the best trivial rule.
        clear: the difference is larger than the noise of the test set.
        text: one line that says so.
        rule: the best trivial rule, "never ask" or "always ask".
        difference: the system's risk less that rule's.
        interval: half the width of the 95% interval of ``difference``, from the paired losses; ``None`` for a
            single sample.
    """

    pays: bool
    clear: bool
    text: str
    rule: str
    difference: float
    interval: float | None

    def __str__(self) -> str:
        return self.text


def verdict(report: Report) -> Verdict:
    """Compare the system with the better of never and always asking, and with a confidence threshold.

    The noise is that of the test set alone: the standard error of the paired difference of the losses, in the
    normal approximation. The spread over trainings is another matter, for which several seeds are needed.
    """
    risk, best = report.risk, report.risk.best_trivial
    never = risk.all_local <= risk.all_remote
    rule = "never ask" if never else "always ask"
    difference = risk.system - best
    interval = _interval(report, np.full(len(report.y), not never))
    pays = difference < -_SAME
    clear = interval is not None and abs(difference) > max(interval, _SAME)
    noise = "" if clear or abs(difference) <= _SAME else f", within the noise of {len(report.y):,} samples"
    against = f"{relation(risk.system, best)} the best trivial rule ({rule}){noise}"
    text = _gain(against, clear, report) if pays else _loss(against, never, report)
    return Verdict(pays=pays, clear=clear, text=text, rule=rule, difference=difference, interval=interval)


def headline(report: Report) -> str:
    """The result in one sentence: risk against its baselines, share sent, and the accuracies."""
    risk, accuracy = report.risk, report.accuracy
    rule, best = verdict(report).rule, risk.best_trivial
    against = f"{relation(risk.system, best)} the best trivial rule ({rule}, {number(best)})"
    if risk.confidence is not None:
        beside = relation(risk.system, risk.confidence)
        against += f" and {beside} a confidence threshold ({number(risk.confidence)})"
    return (
        f"At {report.costs} the risk of the system is {number(risk.system)}, {against}; it sends "
        f"{percent(report.reject_rate)} of the inputs, and accuracy goes from {percent(accuracy['client'])} "
        f"(client) to {percent(accuracy['system'])} (system), where the server alone has "
        f"{percent(accuracy['server'])}."
    )


def risk_rows(report: Report) -> list[RiskRow]:
    """The system and every baseline, in the order in which they are shown."""
    right = outcomes(report)
    rate = report.reject_rate
    asked_confidence = None if report.confidence_remote is None else float(report.confidence_remote.mean())
    rows: list[tuple[str, str, float | None, float | None]] = [
        ("system", "this system", report.risk.system, rate),
        ("all_local", "never ask", report.risk.all_local, 0.0),
        ("all_remote", "always ask", report.risk.all_remote, 1.0),
        ("random", "ask at random, same rate", report.risk.random, rate),
        ("confidence", "confidence threshold", report.risk.confidence, asked_confidence),
        ("oracle", "oracle", report.risk.oracle, float(oracle(*right, report.costs).mean())),
    ]
    lowest = min(risk for key, _, risk, _ in rows if risk is not None and key != "oracle")
    return [
        RiskRow(
            key=key,
            name=name,
            risk=risk,
            versus=None if risk is None else risk - report.risk.system,
            rate=sent,
            best=risk is not None and key != "oracle" and risk <= lowest + _SAME,
        )
        for key, name, risk, sent in rows
    ]


def contrastive_rows(report: Report) -> list[ContrastiveRow]:
    """Kept, sent and all."""
    client, server = report.accuracy["client"], report.accuracy["server"]
    sides = [
        ContrastiveRow(name, side.ratio, side.client, side.server, side.difference)
        for name, side in ((KEPT, report.contrastive.local), (SENT, report.contrastive.remote))
    ]
    return [*sides, ContrastiveRow(ALL, 1.0, client, server, server - client)]


def outcomes(report: Report) -> tuple[BoolArray, BoolArray]:
    """Where the client and where the server is right, each (n,)."""
    return report.client_label == report.y, report.server_label == report.y


def relation(value: float, reference: float) -> str:
    """``"12.0% below"``, ``"0.4% above"`` or ``"equal to"``; absolute where the reference is 0."""
    difference = value - reference
    if abs(difference) <= _SAME:
        return "equal to"
    word = "below" if difference < 0 else "above"
    if reference <= 0:
        return f"{abs(difference):.4f} {word}"
    share = abs(difference) / reference
    return f"{share:.1%} {word}" if share >= 0.0005 else f"less than 0.1% {word}"


def percent(value: float | None) -> str:
    """A fraction as a percentage with one decimal; ``n/a`` for a missing value."""
    return "n/a" if value is None or np.isnan(value) else f"{value:.1%}"


def number(value: float | None) -> str:
    """Four decimals; ``n/a`` for a missing value."""
    return "n/a" if value is None else f"{value:.4f}"


def signed(value: float | None, *, points: bool = False) -> str:
    """With its sign: four decimals, or percentage points with one; ``n/a`` for a missing value."""
    if value is None:
        return "n/a"
    # Adding 0.0 turns a -0.0 left by the rounding into 0.0.
    return f"{round(100 * value, 1) + 0.0:+.1f}" if points else f"{round(value, 4) + 0.0:+.4f}"


def plus_minus(value: Mapping[str, Any] | None, digits: int = 4, factor: int = 1) -> str:
    """Mean and standard error over seeds; the mean alone for one seed, ``n/a`` for a missing value."""
    if value is None:
        return "n/a"
    mean = f"{factor * value['mean']:.{digits}f}"
    return mean if value["sem"] is None else f"{mean} ± {factor * value['sem']:.{digits}f}"


def one_line(text: str, longest: int = 24) -> str:
    """A name from a stranger on one line, shortened; ``?`` where nothing of it can be shown."""
    line = "".join(c if c.isprintable() else " " for c in str(text)).strip() or "?"
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _gain(against: str, clear: bool, report: Report) -> str:
    opening = "asking pays" if clear else "asking may pay"
    confidence = report.risk.confidence
    if confidence is None:
        return f"{opening}: {against}"
    beside = f"{relation(report.risk.system, confidence)} a confidence threshold"
    if confidence < report.risk.system - _SAME:
        return f"{opening}, but a plain confidence threshold does better: {against}, {beside}"
    return f"{opening}: {against}, {beside}"


def _loss(against: str, never: bool, report: Report) -> str:
    confidence, best = report.risk.confidence, report.risk.best_trivial
    closing = "does not pay at these prices"
    if confidence is not None and confidence < best - _SAME:
        beside = f"while a confidence threshold is {relation(confidence, best)} that rule"
        return f"this system {closing}: {against}, {beside}"
    # Where always asking is the best trivial rule, it is the keeping that does not pay.
    return f"{'asking' if never else 'keeping inputs local'} {closing}: {against}"


def _interval(report: Report, remote: BoolArray) -> float | None:
    if len(report.y) < 2:
        return None
    right = outcomes(report)
    ours, theirs = (generalized_loss(*right, sent, report.costs) for sent in (report.remote, remote))
    paired = ours - theirs
    return _Z95 * float(paired.std(ddof=1)) / float(np.sqrt(len(paired)))
