"""The tables of a comparison of methods."""

from collections.abc import Sequence
from typing import Any

from l2h.report.common.table import Cell, Column, Row, TextTable, headings, texts
from l2h.report.common.text import MISSING, NONE, SAME, counted, number, one_line, percent, plus_minus, signed
from l2h.report.comparison.model import PROPERTIES, ComparisonView, MethodRow, Values, property_rows
from l2h.report.comparison.words import interval_note

_NAME = 22  # letters of a method's name that are shown in the terminal


def comparison_table(comparison: Values) -> TextTable:
    """Return the means of every method over the grid: lowest risk first, references last, the best marked."""
    note = (
        f"vs default: risk minus that of {one_line(comparison['default'])}; w/t/l: number of prices at which the "
        f"default clearly wins, neither clearly wins, the default clearly loses; {interval_note(comparison)}"
    )
    prices, seeds = len(comparison["costs"]), len(comparison["seeds"])
    columns = [
        *headings("method", "risk ± s.e." if seeds > 1 else "risk", "sent"),
        Column("frontier gain", "gain"),
        Column("risk minus the default's", "vs default"),
        Column("wins / ties / losses", "w/t/l"),
    ]
    rows = []
    for row in ComparisonView(comparison).rows:
        record = [str(count) for count in row.record or ()]
        rows.append(
            texts(
                _name(row.name, " (best)" if row.best else ""),
                plus_minus(row.risk),
                percent(row.sent),
                Cell(plus_minus(row.gain, ".3f"), number(row.gain["mean"] if row.gain else None, ".3f")),
                Cell("the default", "default") if row.default else _versus(row),
                Cell(" / ".join(record), "/".join(record)),
                kind="best" if row.best else _kind(row),
            )
        )
    size = f"{counted(prices, 'price')}, {counted(seeds, 'seed')}"
    return TextTable(f"{one_line(comparison['dataset'])}: means over {size}", columns, rows, note)


def grid_tables(comparison: Values, figure: str = "risk") -> list[TextTable]:
    """Return a table for each ``c_1``, the lowest value at each price in bold (references excluded).

    Methods without this figure are left out.
    """
    view, tables = ComparisonView(comparison), []
    for c_1, c_es in view.prices.items():
        shown: list[tuple[MethodRow, list[Any]]] = []
        for row in view.rows:
            values = [view.cells.get((row.name, (c_1, c_e)), {}).get(figure) for c_e in c_es]
            shown += [(row, values)] if any(values) else []
        lowest = [
            min((values[i]["mean"] for row, values in shown if values[i] and not row.beyond), default=-1.0)
            for i in range(len(c_es))
        ]
        rows = []
        for row, values in shown:
            cells = [
                Cell(plus_minus(value), bold=bool(value) and not row.beyond and value["mean"] <= least + SAME)
                for value, least in zip(values, lowest, strict=True)
            ]
            rows.append(Row([_name(row.name), *cells], _kind(row)))
        columns = [*headings("method"), *(Column(f"c_e = {c_e:g}", f"c_e={c_e:g}") for c_e in c_es)]
        if rows:
            tables.append(TextTable(f"Risk at c_1 = {c_1:g}", columns, rows, marks="the lowest, references excluded"))
    return tables


def property_table(methods: Sequence[Values]) -> TextTable:
    """Return the four properties of the paper's table; a star and a note where that table says otherwise."""
    rows, notes = property_rows(methods)
    columns = [*headings("method"), *(Column(name, justify="center") for name in PROPERTIES.values())]
    cells = [texts(_name(method), *answers) for method, answers in rows]
    return TextTable("properties of the methods", columns, cells, "\n".join(f"* {note}" for note in notes))


def origin_table(methods: Sequence[Values]) -> TextTable:
    """Return where each method comes from."""
    rows = []
    for method in methods:
        equation = Cell(method["equation"] or NONE, code=bool(method["equation"]))
        origin = method["reference"] or NONE, equation, method["change"] or NONE
        rows.append(texts(method["name"], method["title"], *origin))
    columns = headings("method", "name", "reference", "rule or loss", "what had to change for a fixed client")
    return TextTable("", columns, rows)


def size_table(methods: Sequence[Values]) -> TextTable:
    """Return what each method decides with: its parameters, its computation and its training."""
    keys = ("parameters", "multiply_adds", "steps")
    rows = [texts(method["name"], *(_count(method[key]) for key in keys)) for method in methods]
    return TextTable("", headings("method", "parameters", "multiply-adds per input", "training steps"), rows)


def _name(name: str, suffix: str = "") -> Cell:
    return Cell(name + suffix, one_line(name, _NAME) + suffix)


def _kind(row: MethodRow) -> str:
    return "beyond" if row.beyond else "default" if row.default else ""


def _versus(row: MethodRow) -> str:
    if row.versus is None:
        return MISSING
    return f"{signed(row.versus.difference)} [{signed(row.versus.low)}, {signed(row.versus.high)}]"


def _count(value: Any) -> str:
    """A count, or the mean and standard error of one, with thousands marked; ``–`` where there is none."""
    if value is None:
        return NONE
    if not isinstance(value, dict):
        return f"{value:,}"
    return plus_minus({"mean": value["mean"], "sem": value["sem"] or None}, ",.0f")
