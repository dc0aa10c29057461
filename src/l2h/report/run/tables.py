"""The tables of a report: risk beside its baselines, who answers what, the work of an input, and every class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from l2h.costs import Costs, prices_text
from l2h.decision import STUDENT
from l2h.metrics import AnswererChoice, OutcomeReport, Report, Side, money_sentence
from l2h.metrics.risk import random_shares
from l2h.metrics.standing import SAME, rule_name, trivial_name
from l2h.report.common.table import Column, TextTable, headings, texts
from l2h.report.common.text import MISSING, counted, number, percent, plus_minus, signed
from l2h.report.run.verdict import verdict, within_limit

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
#: Changes to the system, by their names in ``metrics.json``.
WAYS = {"three_ways": "with its student as a second opinion", "two_ways": "without the second opinion"}
STUDENT_ALONE = "its student in the client's place"
_GAINS = {"gain": "this system", "confidence_gain": "confidence", "label_free_gain": "label-free bound"}


@dataclass(frozen=True)
class RiskRow:
    """A rule, what it costs, how often it is right and how often it asks; None where that was not measured."""

    key: str  # its place in ``metrics.json``: ``all_local``, with several servers ``by_server.NAME``
    name: str
    risk: float | None
    accuracy: float | None
    rate: float | None
    kind: str = ""  # "system"; "oracle", which no device can follow; "beside" for another system than this one


def risk_rows(report: OutcomeReport) -> list[RiskRow]:
    """Return this system, the rules that it must beat, the oracle, and what the system would be if it were changed."""
    choice, several, confidence = report.choice, len(report.choice.servers) > 1, report.confidence_choice
    asked = "" if confidence is None or not several else f", asking {_asked(report)}"
    rows = [
        _measured(report, "system", RULES["system"], choice, "system"),
        _measured(report, "all_local", RULES["all_local"], choice.always(choice.answerers[0])),
    ]
    for one in choice.servers:
        key, share = f"by_server.{one.name}" if several else "all_remote", _most(report, one.name)
        risk = float(report.losses_of_one(one).mean())
        rows.append(_expected(report, key, rule_name(report, one), risk, {one.name: share}))
    shares = dict(zip((one.name for one in choice.answerers), random_shares(choice, report.allowed), strict=True))
    rows += [
        _expected(report, "random", RULES["random"] + "s" * several, report.risk.random, shares),
        RiskRow("confidence", RULES["confidence"], None, None, None)
        if confidence is None
        else _measured(report, "confidence", RULES["confidence"] + asked, confidence),
        _measured(report, "oracle", RULES["oracle"], choice.cheapest(report.costs, report.allowed), "oracle"),
    ]
    if isinstance(report, Report) and report.student_correct is not None:
        may = STUDENT in choice.answerers
        name, kind = (trivial_name(STUDENT), "") if may else (STUDENT_ALONE, "beside")
        rows.append(RiskRow("student", name, report.student_risk, float(report.student_correct.mean()), 0.0, kind))
    for key, changed in report.alternatives.items():
        name = WAYS.get(key, f"asking {key} alone")
        rows.append(_measured(report, key if key in WAYS else f"single_server.{key}", name, changed, "beside"))
    return rows


def risk_table(report: OutcomeReport) -> TextTable:
    """Return the risk of the system and its baselines, the best marked (not the oracle), the verdict and the money.

    No row says that it is the best where the system changed would be below it.
    """
    shown = risk_rows(report)
    lowest = min(row.risk for row in shown if row.risk is not None and row.kind in ("system", ""))
    beaten = any(row.risk is not None and row.kind == "beside" and row.risk < lowest - SAME for row in shown)
    rows = []
    for row in shown:
        best = row.risk is not None and row.kind in ("system", "") and row.risk <= lowest + SAME
        versus = "" if row.kind == "system" else signed(None if row.risk is None else row.risk - report.risk.system)
        kind = "best" if best else "beyond" if row.kind == "oracle" else ""
        name = row.name + " (best)" * (best and not beaten)
        rows.append(texts(name, number(row.risk), versus, percent(row.rate), kind=kind))
    result = verdict(report)
    colour = {"good": "green", "unsure": "yellow", "bad": "red"}[result.standing]
    named = "" if report.dataset == "unnamed" else f"{report.dataset}: "
    title = f"{named}risk at {prices_text(report.costs)}{within_limit(report)}"
    money = "" if report.money is None else f"\nin money the system {money_sentence(report)}"
    names = headings("rule", "risk", "vs system", "reject rate")
    return TextTable(title, names, rows, result.text + money, style=f"bold {colour}")


def answerer_table(report: OutcomeReport) -> TextTable:
    """Return what each answerer does: its share, its accuracies, its prices, its work, and what it costs alone."""
    counts = ((report.compute or {}) if isinstance(report, Report) else {}).get("multiply_adds", {})
    rows = []
    for one, figures in zip(report.answerers, report.choice.figures().values(), strict=True):
        price = report.costs if isinstance(report.costs, Costs) else report.costs.get(one.name)
        work = counts.get("rejector" if one == STUDENT else one.name)
        rows.append(
            texts(
                one.name,
                percent(figures.share),
                percent(figures.accuracy_on_answered),
                percent(figures.accuracy),
                *((f"{price.c_e:g}", f"{price.c_1:g}") if one.remote and price is not None else ("0", "1")),
                MISSING if work is None else f"{work:,}",
                number(float(report.losses_of_one(one).mean())),
            )
        )
    names = ("answerer", "answers", "right on these", "right on all", "c_e", "c_1", "multiply-adds")
    alone = "risk alone" if report.allowed is None else "risk alone, limited"
    note = "the student is a part of the rejector, which runs for every input" if STUDENT in report.answerers else ""
    return TextTable(f"{report.dataset}: who answers", headings(*names, alone), rows, note)


def compute_table(report: Report) -> TextTable:
    """Return the multiply-adds of an input through client, rejector and servers, also in units of the client's."""
    counts = (report.compute or {}).get("multiply_adds", {})
    client = counts.get("client")
    rows = []
    for name in ("client", "rejector", *(server.name for server in report.choice.servers)):
        count = counts.get(name)
        times = f"{count / client:.2f}" if count is not None and client else MISSING
        rows.append(texts(name, MISSING if count is None else f"{count:,}", times))
    budget = (report.compute or {}).get("budget") or {}
    notes = [f"budget of the rejector: {budget['asked']}"] if budget else []
    notes += [budget["assumed"]] if budget.get("assumed") else []
    read = (report.compute or {}).get("client_features")
    if read is not None:
        notes.append(f"it reads {read['size']} features of the client: {read['name'] or 'none'}")
    title = f"{report.dataset}: work per input"
    return TextTable(title, headings("model", "multiply-adds", "times the client"), rows, "; ".join(notes))


