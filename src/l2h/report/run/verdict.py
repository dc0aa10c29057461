"""What a report says in words: whether asking the server pays, and by how much."""

from dataclasses import dataclass

import numpy as np

from l2h.costs import BoolArray, generalized_loss
from l2h.metrics import Report
from l2h.report.common.text import SAME, number, percent, relation

_Z95 = 1.959963984540054


@dataclass(frozen=True)
class Verdict:
    """Whether the system is worth having at these prices.

    Attributes:
        pays: its risk is below that of the best trivial rule.
        clear: the difference is larger than the noise of the test set.
        text: one line that says so.
        rule: the best trivial rule, "never ask" or "always ask".
        difference: the system's risk minus that rule's.
        interval: half the width of the 95% interval of ``difference``, from the paired losses; ``None`` for a
            single sample.
    """

    pays: bool
    clear: bool
    text: str
    rule: str
    difference: float
    interval: float | None

    @property
    def standing(self) -> str:
        """``good`` if it clearly pays, ``unsure`` if it may pay, else ``bad``."""
        return "bad" if not self.pays else "good" if self.clear else "unsure"

    def __str__(self) -> str:
        return self.text


def verdict(report: Report) -> Verdict:
    """Compare the system with the better of never and always asking, and with a confidence threshold.

    The noise is that of the test set alone: the standard error of the paired difference of the losses, in the
    normal approximation. It says nothing about the spread over trainings, which needs several seeds.
    """
    risk, best = report.risk, report.risk.best_trivial
    never = risk.all_local <= risk.all_remote
    rule = "never ask" if never else "always ask"
    difference = risk.system - best
    interval = _interval(report, np.full(len(report.y), not never))
    pays = difference < -SAME
    clear = interval is not None and abs(difference) > max(interval, SAME)
    noise = "" if clear or abs(difference) <= SAME else f"; within the noise of {len(report.y):,} samples"
    against = f"the risk is {relation(risk.system, best)} the best trivial rule ({rule}{noise})"
    text = _gain(against, clear, report) if pays else _loss(against, never, report)
    return Verdict(pays=pays, clear=clear, text=text, rule=rule, difference=difference, interval=interval)


def headline(report: Report) -> str:
    """Return the result in three sentences: risk against its baselines, share sent, and the accuracies."""
    risk, accuracy = report.risk, report.accuracy
    rule, best = verdict(report).rule, risk.best_trivial
    against = f"{relation(risk.system, best)} the best trivial rule ({rule}, {number(best)})"
    if risk.confidence is not None:
        against += f" and {relation(risk.system, risk.confidence)} a confidence threshold ({number(risk.confidence)})"
    return (
        f"At {report.costs} the risk of the system is {number(risk.system)}, {against}. It asks the server for "
        f"{percent(report.reject_rate)} of the inputs. Its accuracy is {percent(accuracy['system'])}; the client "
        f"alone has {percent(accuracy['client'])}, the server alone {percent(accuracy['server'])}."
    )


def outcomes(report: Report) -> tuple[BoolArray, BoolArray]:
    """Return where the client and where the server is right, each bool (n,)."""
    return report.client_label == report.y, report.server_label == report.y


def _gain(against: str, clear: bool, report: Report) -> str:
    opening = "asking pays" if clear else "asking may pay"
    confidence = report.risk.confidence
    if confidence is None:
        return f"{opening}: {against}"
    if confidence < report.risk.system - SAME:
        opening += ", but a plain confidence threshold does better"
    return f"{opening}: {against} and {relation(report.risk.system, confidence)} a confidence threshold"


def _loss(against: str, never: bool, report: Report) -> str:
    confidence, best = report.risk.confidence, report.risk.best_trivial
    closing = "does not pay at these prices"
    if confidence is not None and confidence < best - SAME:
        other = f"while a confidence threshold is {relation(confidence, best)} that rule"
        return f"this system {closing}: {against}, {other}"
    # Where always asking is the best trivial rule, it is answering locally that does not pay.
    return f"{'asking' if never else 'answering locally'} {closing}: {against}"


def _interval(report: Report, remote: BoolArray) -> float | None:
    if len(report.y) < 2:
        return None
    right = outcomes(report)
    ours, theirs = (generalized_loss(*right, sent, report.costs) for sent in (report.remote, remote))
    paired = ours - theirs
    return _Z95 * float(paired.std(ddof=1)) / float(np.sqrt(len(paired)))
