"""What a report says in words: whether asking pays, by how much, and who answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from l2h.costs import prices_text
from l2h.decision import STUDENT
from l2h.metrics import OutcomeReport, Report, best_trivial, money_sentence
from l2h.metrics.standing import SAME, Standing, interval_to
from l2h.report.common.text import number, percent, relation


@dataclass(frozen=True)
class Verdict(Standing):
    """Whether the system is worth having at these prices, beside the best trivial rule."""

    text: str  # one line that says so

    def __str__(self) -> str:
        return self.text


def verdict(report: OutcomeReport) -> Verdict:
    """Compare the system with the best of never and always asking, and with a confidence threshold.

    Always asking is meant of each server; where the student may answer, it alone is a trivial rule too. Under a limit
    these rules keep to it: always asking becomes asking as often as it allows, at random. The noise is
    that of the test set alone: the standard error of the paired difference of the losses, in the normal approximation.
    It says nothing about the spread over trainings, which needs several seeds.
    """
    found = best_trivial(report)
    noise = "" if found.clear or abs(found.difference) <= SAME else f"; within the noise of {len(report):,} samples"
    against = f"the risk is {relation(report.risk.system, found.risk)} the best trivial rule ({found.rule}{noise})"
    text = _gain(against, found.clear, report) if found.pays else _loss(against, found, report)
    if report.allowed is not None and report.reject_rate > report.allowed.share + SAME:
        sent = f"{percent(report.reject_rate)} against {percent(report.allowed.share)}"
        text += (
            f"; the system asked about more than the limit allows here ({sent}), since a share is met in expectation"
        )
    better = [text for text in (_fewer_servers(report), _student(report)) if text]
    if better:
        text += f"; but {'; and '.join(better)}"
    return Verdict(**vars(found), text=text)


def headline(report: OutcomeReport) -> str:
    """Return the result in a few sentences: risk against its baselines, who answers, the accuracies, and the money."""
    risk, result = report.risk, verdict(report)
    against = f"{relation(risk.system, result.risk)} the best trivial rule ({result.rule}, {number(result.risk)})"
    if risk.confidence is not None:
        against += f" and {relation(risk.system, risk.confidence)} a confidence threshold ({number(risk.confidence)})"
    figures, several = report.choice.figures(), len(report.choice.servers) > 1
    called = {one: one.name if several and one.remote else f"the {one.name}" for one in report.answerers}
    asks = joined([f"{called[one]} for {percent(figures[one.name].share)}" for one in report.choice.servers])
    student = f", and its student answers {percent(figures['student'].share)}" if STUDENT in report.answerers else ""
    alone = [f"{called[one]} alone {percent(figures[one.name].accuracy)}" for one in report.answerers[1:]]
    money = "" if report.money is None else f" It {money_sentence(report)}."
    return (
        f"At {prices_text(report.costs)}{within_limit(report)} the risk of the system is {number(risk.system)}, "
        f"{against}. It asks {asks} of the inputs{student}. Its accuracy is {percent(report.accuracy['system'])}; "
        f"the client alone has {percent(report.accuracy['client'])}, {', '.join(alone)}.{money}"
    )


def within_limit(report: OutcomeReport) -> str:
    """Return `` within the limit 20%``, or nothing where there is none."""
    return "" if report.allowed is None else f" within the limit {report.allowed.limit}"


def joined(parts: Sequence[str]) -> str:
    """Return ``"a"``, ``"a and b"`` or ``"a, b and c"``."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _gain(against: str, clear: bool, report: OutcomeReport) -> str:
    opening = ("asking pays" if clear else "asking may pay") + within_limit(report)
    confidence = report.risk.confidence
    if confidence is None:
        return f"{opening}: {against}"
    if confidence < report.risk.system - SAME:
        opening += ", but a plain confidence threshold does better"
    return f"{opening}: {against} and {relation(report.risk.system, confidence)} a confidence threshold"


def _loss(against: str, best: Standing, report: OutcomeReport) -> str:
    confidence = report.risk.confidence
    closing = f"does not pay at these prices{within_limit(report)}"
    if confidence is not None and confidence < best.risk - SAME:
        other = f"while a confidence threshold is {relation(confidence, best.risk)} that rule"
        return f"this system {closing}: {against}, {other}"
    # Where always asking is the best trivial rule, it is answering locally that does not pay.
    what = "asking" if not best.answerer.remote else "answering locally" if report.allowed is None else "this system"
    return f"{what} {closing}: {against}"


def _fewer_servers(report: OutcomeReport) -> str:
    """Say so where one server of several would do better alone by more than the noise."""
    alone = {
        one.name: report.alternatives[one.name] for one in report.choice.servers if one.name in report.alternatives
    }
    risks = {name: choice.risk(report.costs) for name, choice in alone.items()}
    best = min(risks, key=risks.__getitem__, default="")
    if not best:
        return ""
    noise = interval_to(report, alone[best].losses(report.costs)) or 0.0
    if report.risk.system - risks[best] <= max(noise, SAME):
        return ""
    return f"asking {best} alone would cost less: {number(risks[best])} against {number(report.risk.system)}"


def _student(report: OutcomeReport) -> str:
    """Say so where the student alone would do better, and what it would do as a second opinion."""
    student, system = report.student_risk if isinstance(report, Report) else None, report.risk.system
    if student is None or student >= system - SAME or STUDENT in report.answerers:
        return ""
    text = "the rejector's student alone, in the client's place and asking nobody, would cost less: "
    text += f"{number(student)} against {number(system)}"
    three = report.alternatives.get("three_ways")
    return text if three is None else f"{text} (as a second opinion {number(three.risk(report.costs))})"
