"""What a report says in words and in tables: whether asking the server pays, by how much, and for whom."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from l2h.costs import BoolArray
from l2h.decision import CLIENT, Answerer
from l2h.metrics import AnswererChoice, OutcomeReport, Report, Side
from l2h.report.common.table import Column, TextTable, headings, texts
from l2h.report.common.text import MISSING, SAME, counted, number, percent, plus_minus, relation, signed

KEPT, SENT, ALL = "kept (LOCAL)", "sent (REMOTE)", "all"
#: The rules that risk is compared over, by their names in ``metrics.json``.
RULES = {
    "system": "this system",
    "all_local": "never ask",
    "all_remote": "always ask",
    "random": "ask at random, same rate",
    "confidence": "confidence threshold",
    "oracle": "oracle",
}
_GAINS = {"gain": "this system", "confidence_gain": "confidence", "label_free_gain": "label-free bound"}
_WHO = [Column("client", kind="client"), Column("server", kind="server")]
_Z95 = 1.959963984540054


@dataclass(frozen=True)
class Verdict:
    """Whether the system is worth having at these prices."""

    pays: bool  # its risk is below that of the best trivial rule
    clear: bool  # the difference is larger than the noise of the test set
    text: str  # one line that says so
    rule: str  # the best trivial rule, "never ask" or "always ask"
    difference: float  # the system's risk minus that rule's
    interval: float | None  # half the 95% interval of the difference, from the paired losses; None for one sample

    @property
    def standing(self) -> str:
        """``good`` if it clearly pays, ``unsure`` if it may pay, else ``bad``."""
        return "bad" if not self.pays else "good" if self.clear else "unsure"

    def __str__(self) -> str:
        return self.text


def verdict(report: OutcomeReport) -> Verdict:
    """Compare the system with the better of never and always asking, and with a confidence threshold.

    The noise is that of the test set alone: the standard error of the paired difference of the losses, in the
    normal approximation. It says nothing about the spread over trainings, which needs several seeds.
    """
    risk, best = report.risk, report.risk.best_trivial
    never = risk.all_local <= risk.all_remote
    rule = "never ask" if never else "always ask"
    difference = risk.system - best
    interval = _interval(report, report.choice.always(CLIENT if never else _best_server(report)))
    pays = difference < -SAME
    clear = interval is not None and abs(difference) > max(interval, SAME)
    noise = "" if clear or abs(difference) <= SAME else f"; within the noise of {len(report):,} samples"
    against = f"the risk is {relation(risk.system, best)} the best trivial rule ({rule}{noise})"
    text = _gain(against, clear, report) if pays else _loss(against, never, report)
    student = report.student_risk if isinstance(report, Report) else None
    if student is not None and student < risk.system - SAME:
        text += f"; but the rejector's student in the client's place would cost less ({number(student)})"
    return Verdict(pays=pays, clear=clear, text=text, rule=rule, difference=difference, interval=interval)


def headline(report: OutcomeReport) -> str:
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


def risk_table(report: OutcomeReport) -> TextTable:
    """Return the risk of the system and its baselines, the best one marked (the oracle excluded), and the verdict."""
    risks, asked, system = report.risk.as_dict(), report.confidence_remote, report.risk.system
    rates = {
        "system": report.reject_rate,
        "all_local": 0.0,
        "all_remote": 1.0,
        "random": report.reject_rate,
        "confidence": None if asked is None else float(asked.mean()),
        "oracle": report.choice.cheapest(report.costs).reject_rate,
    }
    lowest = min(risk for key, risk in risks.items() if risk is not None and key != "oracle")
    rows = []
    for key, name in RULES.items():
        risk = risks[key]
        best = risk is not None and key != "oracle" and risk <= lowest + SAME
        versus = "" if key == "system" else signed(None if risk is None else risk - system)
        kind = "best" if best else "beyond" if key == "oracle" else ""
        rows.append(texts(name + " (best)" * best, number(risk), versus, percent(rates[key]), kind=kind))
    if isinstance(report, Report) and report.student_risk is not None:
        risk = report.student_risk
        rows.append(texts("its student in the client's place", number(risk), signed(risk - system), percent(0.0)))
    result = verdict(report)
    colour = {"good": "green", "unsure": "yellow", "bad": "red"}[result.standing]
    title, columns = f"{report.dataset}: risk at {report.costs}", headings("rule", "risk", "vs system", "reject rate")
    return TextTable(title, columns, rows, result.text, style=f"bold {colour}")


def compute_table(report: Report) -> TextTable:
    """Return the multiply-adds of an input through client, rejector and server, also in units of the client's."""
    counts = (report.compute or {}).get("multiply_adds", {})
    client = counts.get("client")
    rows = []
    for name in ("client", "rejector", "server"):
        count = counts.get(name)
        times = f"{count / client:.2f}" if count is not None and client else MISSING
        rows.append(texts(name, MISSING if count is None else f"{count:,}", times))
    budget = (report.compute or {}).get("budget") or {}
    notes = [f"budget of the rejector: {budget['asked']}"] if budget else []
    notes += [budget["assumed"]] if budget.get("assumed") else []
    title = f"{report.dataset}: work per input"
    return TextTable(title, headings("model", "multiply-adds", "times the client"), rows, "; ".join(notes))


