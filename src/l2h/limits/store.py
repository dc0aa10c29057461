"""Where a limiter keeps its permits: the interface, and the permits of one process in memory."""

import math
from typing import Protocol

from l2h.limits.window import Window


class StoreUnavailableError(Exception):
    """Raised when permits could not be read or written: none may be given."""


class PermitStore(Protocol):
    """Keeps permits. One request is :meth:`begin_request`, then :meth:`end_request`, under the caller's lock.

    Attributes:
        window: the permits in force.
        position: where its end is: a time, or the number of a request.
    """

    window: Window
    position: float

    def begin_request(self, now: float) -> None:
        """Bring ``position`` and ``window`` up to a request at time ``now``."""

    def end_request(self, wanted: bool) -> bool:
        """Record the request, with a permit if one is wanted and the cap allows it; return whether it was given.

        Raises:
            StoreUnavailableError: nothing could be recorded, and no permit was given.
        """

    def refresh(self, now: float) -> None:
        """Bring ``window`` up to date without a request; raises as :meth:`end_request`."""

    def reopen(self) -> bool:
        """Go on in a forked process; return False if the permits cannot be shared with the parent."""

    def close(self) -> None:
        """Close what is open."""


class MemoryStore:
    """Permits in the memory of one process.

    Args:
        window: the empty window.
        by_time: whether positions are times; else they are numbers of requests.
    """

    def __init__(self, window: Window, by_time: bool) -> None:
        self.window = window
        self.position: float = -math.inf if by_time else 0
        self._by_time = by_time

    def begin_request(self, now: float) -> None:
        if self._by_time:
            self.refresh(now)
        else:
            self.position += 1
            self.window.advance(self.position)

    def end_request(self, wanted: bool) -> bool:
        if not wanted or self.window.full:
            return False
        self.window.record([self.position])
        return True

    def refresh(self, now: float) -> None:
        if self._by_time:
            # Time never goes back for the limiter: it waits for a clock that does.
            self.position = max(now, self.position)
            self.window.advance(self.position)

    def reopen(self) -> bool:
        return False

    def close(self) -> None:
        pass
