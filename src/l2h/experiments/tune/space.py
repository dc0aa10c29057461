"""What a search tries: settings with their values or ranges, and the draws of each trial."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from l2h.errors import SettingsError
from l2h.experiments.overrides import parse_value, value_text
from l2h.settings import Settings
from l2h.training.loop import derive

#: What says where and how fast something is computed, or what is drawn: no risk is a reason to choose these.
_NOT_TRIED = ("seed", "device", "threads", "workers", "deterministic", "precision")
#: A range is drawn by its logarithm where its ends differ by this factor at least.
_DECADE = 10
#: So many draws in a row, for each combination that is known, bring nothing new where there is nothing new.
_IN_VAIN = 30


@dataclass(frozen=True)
class TriedSetting:
    """A setting or a model's option, and what is tried for it: some values, or everything between two numbers."""

    name: str
    values: tuple[Any, ...]  # the values; of a range its two ends
    is_range: bool = False

    @classmethod
    def parse(cls, text: str) -> "TriedSetting":
        """Read ``NAME=LOW..HIGH`` or ``NAME=VALUE,VALUE,...``."""
        name, equals, given = text.partition("=")
        plain = {f.name for f in fields(Settings)} - {"server", "rejector"}
        if not equals or not name or not given:
            raise SettingsError(f"--try {text}: write NAME=LOW..HIGH or NAME=VALUE,VALUE,...")
        if name in _NOT_TRIED or (name not in plain and "." not in name):
            known = ", ".join(sorted(plain - {*_NOT_TRIED}))
            raise SettingsError(f"--try {text}: known are server.X, rejector.X and {known}")
        if name.startswith("client."):
            raise SettingsError(f"--try {text}: the client is what cannot change")
        low, dots, high = given.partition("..")
        values = tuple(parse_value(part) for part in ((low, high) if dots else given.split(",")))
        if not dots and len(set(values)) < max(2, len(values)):
            raise SettingsError(f"--try {text}: give two values or more, each once")
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if dots and not (len(numbers) == 2 and -math.inf < numbers[0] < numbers[1] < math.inf):
            raise SettingsError(f"--try {text}: a range has two numbers, the lower one first")
        return cls(name, values, bool(dots))

    @property
    def by_logarithm(self) -> bool:
        """Whether the draws of a range are uniform in their logarithm."""
        return self.is_range and self.values[0] > 0 and self.values[1] >= _DECADE * self.values[0]

    def draw(self, rng: np.random.Generator) -> Any:
        """Return one value; of a range between whole numbers a whole one, else one of three digits."""
        if not self.is_range:
            return self.values[int(rng.integers(len(self.values)))]
        low, high = self.values
        drawn = math.exp(rng.uniform(math.log(low), math.log(high))) if self.by_logarithm else rng.uniform(low, high)
        if isinstance(low, int) and isinstance(high, int):
            return min(high, max(low, round(drawn)))
        return min(float(high), max(float(low), float(f"{drawn:.3g}")))

    def __str__(self) -> str:
        texts = [value_text(value) for value in self.values]
        return f"{self.name}={'..'.join(texts) if self.is_range else ','.join(texts)}"


def draw_trials(tried: Sequence[TriedSetting], count: int, seed: int) -> list[dict[str, Any]]:
    """Return the values of each trial, all different; the first has none: it is the plan as it is.

    A larger count begins with the same ones. There are fewer where the values have no more combinations.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {(): {}}
    drawn = fresh = 0
    while len(found) < count and drawn - fresh < _IN_VAIN * len(found):
        rng = np.random.default_rng(derive(seed, "tune", drawn))
        values = {one.name: one.draw(rng) for one in tried}
        drawn += 1
        if tuple(values.values()) not in found:
            found[tuple(values.values())] = values
            fresh = drawn
    return list(found.values())


def parse_tried(texts: Sequence[str]) -> list[TriedSetting]:
    """Return what is tried, by texts of ``--try``; each name once."""
    tried = [TriedSetting.parse(text) for text in texts]
    if not tried:
        raise SettingsError("give what to try: --try server.lr=0.0001..0.01 --try rejector.epochs=10,20,40")
    names = [one.name for one in tried]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise SettingsError(f"--try {twice[0]}=...: {twice[0]!r} is given twice")
    return tried