def sides(report: OutcomeReport) -> dict[str, Side]:
    """Return the accuracies of both classifiers on the inputs kept, on those sent, and on all, by name."""
    everything = Side(1.0, report.accuracy["client"], report.accuracy["server"])
    return {KEPT: report.contrastive.local, SENT: report.contrastive.remote, ALL: everything}


def contrastive_table(report: OutcomeReport) -> TextTable:
    """Return the accuracy of every answerer on the inputs that each of them answers; ``n/a`` where these are none.

    With a client and a server these are the inputs kept and sent, and their difference is shown too.
    """
    note = f"joint accuracy {percent(report.contrastive.joint)}"
    if len(report.answerers) > 2:
        groups = answered_groups(report)
        rows = [texts(name, *map(percent, (share, *right))) for name, (share, right) in groups.items()]
        columns = [*headings("inputs", "share"), *_who(report)]
        return TextTable(f"{report.dataset}: accuracy on the inputs that each answers", columns, rows, note)
    rows = []
    for name, side in sides(report).items():
        shares = (percent(share) for share in (side.ratio, side.client, side.server))
        rows.append(texts(name, *shares, signed(side.difference, points=True)))
    columns = [*headings("inputs", "share"), *_who(report), Column("difference")]
    return TextTable(f"{report.dataset}: accuracy on the inputs kept and sent", columns, rows, note)


def answered_groups(report: OutcomeReport) -> dict[str, tuple[float, list[float | None]]]:
    """Return the share of the inputs that each answerer answers, and how often each answerer is right on these."""
    choice = report.choice
    groups = {f"answered by {one.name}": choice.chosen == k for k, one in enumerate(choice.answerers)}
    groups[ALL] = np.ones(len(choice), dtype=bool)
    return {
        name: (float(here.mean()), [float(right.mean()) if len(right) else None for right in choice.correct[here].T])
        for name, here in groups.items()
    }