def sides(report: OutcomeReport) -> dict[str, Side]:
    """Return the accuracies of both classifiers on the inputs kept, on those sent, and on all, by name."""
    everything = Side(1.0, report.accuracy["client"], report.accuracy["server"])
    return {KEPT: report.contrastive.local, SENT: report.contrastive.remote, ALL: everything}


def contrastive_table(report: OutcomeReport) -> TextTable:
    """Return both accuracies on the inputs kept, on those sent, and on all; ``n/a`` for an empty side."""
    rows = []
    for name, side in sides(report).items():
        shares = (percent(share) for share in (side.ratio, side.client, side.server))
        rows.append(texts(name, *shares, signed(side.difference, points=True)))
    columns = [*headings("inputs", "share"), *_WHO, Column("difference")]
    note = f"joint accuracy {percent(report.contrastive.joint)}"
    return TextTable(f"{report.dataset}: accuracy on the inputs kept and sent", columns, rows, note)


def class_table(report: Report) -> TextTable:
    """Return the reject rate and the accuracies of each class; ``n/a`` for a class that does not occur."""
    rows = []
    for k, (name, rate) in enumerate(zip(report.class_names, report.per_class, strict=True)):
        here = report.y == k
        right = [float(of[here].mean()) if here.any() else None for of in _outcomes(report)]
        rows.append(texts(name, str(here.sum()), percent(rate), *map(percent, right)))
    return TextTable("", [*headings("class", "samples", "reject rate"), *_WHO], rows)


def spread_table(merged: Mapping[str, Any], n: int) -> TextTable:
    """Return mean and standard error over n seeds of what :func:`l2h.metrics.spread_of_reports` gives."""
    accuracy, risk, frontier = (merged.get(key) or {} for key in ("accuracy", "risk", "frontier"))
    shares = {f"{who} accuracy": accuracy.get(who) for who in ("client", "server", "system")}
    shares["reject rate"] = merged.get("reject_rate")
    rows = [texts(f"{name}, %", plus_minus(value, ".2f", factor=100)) for name, value in shares.items()]
    rows += [texts(f"risk: {name}", plus_minus(risk.get(key))) for key, name in RULES.items()]
    rows += [texts(f"frontier gain: {name}", plus_minus(frontier.get(key))) for key, name in _GAINS.items()]
    note = f"mean ± standard error over {n} seeds" if n > 1 else "one seed: no spread"
    columns = headings("figure", "mean ± s.e." if n > 1 else "value")
    return TextTable(counted(n, "seed") + _prices(merged), columns, rows, note)


def _prices(merged: Mapping[str, Any]) -> str:
    costs = merged.get("costs") or {}
    if not all(costs.get(name) for name in ("c_1", "c_e")):
        return ""
    if any((costs[name]["std"] or 0.0) > 1e-9 for name in ("c_1", "c_e")):
        return " at different prices"
    return f" at c_1={costs['c_1']['mean']:g}, c_e={costs['c_e']['mean']:g}"


def _outcomes(report: OutcomeReport) -> tuple[BoolArray, BoolArray]:
    """Where the client and where the server is right, each bool (n,)."""
    return report.client_correct, report.server_correct


def _gain(against: str, clear: bool, report: OutcomeReport) -> str:
    opening = "asking pays" if clear else "asking may pay"
    confidence = report.risk.confidence
    if confidence is None:
        return f"{opening}: {against}"
    if confidence < report.risk.system - SAME:
        opening += ", but a plain confidence threshold does better"
    return f"{opening}: {against} and {relation(report.risk.system, confidence)} a confidence threshold"


def _loss(against: str, never: bool, report: OutcomeReport) -> str:
    confidence, best = report.risk.confidence, report.risk.best_trivial
    closing = "does not pay at these prices"
    if confidence is not None and confidence < best - SAME:
        other = f"while a confidence threshold is {relation(confidence, best)} that rule"
        return f"this system {closing}: {against}, {other}"
    # Where always asking is the best trivial rule, it is answering locally that does not pay.
    return f"{'asking' if never else 'answering locally'} {closing}: {against}"


def _best_server(report: OutcomeReport) -> Answerer:
    """Return the server that costs least where it is always asked."""
    return min(report.choice.servers, key=lambda server: report.choice.always(server).risk(report.costs))


def _interval(report: OutcomeReport, rule: AnswererChoice) -> float | None:
    if len(report) < 2:
        return None
    paired = report.choice.losses(report.costs) - rule.losses(report.costs)
    return _Z95 * float(paired.std(ddof=1)) / float(np.sqrt(len(paired)))
