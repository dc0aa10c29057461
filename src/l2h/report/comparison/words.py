"""What a comparison of methods says in words, for the terminal and the page."""

from l2h.metrics import Interval
from l2h.report.common.text import SAME, counted, number, plus_minus, signed
from l2h.report.comparison.model import ComparisonView, MethodRow, Price, Values

_TRIVIAL = ("all-local", "all-remote")
_LISTED = 4  # at most so many losses are listed in a sentence


def comparison_headline(comparison: Values) -> list[str]:
    """Return sentences about the default method, which state its losses as plainly as its wins.

    "Clearly" means that the paired bootstrap interval excludes 0.
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


def interval_note(comparison: Values) -> str:
    """Return how the intervals were made."""
    bootstrap, seeds = comparison["bootstrap"], len(comparison["seeds"])
    sets = "one test set for all seeds" if bootstrap["test_set"] == "shared" else "a separate test set for each seed"
    where = "the test set" if seeds == 1 else sets
    return (
        f"{bootstrap['confidence']:.0%} intervals from a paired bootstrap, {bootstrap['draws']:,} draws, {where}; "
        "not corrected for the number of comparisons"
    )


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
    return (
        f"{opening}, the lowest of the {len(peers)} {family} methods; the next is {rival.name} with "
        f"{number(rival.risk['mean'])}, {number(rival.risk['mean'] - risk)} more ({_clear(rival.versus)})."
    )


def _field(comparison: Values, ours: MethodRow, usable: list[MethodRow]) -> str:
    others = [row for row in usable if row.versus is not None]
    if not others:
        return ""
    lower = [row for row in others if row.versus and row.versus.below]
    open_ = [row for row in others if row.versus and not (row.versus.below or row.versus.above)]
    level = f"{comparison['bootstrap']['confidence']:.0%}"
    higher = len(others) - len(lower) - len(open_)
    text = (
        f"It is clearly below {higher or 'none'} of the {counted(len(others), 'other method')} that a "
        f"device can run (the {level} interval of the difference excludes 0)"
    )
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
    texts = [f"to {name} at {_at(price)} by {number(-difference)}" for difference, name, price in lost]
    return f"{scope} it clearly loses {len(lost)}: {_listed(texts)}."


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
