"""Reading plain values that somebody else wrote: every one is of its type, and none is left over."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from l2h.bundle.errors import BundleError

T = TypeVar("T")


class Entry:
    """An object of a JSON file, read key by key.

    Args:
        values: what stands in the file.
        where: how messages name the place, such as ``manifest.json, client``.

    Raises:
        BundleError: it is no object. Every method raises it, with the place, for a value that is missing or wrong.

    Example:
        >>> Entry({"n": 3}, "here").whole("n")
        3
    """

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise BundleError(f"{where} is damaged: expected an object, found {shown(values)}")
        self.values: dict[str, Any] = values
        self.where = where
        self._read: set[str] = set()

    def value(self, key: str) -> Any:
        """Whatever stands there."""
        if key not in self.values:
            raise BundleError(f"{self.where} is damaged: {key!r} is missing")
        self._read.add(key)
        return self.values[key]

    def text(self, key: str, known: Sequence[str] = ()) -> str:
        """Text that is not empty; one of ``known`` where that is given."""
        found = self.value(key)
        if not isinstance(found, str) or not found:
            raise self.wrong(key, "text")
        if known and found not in known:
            raise self.wrong(key, f"one of {', '.join(known)}")
        return found

    def whole(self, key: str, low: int = 0) -> int:
        """A whole number, no less than ``low``."""
        found = self.value(key)
        if isinstance(found, bool) or not isinstance(found, int) or found < low:
            raise self.wrong(key, f"a whole number of {low} or more")
        return found

    def flag(self, key: str) -> bool:
        """True or false."""
        found = self.value(key)
        if not isinstance(found, bool):
            raise self.wrong(key, "true or false")
        return found

    def number(self, key: str) -> float:
        """A finite number."""
        found = self.value(key)
        if not is_number(found):
            raise self.wrong(key, "a finite number")
        return float(found)

    def items(self, key: str, low: int = 1) -> list[Any]:
        """A list of at least ``low`` values."""
        found = self.value(key)
        if not isinstance(found, list) or len(found) < low:
            raise self.wrong(key, f"a list of at least {low}")
        return found

    def entry(self, key: str) -> Entry:
        """The object under a key."""
        return Entry(self.value(key), f"{self.where}, {key}")

    def optional(self, key: str, read: Callable[[str], T]) -> T | None:
        """What ``read`` makes of the key, None where it holds null."""
        return None if self.value(key) is None else read(key)

    def finish(self) -> None:
        """Refuse keys that nobody asked for."""
        unknown = sorted(set(self.values) - self._read)
        if unknown:
            raise BundleError(f"{self.where} is damaged: unknown key {shown(unknown[0])}")

    def wrong(self, key: str, expected: str) -> BundleError:
        """The error for a value that is not what was expected."""
        return BundleError(f"{self.where} is damaged: {key!r} is {shown(self.values[key])}, expected {expected}")


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def shown(value: Any) -> str:
    """A value short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
