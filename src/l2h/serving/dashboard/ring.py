"""A file of fixed size with the numbers of the last minute, hour and day, and the last events.

Each span is a ring of slots, each slot a cell with one JSON object, padded with spaces. A cell that was cut while it
was written is no JSON, and is left out. All places are taken at the start, so that a full disk does not matter later.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from l2h.serving.errors import LedgerError

_MAGIC, _VERSION = b"L2HDASH", b"1\n"
#: Bytes of a cell: twice what a slot needs in which every status and every reason occurs. Events that are remembered,
#: and characters of each of their values.
_CELL, EVENTS, _TEXT = 4096, 64, 150


@dataclass(frozen=True)
class Span:
    """A ring: seconds of a slot, how many are shown, and the cell that it begins with."""

    step: int
    count: int
    first: int

    @property
    def cells(self) -> int:
        """Slots that are kept: those that are shown, and the one under way."""
        return self.count + 1


SPANS = {"minute": Span(1, 60, 1), "hour": Span(60, 60, 62), "day": Span(900, 96, 123)}
_FIRST_EVENT = 220
_SIZE = (_FIRST_EVENT + EVENTS) * _CELL


@dataclass
class Slot:
    """What happened in a part of a span: sums, and the largest and smallest values that were seen."""

    start: int
    sums: dict[str, float] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    least: dict[str, float] = field(default_factory=dict)

    def add(self, sums: dict[str, float], seen: dict[str, float]) -> None:
        """Count what happened, and values as they are now."""
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0) + value
        for name, value in seen.items():
            self.most[name] = max(value, self.most.get(name, value))
            self.least[name] = min(value, self.least.get(name, value))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"t": self.start, "sums": self.sums, "most": self.most, "least": self.least}


class RingWriter:
    """Writes the file; one process at a time. A file that was there before goes on."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LedgerError(
                f"cannot write {path}: {error.strerror or error}; --ledger names another place"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            begin = os.pread(self._file, len(_MAGIC) + len(_VERSION), 0)
            if begin and not begin.startswith(_MAGIC):
                raise LedgerError(f"{path} was not written by L2H: --ledger names another place")
            if begin != _MAGIC + _VERSION or os.fstat(self._file).st_size != _SIZE:
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, (_MAGIC + _VERSION).ljust(_SIZE), 0)
        except BlockingIOError:
            os.close(self._file)
            raise LedgerError(
                f"another server writes {path}: of the servers with one ledger only one can have --dashboard"
            ) from None
        except BaseException:
            os.close(self._file)
            raise
        self._slots: dict[str, Slot] = {}
        events = list(_cells(self._file, _FIRST_EVENT, EVENTS))
        self._events = max((event.get("n", 0) for event in events), default=0)

    def add(self, now: float, sums: dict[str, float], seen: dict[str, float]) -> None:
        """Count what happened until now in the slots that this time belongs to."""
        for name, span in SPANS.items():
            start = int(now // span.step) * span.step
            cell = span.first + start // span.step % span.cells
            slot = self._slots.get(name)
            if slot is None or slot.start != start:
                before = [found for found in _cells(self._file, cell, 1) if found.get("t") == start]
                slot = self._slots[name] = _slot(before[0]) if before else Slot(start)
            slot.add(sums, seen)
            self._write(cell, slot.as_dict())

    def note(self, event: dict[str, Any]) -> None:
        """Remember an event in the place of the oldest."""
        self._events += 1
        short = {name: value[:_TEXT] if isinstance(value, str) else value for name, value in event.items()}
        self._write(_FIRST_EVENT + self._events % EVENTS, {"n": self._events, **short})

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)

    def _write(self, cell: int, values: dict[str, Any]) -> None:
        data = json.dumps(values, separators=(",", ":")).encode()
        assert len(data) <= _CELL
        os.pwrite(self._file, data.ljust(_CELL), cell * _CELL)


def read_slots(path: Path, span: Span, now: float) -> list[Slot]:
    """Return the slots of a span that ends now, oldest first, with empty ones where nothing was recorded."""
    last = int(now // span.step) * span.step
    found = {slot.get("t"): slot for slot in _read(path, span.first, span.cells)}
    starts = range(last - (span.count - 1) * span.step, last + 1, span.step)
    return [_slot(found[start]) if start in found else Slot(start) for start in starts]


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events that are remembered, newest first."""
    return sorted(_read(path, _FIRST_EVENT, EVENTS), key=lambda event: -event.get("n", 0))


def _read(path: Path, first: int, count: int) -> list[dict[str, Any]]:
    """What some cells hold; nothing where the file is gone."""
    try:
        with path.open("rb") as file:
            return list(_cells(file.fileno(), first, count))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LedgerError(f"cannot read {path}: {error.strerror or error}") from error


def _cells(file: int, first: int, count: int) -> Iterator[dict[str, Any]]:
    data = os.pread(file, count * _CELL, first * _CELL)
    for place in range(0, len(data), _CELL):
        with suppress(ValueError):
            cell = orjson.loads(data[place : place + _CELL].rstrip())
            if isinstance(cell, dict):
                yield cell


def _slot(cell: dict[str, Any]) -> Slot:
    return Slot(cell["t"], *(cell.get(name, {}) for name in ("sums", "most", "least")))
