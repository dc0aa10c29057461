"""What a report comes to in money: what the system costs and saves against rules that need no training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from l2h.metrics.standing import SAME, Standing, beside, best_trivial
from l2h.money import digits

if TYPE_CHECKING:
    from l2h.metrics.report import OutcomeReport


def money_values(report: OutcomeReport) -> dict[str, Any]:
    """Return what the money was, what the rules cost in a period and what the system saves, as plain values for JSON.

    ``saved`` is against the best trivial rule and against always asking; it is below 0 where the system costs more.
    ``interval`` is half its 95% interval.
    """
    money = report.money
    assert money is not None
    standings = {"best_trivial": best_trivial(report), "always": _always(report)}
    return money.as_dict() | {
        "period": money.period,
        "cost": {"system": money.amount(report.risk.system)},
        "saved": {
            name: {
                "rule": one.rule,
                "amount": -money.amount(one.difference),
                "interval": None if one.interval is None else money.amount(one.interval),
            }
            for name, one in standings.items()
        },
        "requests_saved": _requests_saved(report),
        "sentence": money_sentence(report),
    }


def money_sentence(report: OutcomeReport) -> str:
    """Return what the system saves or costs more than the best trivial rule, and than always asking.

    The intervals are those of the paired losses of the test samples.
    """
    best, always = best_trivial(report), _always(report)
    if best.answerer == always.answerer:
        return f"{_change(report, best, asking=True)}, the best trivial rule"
    return f"{_change(report, best)}, the best trivial rule; it {_change(report, always, asking=True)}"


def _always(report: OutcomeReport) -> Standing:
    """Return the system beside always asking, of several servers the one for which that costs least."""
    return beside(report, report.choice.servers)


def _requests_saved(report: OutcomeReport) -> float:
    """Return the share of the requests of always asking, as often as a limit allows, that the system does not make."""
    most = 1.0 if report.allowed is None else report.allowed.share
    return 1 - report.reject_rate / most if most else 0.0


def _change(report: OutcomeReport, found: Standing, *, asking: bool = False) -> str:
    money = report.money
    assert money is not None
    rule = found.rule.replace("ask", "asking", 1)
    fewer = _requests_saved(report)
    requests = f"{fewer:.0%} of requests" if asking and fewer > 0 else ""
    if abs(found.difference) <= SAME:
        return f"costs as much as {rule}" + (f", with {requests} saved" if requests else "")
    saves = found.difference < 0
    middle = money.amount(abs(found.difference))
    amount = f"{digits(middle)} {money.currency}{'' if saves else ' more'} {money.period}"
    if found.interval is not None:
        half = money.amount(found.interval)
        amount += f" (95% interval {digits(middle - half)} to {digits(middle + half)})"
    verb = ("saves" if saves else "costs") if found.clear else f"may {'save' if saves else 'cost'}"
    if saves:
        return f"{verb} {amount}{requests and f', {requests},'} against {rule}"
    return f"{verb} {amount} than {rule}" + (f", with {requests} saved" if requests else "")
