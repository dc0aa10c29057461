"""Whether answers that were paid for were delivered: handed to the system for a connection that had not ended."""

from collections.abc import Callable, Iterator
from typing import Any

from l2h.serving.accounts.store import Delivery


class Deliveries:
    """Answers that were sent and may yet be cut short; all methods run on the event loop.

    ``tell`` gets rows of charges, and whether their answers were delivered. Of an answer that the system has taken for
    a connection that was open nobody knows more: the network may still lose it.
    """

    def __init__(self, tell: Callable[[Delivery], None]) -> None:
        self._tell = tell
        self._sent: list[tuple[int, Any]] = []

    def note(self, row: int, cycle: Any) -> None:
        """Note that an answer was sent, by the row of its charge and uvicorn's object for the request."""
        if cycle.disconnected:
            self._tell((row, row, False))
        else:
            self._sent.append((row, cycle.transport))

    def look(self, last: bool = False) -> None:
        """Tell of all answers that have left by now, or never will; called every few milliseconds, and at the end."""
        sent, self._sent = self._sent, []
        arrived = []
        for row, transport in sent:
            if transport.ended:
                if transport.broken:
                    self._tell((row, row, False))
                else:
                    arrived.append(row)
            elif not transport.unsent() and (last or not transport.is_closing()):
                arrived.append(row)
            elif last:
                self._tell((row, row, False))
            else:
                self._sent.append((row, transport))
        for first, end in _runs(arrived):
            self._tell((first, end, True))


def _runs(rows: list[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of all rows that follow one another."""
    rows.sort()
    begin = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or rows[i] != rows[i - 1] + 1:
            yield rows[begin], rows[i - 1]
            begin = i
