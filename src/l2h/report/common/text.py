"""Numbers, prices and names as people read them, the same in every table, plot and page."""

import math
from collections.abc import Mapping
from typing import Any

from l2h.metrics.standing import SAME

MISSING = "n/a"
NONE = "\N{EN DASH}"


def percent(value: float | None) -> str:
    """Return a fraction as a percentage with one decimal; ``n/a`` for a missing value."""
    return MISSING if value is None or math.isnan(value) else f"{value:.1%}"


def number(value: float | None, spec: str = ".4f") -> str:
    """Return a number with four decimals, or as ``spec`` says; ``n/a`` for a missing value."""
    # Adding 0.0 turns -0.0 into 0.0.
    return MISSING if value is None else f"{value + 0.0:{spec}}"


def signed(value: float | None, *, points: bool = False) -> str:
    """Return a number with its sign: four decimals, or percentage points with one; ``n/a`` for a missing value."""
    if value is None:
        return MISSING
    # Adding 0.0 turns a -0.0 left by the rounding into 0.0.
    return f"{round(100 * value, 1) + 0.0:+.1f}" if points else f"{round(value, 4) + 0.0:+.4f}"


def plus_minus(value: Mapping[str, Any] | None, spec: str = ".4f", *, factor: int = 1, unit: str = "") -> str:
    """Return ``mean ± standard error`` over seeds; the mean alone for one seed, ``n/a`` for a missing value."""
    if value is None or value["mean"] is None:
        return MISSING
    mean, sem = f"{factor * value['mean']:{spec}}{unit}", value.get("sem")
    return mean if sem is None else f"{mean} ± {factor * sem:{spec}}"


def relation(value: float, reference: float) -> str:
    """Return ``"12.0% below"``, ``"0.4% above"`` or ``"equal to"``; absolute where the reference is 0."""
    difference = value - reference
    if abs(difference) <= SAME:
        return "equal to"
    word = "below" if difference < 0 else "above"
    if reference <= 0:
        return f"{abs(difference):.4f} {word}"
    share = abs(difference) / reference
    return f"{share:.1%} {word}" if share >= 0.0005 else f"less than 0.1% {word}"


def counted(count: int, noun: str) -> str:
    """Return ``"1 seed"`` or ``"3 seeds"``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def one_line(text: str, longest: int = 24) -> str:
    """Return an untrusted name on one line, shortened; ``?`` where nothing of it can be shown."""
    line = "".join(c if c.isprintable() else " " for c in str(text)).strip() or "?"
    return line if len(line) <= longest else line[: longest - 1] + "…"
