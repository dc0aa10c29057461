"""What a page says about other prices: a slider whose rows are looked up, curves of risk, and tables without script."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from l2h.decision import STUDENT
from l2h.metrics import OutcomeReport
from l2h.metrics.standing import SAME
from l2h.money import digits
from l2h.report.common.table import TextTable, headings, texts
from l2h.report.common.text import MISSING, number, percent, relation

Row = Mapping[str, Any]
#: Rules that are drawn, by their names in ``metrics.json``.
CURVES = {
    "oracle": "oracle",
    "confidence": "confidence threshold",
    "student": "the student alone",
    "all_remote": "always ask",
    "all_local": "never ask",
    "system": "this system",
}
_TICKS = (0, 0.02, 0.1, 0.2, 0.4, 0.7, 1.0)
_FACTOR_TICKS = (0, 0.2, 1, 2, 4, 7, 10)
_SHOWN = (0.01, 0.05, 0.1, 0.2, 0.5)
_SHOWN_FACTORS = (0.1, 0.5, 1, 2, 5)
_VERDICTS = {"good": "pays", "unsure": "may pay", "bad": "does not pay"}


@dataclass(frozen=True)
class PriceView:
    """Everything that the part of a page about prices shows; places are percentages of the width or height."""

    data: str  # the rows of the slider as JSON, by ``c_1``: one list of rows each
    c_1: list[str]  # what can be chosen; empty where the prices of several servers are scaled together
    chosen: tuple[int, int]  # which of them, and which price, are the report's own
    steps: int  # positions of the slider
    own: dict[str, Any]  # the row of the report's own prices
    curves: list[list[tuple[str, str, str]]]  # by ``c_1``: the key, the name and the points of each curve
    ticks: dict[str, list[tuple[float, str]]]  # ``x`` and ``y``
    factor: bool  # whether the slider scales the prices of several servers


def price_view(report: OutcomeReport) -> PriceView | None:
    """Return what there is to show at other prices; None where the report has nothing to say about these."""
    rows = report.sweep
    if rows is None:
        return None
    factor = "factor" in rows[0]
    by_c_1: dict[Any, list[Row]] = {}
    for row in rows:
        by_c_1.setdefault(None if factor else row["c_1"], []).append(row)
    mine = {} if factor else report.summary()
    own = (0, [row["factor"] for row in rows].index(1.0)) if factor else _place(by_c_1, mine["c_1"], mine["c_e"])
    widest = max(map(_price, rows))
    top = 1.2 * max(max(row["risk"]["system"], row["risk"]["all_local"]) for row in rows) or 1.0
    shown = [[_shown(row, widest, top) for row in same] for same in by_c_1.values()]
    curves = [
        [
            (key, name, " ".join(f"{_position(row, widest):.2f},{_height(row['risk'][key], top):.2f}" for row in same))
            for key, name in CURVES.items()
            if same[0]["risk"].get(key) is not None and (key != "student" or STUDENT in report.answerers)
        ]
        for same in by_c_1.values()
    ]
    ticks = [tick for tick in (_FACTOR_TICKS if factor else _TICKS) if tick <= widest]
    return PriceView(
        data=json.dumps(shown, ensure_ascii=False, separators=(",", ":")),
        c_1=[] if factor else [f"{c_1:g}" for c_1 in by_c_1],
        chosen=own,
        steps=len(shown[0]),
        own=shown[own[0]][own[1]],
        curves=curves,
        ticks={
            "x": [(100 * math.sqrt(tick / widest), f"{tick:g}") for tick in ticks],
            "y": [(100 - _height(tick, top), f"{tick:g}") for tick in _nice(top)],
        },
        factor=factor,
    )


def money_tile(report: OutcomeReport) -> dict[str, str]:
    """Return what the system saves against the best trivial rule, or costs more: a title, the amount and a note."""
    row = report.summary()
    paid, noise, more = row["money"], _within_noise(row), row["difference"] > SAME
    saved = paid["saved"]["best_trivial"]
    verb = ("may cost more" if noise else "costs more") if more else "may save" if noise else "saves"
    return {
        "title": f"{verb} {paid['period']}",
        "amount": f"{digits(abs(saved['amount']))} {paid['currency']}",
        "note": f"than {saved['rule']}" if more else f"against {saved['rule']}",
    }


def few_prices(report: OutcomeReport) -> TextTable | None:
    """Return the table of a few prices around the report's own, of its own ``c_1``; None where there are none."""
    rows = report.sweep
    if rows is None:
        return None
    mine = report.summary()
    if "factor" in rows[0]:
        return price_table([row for row in rows if row["factor"] in _SHOWN_FACTORS])
    few = {*_SHOWN, mine["c_e"]}
    return price_table([row for row in rows if row["c_1"] == mine["c_1"] and row["c_e"] in few])


