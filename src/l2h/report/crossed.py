"""A crossed comparison as tables: the risk of every loss in every arm, and what each factor is worth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from l2h.experiments.crossed.rows import ARMS, CONFIDENCE, FULL, PRICED
from l2h.experiments.statistics import interval_note
from l2h.report.common.table import Cell, Row, TextTable, headings, texts
from l2h.report.common.text import NONE, counted, number, plus_minus, signed

Values = Mapping[str, Any]  # what ``crossed.json`` holds
_CLEAR = 0.05
_NOTE = (
    "student, attached, separate: the net, with or without the client's scores, and taught by the server; softmax, "
    "outcomes: what it learns from."
)
_INTERVALS = "; s.e.: standard errors over seeds / over samples; p after Holm over the rows of one factor"


def crossed_tables(summary: Values) -> Iterator[TextTable]:
    """Give the risks and the effects of each budget."""
    for budget in dict.fromkeys(cell["budget"] for cell in summary["cells"]):
        yield _levels(summary, budget)
        yield from _effects(summary, budget)


def crossed_sentences(summary: Values) -> list[str]:
    """Return who is lowest where every loss has everything, and from whom the default is not separated."""
    out = []
    for budget in dict.fromkeys(cell["budget"] for cell in summary["cells"]):
        full = {
            c["loss"]: c for c in summary["cells"] if (c["budget"], c["trunk"], c["learned_from"]) == (budget, *FULL)
        }
        against = [e for e in summary["effects"] if (e["budget"], e["factor"]) == (budget, "loss, with everything")]
        if PRICED not in full or not against:
            continue
        lower, higher = ([e["of"] for e in against if _clear(e) and e["difference"] * sign > 0] for sign in (-1, 1))
        level = [e["of"] for e in against if not _clear(e)]
        alike = [loss for loss, cell in full.items() if cell["seeds"] == full[PRICED]["seeds"]]
        least = min(alike, key=lambda loss: full[loss]["risk"]["mean"])
        among = " of those with as many seeds" if len(alike) < len(full) else ""
        out.append(
            f"Budget {budget}, with everything: {PRICED} has a mean risk of {plus_minus(full[PRICED]['risk'])}; the "
            f"lowest{among} is that of {least}. {PRICED} is clearly below {_named(higher)}, clearly above "
            f"{_named(lower)}, and not separated from {_named(level)}."
        )
    return out


def _levels(summary: Values, budget: str) -> TextTable:
    cells = {(c["loss"], c["trunk"], c["learned_from"]): c for c in summary["cells"] if c["budget"] == budget}
    rows = []
    for loss in dict.fromkeys(loss for loss, trunk, _ in cells if trunk):
        own = [cells.get((loss, *arm)) for arm in ARMS]
        there = [cell["risk"]["mean"] for cell in own if cell]
        shown = [
            Cell(NONE) if cell is None else Cell(plus_minus(cell["risk"]), bold=cell["risk"]["mean"] == min(there))
            for cell in own
        ]
        seeds = max(len(cell["seeds"]) for cell in own if cell)
        fewer = f" ({counted(seeds, 'seed')})" if seeds < len(summary["seeds"]) else ""
        rows.append(texts(loss + fewer, *shown, kind="default" if loss == PRICED else ""))
    prices = "; ".join(f"{costs['c_1']:g}, {costs['c_e']:g}" for costs in summary["costs"])
    client, server = (1 - summary[who]["mean"] for who in ("client", "server"))
    always = sum(costs["c_e"] + costs["c_1"] * server for costs in summary["costs"]) / len(summary["costs"])
    plain = f" Never asking: {number(client)}; always: {number(always)}"
    baseline, default = cells.get((CONFIDENCE, "", "")), cells.get((PRICED, *FULL))
    if baseline is not None:
        plain += f"; a threshold on confidence: {plus_minus(baseline['risk'])}"
    if default is not None and default["student"] is not None:
        plain += (
            f"; the student of {PRICED}, learning from the softmax, alone: {number(1 - default['student']['mean'])}"
        )
    plain += "."
    title = f"{summary['dataset']}, budget {budget}: mean risk at c_1, c_e = {prices}; {_seeds(summary)}"
    columns = headings("loss", *(", ".join(arm) for arm in ARMS))
    note = f"{_NOTE} {_rates(cells.values())}{plain}"
    return TextTable(title, columns, rows, note, marks="the lowest of its row", wrap=True)


def _effects(summary: Values, budget: str) -> Iterator[TextTable]:
    """Give a table for each factor."""
    factors: dict[str, list[Row]] = {}
    note = interval_note(summary["test_set"], len(summary["seeds"])) + _INTERVALS
    for effect in (effect for effect in summary["effects"] if effect["budget"] == budget):
        errors = " / ".join(number(effect[name]) if effect[name] is not None else NONE for name in _ERRORS)
        difference = Cell(signed(effect["difference"]), bold=_clear(effect))
        interval = f"[{signed(effect['low'])}, {signed(effect['high'])}]"
        p = number(effect["p_holm"], ".3f") if effect["p_holm"] >= 0.001 else "< 0.001"
        over = effect["pairs"]
        fewer = f" ({counted(over, 'arm')})" if effect["factor"] == _ALL_ARMS and over < len(ARMS) else ""
        factors.setdefault(effect["factor"], []).append(texts(effect["of"] + fewer, difference, interval, errors, p))
    for factor, rows in factors.items():
        last = factor == list(factors)[-1]
        columns = headings("change", "risk", "interval", "s.e.", "p")
        title = f"{summary['dataset']}, budget {budget}: {_FACTORS[factor]}"
        yield TextTable(title, columns, rows, note if last else "", marks="clear after Holm" if last else "")


_ALL_ARMS = "loss, all arms"
_FACTORS = {
    "trunk": "the net, mean over losses",
    "learned from": "what it learns from, mean over losses",
    _ALL_ARMS: f"the loss instead of {PRICED}, mean over all nets and samples",
    "loss, with everything": f"the loss instead of {PRICED}, with everything",
    "with everything instead of confidence": "the loss with everything instead of a threshold on confidence",
}
_ERRORS = ("seed_error", "sample_error")


def _clear(effect: Values) -> bool:
    return bool(effect["p_holm"] < _CLEAR)


def _named(losses: list[str]) -> str:
    return ", ".join(losses) or "none"


def _rates(cells: Iterable[Values]) -> str:
    rates = sorted({rate for cell in cells for rate in cell["rates"]} - {""}, key=float)
    if len(rates) == 1:
        return f"All at the learning rate {rates[0]}."
    return f"Each seed at the learning rate of {', '.join(rates)} that was best on its calibration samples."


def _seeds(summary: Values) -> str:
    return counted(len(summary["seeds"]), "seed")
