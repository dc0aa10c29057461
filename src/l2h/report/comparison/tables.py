"""What a comparison of methods says in sentences and in tables, for the terminal and the page."""

from collections.abc import Sequence
from typing import Any

from l2h.experiments.statistics import interval_note
from l2h.metrics import Interval
from l2h.metrics.standing import SAME
from l2h.report.common.table import Cell, Column, Row, TextTable, headings, texts
from l2h.report.common.text import MISSING, NONE, counted, number, one_line, percent, plus_minus, signed
from l2h.report.comparison.model import PROPERTIES, ComparisonView, MethodRow, Price, Values, property_rows

_NAME = 22  # letters of a method's name that are shown in the terminal
_TRIVIAL = ("all-local", "all-remote")
_LISTED = 4  # at most so many losses are listed in a sentence


def comparison_headline(comparison: Values) -> list[str]:
    """Return sentences about the default method, which state its losses as plainly as its wins.

    "Clearly" means that the paired difference is significant after Holm's correction.
    """
    view = ComparisonView(comparison)
    usable, ours = [row for row in view.rows if not row.beyond], view.default
    if ours is None:
        best = (usable or view.rows)[0]
        return [
            f"{_scope(comparison)} {best.name} has the lowest mean risk of {len(usable)} methods, "
            f"{plus_minus(best.risk)}. {comparison['default']}, the default, was not among them."
        ]
    others = [row for row in usable if not row.default]
    sentences = [_rank(comparison, ours, usable), _field(comparison, ours, usable)]
    if confidence := [row.name for row in others if row.group == "confidence"]:
        label = f"the lowest of the {len(confidence)} confidence methods" if len(confidence) > 1 else confidence[0]
        sentences.append(_by_price(view, label, confidence))
    if trivial := [row.name for row in others if row.name in _TRIVIAL]:
        label = "the better of all-local and all-remote" if len(trivial) > 1 else trivial[0]
        sentences.append(_by_price(view, label, trivial))
    sentences.append(_losses(view, [row.name for row in others]))
    beyond = ", ".join(f"{row.name} {number(row.risk['mean'])}" for row in view.rows if row.beyond)
    if beyond:
        sentences.append(f"For reference, the mean risk of rules that use information no device has: {beyond}.")
    return [sentence for sentence in sentences if sentence]


def standing(comparison: Values) -> str:
    """Return "good" if no method has a lower mean risk than the default, "bad" if one clearly has, else "unsure"."""
    rows = [row for row in ComparisonView(comparison).rows if not row.beyond]
    if any(row.default and row.best for row in rows):
        return "good"
    return "bad" if any(row.versus and row.versus.below for row in rows) else "unsure"


def clear_note(comparison: Values) -> str:
    """Return how the intervals were made, and what is called clear."""
    made = interval_note(comparison["intervals"]["test_set"], len(comparison["seeds"]))
    return f"{made}; clear where p < 0.05 after Holm over the methods or the prices"


def comparison_table(comparison: Values) -> TextTable:
    """Return the means of every method over the grid: lowest risk first, references last.

    The lowest is marked, as the best only where it is clearly below every other that can be deployed.
    """
    note = (
        f"vs default: risk minus that of {one_line(comparison['default'])}; w/t/l: number of prices at which the "
        f"row's method clearly wins against it, neither clearly wins, it clearly loses; {clear_note(comparison)}"
    )
    prices, seeds = len(comparison["costs"]), len(comparison["seeds"])
    columns = [
        *headings("method", "risk ± s.e." if seeds > 1 else "risk"),
        Column("s.e. over samples", "samples"),
        Column("sent"),
        Column("frontier gain", "gain"),
        Column("risk minus the default's", "vs default"),
        Column("wins / ties / losses", "w/t/l"),
    ]
    rows = []
    for row in ComparisonView(comparison).rows:
        record = [str(count) for count in row.record or ()]
        rows.append(
            texts(
                _name(row.name, " (best)" if row.clear else " (lowest)" if row.best else ""),
                plus_minus(row.risk),
                number(row.risk.get("sampling")),
                percent(row.sent),
                Cell(plus_minus(row.gain, ".3f"), number(row.gain["mean"] if row.gain else None, ".3f")),
                Cell("the default", "default") if row.default else _versus(row),
                Cell(" / ".join(record), "/".join(record)),
                kind="best" if row.best else _kind(row),
            )
        )
    student = comparison["accuracy"]["student"]
    if student is not None:
        alone = student | {"mean": 1 - student["mean"]}
        rows.append(texts("student alone", plus_minus(alone), MISSING, percent(0.0), MISSING, MISSING, ""))
        note += "; student alone: the default's student answers everything and asks nobody"
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


def _scope(comparison: Values) -> str:
    costs, seeds = comparison["costs"], len(comparison["seeds"])
    where = f"Over {len(costs)} prices" if len(costs) > 1 else f"At {_at((costs[0]['c_1'], costs[0]['c_e']))}"
    return f"{where}, {seeds} seeds," if seeds > 1 else f"{where}, one seed,"