def price_table(rows: Sequence[Row]) -> TextTable:
    """Return rows of :meth:`l2h.metrics.OutcomeReport.summary` as a table.

    Limits and links have a column where there are any. What the system saves is against the best trivial rule.
    """
    named = [row["prices"] for row in rows if row["c_e"] is None]
    bounds = {json.dumps(row.get("bound")) for row in rows}
    syncs = {str((row.get("rejector") or {}).get("sync")) for row in rows}
    extra = [*(["limit"] if bounds != {"null"} else []), *(["link"] if len(syncs) > 1 else [])]
    money = next((row["money"] for row in rows if "money" in row), None)
    body = []
    for row in rows:
        first = [_prices(row)] if named else [f"{row['c_e']:g}", f"{row['c_1']:g}"]
        bound, sync = row.get("bound"), (row.get("rejector") or {}).get("sync")
        more = {"limit": bound["limit"] if bound else "none", "link": str(sync)}
        figures = (
            number(row["risk"]["system"]),
            f"{number(row['best_trivial']['risk'])} ({row['best_trivial']['rule']})",
            percent(row["reject_rate"]),
            percent(row["accuracy"]),
            _VERDICTS[row["verdict"]],
        )
        paid = row.get("money")
        saved = [digits(paid["saved"]["best_trivial"]["amount"]) if paid else MISSING] if money else []
        body.append(texts(*first, *(more[name] for name in extra), *figures, *saved))
    prices = ["prices"] if named else ["c_e", "c_1"]
    last = [] if money is None else [f"saves, {money['currency']} {money['period']}"]
    names = (*prices, *extra, "risk", "best trivial rule", "sent", "accuracy", "verdict", *last)
    return TextTable("", headings(*names), body)


def _place(by_c_1: Mapping[Any, Sequence[Row]], c_1: float, c_e: float) -> tuple[int, int]:
    same = by_c_1[c_1]
    return list(by_c_1).index(c_1), min(range(len(same)), key=lambda i: abs(same[i]["c_e"] - c_e))


def _position(row: Row, widest: float) -> float:
    """Return where a price stands: small ones have more room."""
    return 100 * math.sqrt(_price(row) / widest)


def _price(row: Row) -> float:
    return float(row["factor"] if "factor" in row else row["c_e"])


def _height(risk: float, top: float) -> float:
    return 100 * (1 - risk / top)


def _nice(top: float) -> list[float]:
    """Return about five round numbers from 0 up to the top."""
    unit = 10 ** math.floor(math.log10(top / 4))
    step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= top / 5)
    return [round(step * k, 12) for k in range(int(top / step) + 1)]


def _shown(row: Row, widest: float, top: float) -> dict[str, Any]:
    """Return a row as the page shows it: texts, and the place of the mark."""
    best, paid = row["best_trivial"], row.get("money")
    against = f"{relation(row['risk']['system'], best['risk'])} the best trivial rule ({best['rule']})"
    noise = "; within the noise of these samples" if _within_noise(row) else ""
    price = f"{row['factor']:g} times: {_prices(row)}" if "factor" in row else f"{row['c_e']:g}"
    if paid is not None and "factor" not in row:
        price += f", that is {digits(paid['request_cost'])} {paid['currency']} a request"
    return {
        "price": price,
        "risk": number(row["risk"]["system"]),
        "trivial": number(best["risk"]),
        "rule": best["rule"],
        "sent": percent(row["reject_rate"]),
        "accuracy": percent(row["accuracy"]),
        "verdict": f"{_VERDICTS[row['verdict']]}: the risk is {against}{noise}",
        "standing": row["verdict"],
        "money": "" if paid is None else f"In money the system {paid['sentence']}.",
        "x": round(_position(row, widest), 2),
        "y": round(_height(row["risk"]["system"], top), 2),
    }


def _within_noise(row: Row) -> bool:
    """Return whether the system and the best trivial rule differ, but by no more than the noise of the samples."""
    return abs(row["difference"]) > SAME and (row["interval"] is None or abs(row["difference"]) <= row["interval"])


def _prices(row: Row) -> str:
    prices = row["prices"]
    differ = len({costs["c_1"] for costs in prices.values()}) > 1
    return ", ".join(f"{name} {one['c_e']:g}" + f" (c_1 {one['c_1']:g})" * differ for name, one in prices.items())