def class_table(report: Report) -> TextTable:
    """Return who answers each class and how often each is right on it; ``n/a`` for a class that does not occur."""
    choice, numbers, rows = report.choice, report.labels.encode(report.y), []
    more = choice.answerers if len(choice.answerers) > 2 else ()
    for k, (name, rate) in enumerate(zip(report.class_names, report.per_class, strict=True)):
        here = numbers == k
        shares = [float((choice.chosen[here] == j).mean()) if here.any() else None for j in range(len(more))]
        right = [float(right.mean()) if len(right) else None for right in choice.correct[here].T]
        rows.append(texts(name, str(here.sum()), percent(rate), *map(percent, shares), *map(percent, right)))
    by = [f"by {one.name}" for one in more]
    return TextTable("", [*headings("class", "samples", "reject rate", *by), *_who(report)], rows)


def spread_table(merged: Mapping[str, Any], n: int) -> TextTable:
    """Return mean and standard error over n seeds of what :func:`l2h.metrics.spread_of_reports` gives."""
    accuracy, risk, frontier = (merged.get(key) or {} for key in ("accuracy", "risk", "frontier"))
    shares = {f"{who} accuracy": accuracy.get(who) for who in ("client", "server", "system")}
    shares["reject rate"] = merged.get("reject_rate")
    answerers = merged.get("answerers") or {}
    if len(answerers) > 2:
        shares |= {f"answered by {name}": figures["share"] for name, figures in answerers.items()}
    rows = [texts(f"{name}, %", plus_minus(value, ".2f", factor=100)) for name, value in shares.items()]
    allowed = (merged.get("bound") or {}).get("allowed")
    often = "always ask" if allowed is None else "ask at random within the limit,"
    risks = {name: risk.get(key) for key, name in (RULES | {"all_remote": often.rstrip(",")}).items()}
    risks |= {f"{often} {name}": value for name, value in (risk.get("by_server") or {}).items()}
    beside = {STUDENT_ALONE: merged.get("student")} | {name: merged.get(key) for key, name in WAYS.items()}
    beside |= {f"asking {name} alone": figures for name, figures in (merged.get("single_server") or {}).items()}
    risks |= {name: figures["risk"] for name, figures in beside.items() if figures}
    rows += [texts(f"risk: {name}", plus_minus(value)) for name, value in risks.items()]
    rows += [texts(f"frontier gain: {name}", plus_minus(frontier.get(key))) for key, name in _GAINS.items()]
    note = f"mean ± standard error over {n} seeds" if n > 1 else "one seed: no spread"
    columns = headings("figure", "mean ± s.e." if n > 1 else "value")
    return TextTable(counted(n, "seed") + _prices(merged), columns, rows, note)


def _prices(merged: Mapping[str, Any]) -> str:
    by_server = {f"{name} ": costs for name, costs in (merged.get("prices") or {}).items()}
    if merged.get("costs"):
        by_server = {"": merged["costs"]}
    pairs = [(name, costs.get("c_1"), costs.get("c_e")) for name, costs in by_server.items()]
    if not pairs or not all(c_1 and c_e for _, c_1, c_e in pairs):
        return ""
    if any((value["std"] or 0.0) > 1e-9 for _, *values in pairs for value in values):
        return " at different prices"
    return " at " + "; ".join(f"{name}c_1={c_1['mean']:g}, c_e={c_e['mean']:g}" for name, c_1, c_e in pairs)


def _who(report: OutcomeReport) -> list[Column]:
    kinds = {"client": "client", "student": ""}
    return [Column(one.name, kind=kinds.get(one.name, "server")) for one in report.answerers]


def _measured(report: OutcomeReport, key: str, name: str, made: AnswererChoice, kind: str = "") -> RiskRow:
    """Return the row of a rule whose answers are known."""
    return RiskRow(key, name, made.risk(report.costs), made.accuracy, made.reject_rate, kind)


def _expected(report: OutcomeReport, key: str, name: str, risk: float, shares: Mapping[str, float]) -> RiskRow:
    """Return the row of a rule that draws who answers: these shares of the inputs, and the client the others."""
    rest, figures = 1 - sum(shares.values()), report.choice.figures()
    right = rest * report.accuracy["client"] + sum(share * figures[who].accuracy for who, share in shares.items())
    return RiskRow(key, name, risk, right, sum(shares.get(one.name, 0.0) for one in report.choice.servers))


def _most(report: OutcomeReport, server: str | None = None) -> float:
    """Return the share of the inputs that a server, or all together, may be asked about."""
    if report.allowed is None:
        return 1.0
    return report.allowed.share if server is None else report.allowed.share_of(server)


def _asked(report: OutcomeReport) -> str:
    """Return the server that the confidence rule asks."""
    choice = report.confidence_choice
    assert choice is not None
    asked = choice.chosen[choice.remote]
    return choice.answerers[asked[0]].name if len(asked) else "nobody"
