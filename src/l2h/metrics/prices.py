"""What of a report depends on the prices, the grid around its own, and one row of plain values per price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from l2h.costs import BoolArray, Costs, FloatArray
from l2h.decision import CLIENT, STUDENT, Answerer, AnyCosts
from l2h.metrics.choice import Answered, AnswererChoice, Names
from l2h.metrics.frontier import Frontier, frontier, frontier_gain, routing_measures
from l2h.metrics.risk import contrastive_of, risks_of
from l2h.metrics.savings import money_values
from l2h.metrics.standing import best_trivial

if TYPE_CHECKING:
    from l2h.metrics.report import OutcomeReport

#: Prices of a request, dense where most are.
_C_E = (
    *(0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.012, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.045),
    *(0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.11, 0.12, 0.13, 0.14, 0.15, 0.16, 0.17, 0.18, 0.19, 0.2, 0.22, 0.24, 0.26),
    *(0.28, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
)
_C_1 = (0.5, 1.0, 2.0)
#: What the prices of several servers are multiplied by.
_FACTORS = (
    *(0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9),
    *(0.95, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 8.0, 10.0),
)


def prices_around(costs: AnyCosts) -> list[tuple[AnyCosts, dict[str, float]]]:
    """Return a grid of prices that holds these, each with its place there: ``c_1``, and then ``c_e``.

    Of several servers with different prices every ``c_e`` is multiplied by a ``factor`` instead.
    """
    if isinstance(costs, Mapping) and len(set(costs.values())) > 1:
        scaled = {by: {name: one.at(one.c_e * by, one.c_1) for name, one in costs.items()} for by in _FACTORS}
        return [(prices, {"factor": by}) for by, prices in scaled.items()]
    own = costs if isinstance(costs, Costs) else next(iter(costs.values()))
    c_e, c_1 = sorted({*_C_E, max(own.c_e, 0.0)}), sorted({*_C_1, own.c_1})
    return [
        (own if (e, one) == (own.c_e, own.c_1) else own.at(e, one), {"c_e": e, "c_1": one}) for one in c_1 for e in c_e
    ]


def priced_row(report: OutcomeReport) -> dict[str, Any]:
    """Return a report's prices, risks, shares and verdict as plain values for JSON."""
    costs, beyond = report.costs, best_trivial(report)
    by_server = {} if isinstance(costs, Costs) else costs
    same = {costs} if isinstance(costs, Costs) else set(costs.values())
    pair = next(iter(same)) if len(same) == 1 else None
    names = {one.name for one in report.choice.servers}
    changed = {name: choice.risk(costs) for name, choice in report.alternatives.items()}
    risk = report.risk.as_dict() | {name: value for name, value in changed.items() if name not in names}
    student = getattr(report, "student_risk", None)
    if student is not None:
        risk["student"] = student
    if names & set(changed):
        risk["single_server"] = {name: value for name, value in changed.items() if name in names}
    row: dict[str, Any] = {"c_e": pair and pair.c_e, "c_1": pair and pair.c_1}
    if by_server:
        row["prices"] = {name: one.as_dict() for name, one in by_server.items()}
    row |= {
        "risk": risk,
        "reject_rate": report.reject_rate,
        "accuracy": report.accuracy["system"],
        "best_trivial": {"rule": beyond.rule, "risk": beyond.risk},
        "difference": beyond.difference,
        "interval": beyond.interval,
        "verdict": beyond.standing,
    }
    if STUDENT in report.answerers:
        row["by_student"] = report.choice.by_student
    if report.money is not None:
        row["money"] = money_values(report)
    return row


def in_short(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a sweep as ``metrics.json`` holds it: measured figures with six digits, of money the amounts."""
    prices = {name: row[name] for name in ("c_e", "c_1", "factor", "prices") if name in row}
    short = {name: _rounded(value) for name, value in row.items() if name not in prices}
    if "money" in row:
        saved = {name: found["amount"] for name, found in row["money"]["saved"].items()}
        short["money"] = _rounded({"cost": row["money"]["cost"], "saved": saved})
    return prices | short


def at_price(
    right: Mapping[str, BoolArray],
    answered: Answered,
    score: FloatArray,
    costs: AnyCosts,
    frontiers: Mapping[str, Frontier],
) -> dict[str, Any]:
    """Return the fields of a report that depend on the prices; the other rankings have their frontiers already."""

    def choice_of(by: Names, answerers: tuple[Answerer, ...] = answered.answerers) -> AnswererChoice:
        return AnswererChoice.named(answerers, np.stack([right[one.name] for one in answerers], axis=1), by)

    choice = choice_of(answered.by)
    confidence = None if answered.confidence is None else choice_of(answered.confidence)
    everyone = tuple(one for one in (CLIENT, STUDENT, *choice.servers) if one.name in right)
    client, server = right[CLIENT.name], right[choice.best_server.name]
    if len(choice.answerers) > 2 or "system" not in frontiers:  # between two the ranking is the same at every price
        ends = (choice_of(by).right for by in (answered.local, answered.remote))
        frontiers = {**frontiers, "system": frontier(score, *ends)}
    best = frontiers["oracle"].area
    return {
        "costs": costs,
        "accuracy": {"client": float(client.mean()), "server": float(server.mean()), "system": choice.accuracy},
        "reject_rate": choice.reject_rate,
        "risk": risks_of(choice, costs, confidence, answered.allowed),
        "contrastive": contrastive_of(choice),
        "frontiers": dict(frontiers),
        "gains": {name: frontier_gain(curve.area, client, server, best) for name, curve in frontiers.items()},
        "routing": routing_measures(frontiers["system"]),
        "choice": choice,
        "confidence_choice": confidence,
        "alternatives": {name: choice_of(by, everyone) for name, by in answered.alternatives.items()},
        "score": score,
        "allowed": answered.allowed,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(inner) for name, inner in value.items()}
    return round(value, 6) if isinstance(value, float) else value