def _rank(comparison: Values, ours: MethodRow, usable: list[MethodRow]) -> str:
    family = ours.family
    peers = [row for row in usable if row.family == family]
    risk = ours.risk["mean"]
    opening = f"{_scope(comparison)} the mean risk of {ours.name} is {plus_minus(ours.risk)}"
    others = [row for row in peers if not row.default]
    if not others:
        return f"{opening}; no other {family} method was run."
    rival = others[0]
    better = sum(row.risk["mean"] < risk - SAME for row in others)
    if better:
        behind = risk - rival.risk["mean"]
        sem = ours.risk["sem"]
        within = "" if sem is None else f", {'within' if behind <= sem else 'more than'} its standard error"
        return (
            f"{opening}; {better} of the {len(others)} other {family} methods are lower. The lowest is {rival.name} "
            f"with {number(rival.risk['mean'])}, {number(behind)} less{within} ({_clear(rival.versus)})."
        )
    if rival.risk["mean"] <= risk + SAME:
        return f"{opening}, equal to that of {rival.name} and the lowest of the {len(peers)} {family} methods."
    clear = all(row.versus is not None and row.versus.above for row in others)
    lowest = f"the lowest of the {len(peers)} {family} methods"
    lowest = f"clearly {lowest}" if clear else f"{lowest} in the mean, though not clearly below each of them"
    return (
        f"{opening}, {lowest}; the next is {rival.name} with "
        f"{number(rival.risk['mean'])}, {number(rival.risk['mean'] - risk)} more ({_clear(rival.versus)})."
    )


def _field(comparison: Values, ours: MethodRow, usable: list[MethodRow]) -> str:
    others = [row for row in usable if row.versus is not None]
    if not others:
        return ""
    lower = [row for row in others if row.versus and row.versus.below]
    open_ = [row for row in others if row.versus and not (row.versus.below or row.versus.above)]
    higher = len(others) - len(lower) - len(open_)
    text = f"It is clearly below {higher or 'none'} of the {counted(len(others), 'other method')} that a device can run"
    if open_:
        text += f", not separated from {len(open_)} ({', '.join(row.name for row in open_)})"
    if lower:
        text += f" and clearly above {len(lower)} ({', '.join(row.name for row in lower)})"
    best = usable[0]
    if not ours.best and best.family != ours.family:
        behind = number(ours.risk["mean"] - best.risk["mean"])
        text += f"; the lowest of all is {best.name} ({best.family}), {behind} below it"
    return text + "."


def _by_price(view: ComparisonView, label: str, rivals: list[str]) -> str:
    """At which prices the default is below the lowest of these, and by how much it is above at the others."""
    prices = [(costs["c_1"], costs["c_e"]) for costs in view.values["costs"]]
    below, clear, equal = 0, 0, 0
    lost: list[tuple[float, str]] = []
    for price in prices:
        risk = {name: view.cells[name, price]["risk"]["mean"] for name in (*rivals, view.values["default"])}
        rival = min(rivals, key=risk.__getitem__)
        difference = risk[view.values["default"]] - risk[rival]
        versus = view.against.get((rival, price))
        if difference < -SAME:
            below += 1
            clear += bool(versus and versus.above)
        elif difference <= SAME:
            equal += 1
        else:
            extent = "clearly" if versus and versus.below else "not clearly"
            who = f", {rival}" if len(rivals) > 1 else ""
            lost.append((difference, f"{_at(price)} by {number(difference)} ({extent}{who})"))
    total = len(prices)
    if below == total:
        where = f" at every one of the {total} prices" if total > 1 else ""
        return f"It is below {label}{where}, {_share(clear, total)}."
    if below:
        text = f"It is below {label} at {below} of {total} prices ({_share(clear, below)})"
    else:
        text = f"It is below {label} at none of the {total} prices" if total > 1 else f"It is not below {label}"
    if equal:
        text += f", equal at {equal}" if total > 1 else ", but equal"
    if lost:
        listed = _listed([extent for _, extent in sorted(lost, reverse=True)])
        text += f", above at {len(lost)}: {listed}" if total > 1 else f": {listed}"
    return f"{text}."


def _losses(view: ComparisonView, rivals: list[str]) -> str:
    """Every clear loss at a single price."""
    against = {key: v for key, v in view.against.items() if key[0] in rivals}
    if not against:
        return ""
    lost = sorted((v.difference, name, price) for (name, price), v in against.items() if v.below)
    scope = f"Of {len(against)} comparisons with one method at one price"
    if not lost:
        return f"{scope} it clearly loses none."
    lost_to = [f"to {name} at {_at(price)} by {number(-difference)}" for difference, name, price in lost]
    return f"{scope} it clearly loses {len(lost)}: {_listed(lost_to)}."


def _share(clear: int, of: int) -> str:
    if clear == of:
        return "clearly"
    if clear:
        return f"clearly at {clear}"
    return "not clearly" if of == 1 else "clearly at none"


def _listed(texts: list[str]) -> str:
    more = [f"and {len(texts) - _LISTED} more"] if len(texts) > _LISTED else []
    return "; ".join(texts[:_LISTED] + more)


def _clear(versus: Interval | None) -> str:
    if versus is None:
        return "no interval"
    interval = f"interval of the difference [{signed(versus.low)}, {signed(versus.high)}]"
    return f"{interval}, clear" if versus.below or versus.above else f"{interval}, not clear"


def _at(price: Price) -> str:
    return f"c_1={price[0]:g}, c_e={price[1]:g}"


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
