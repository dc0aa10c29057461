"""The places for connections: so many in all, and so many of an address."""

import asyncio
import ipaddress
import logging
from collections import Counter
from typing import Protocol

#: Seconds between two lines in the log about connections that were refused.
_QUIET = 1.0


class Place(Protocol):
    """What holds a place for a connection."""

    @property
    def answering(self) -> bool:
        """Whether a request is under way."""

    def give_way(self) -> bool:
        """Close the connection, unless a request is under way; return whether it was closed."""


class Places:
    """The places for connections of one server: so many in all, and with a bound per address so many of each.

    With such a bound strangers give way: a newcomer beyond either number takes the place of the oldest connection, of
    its address where that is crowded, that has no request under way and has shown no valid key.
    """

    def __init__(self, most: int, per_address: int | None) -> None:
        self._most, self._per_address = most, per_address
        self._taken: dict[Place, str] = {}
        self._addresses: Counter[str] = Counter()
        self._strangers: dict[Place, None] = {}  # oldest first
        self._doubted: set[Place] = set()  # whose request under way may have shown a key that is revoked by now
        self._closed: Counter[str] = Counter()
        self.lingering = 0

    def enter(self, place: Place, peer: tuple[str, int] | None) -> bool:
        """Take a place, if need be that of a stranger; return False where there is none."""
        address = network_of(peer[0]) if peer else ""
        crowded = self._per_address is not None and self._addresses[address] >= self._per_address
        if (crowded or len(self._taken) >= self._most) and not self._displace(address if crowded else None):
            self.note("refused")
            return False
        self._taken[place] = address
        self._addresses[address] += 1
        self._strangers[place] = None
        return True

    def leave(self, place: Place) -> bool:
        """Give the place back; return False where it was not taken."""
        address = self._taken.pop(place, None)
        if address is None:
            return False
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
        self._strangers.pop(place, None)
        self._doubted.discard(place)
        return True

    def know(self, place: Place) -> None:
        """Note that the peer is no stranger, unless its request began before :meth:`forget_known`."""
        if place in self._doubted:
            self._doubted.discard(place)
        else:
            self._strangers.pop(place, None)

    def forget_known(self) -> None:
        """Take every peer for a stranger until it shows a valid key again."""
        self._strangers = dict.fromkeys(self._taken)
        self._doubted = {place for place in self._taken if place.answering}

    def note(self, what: str) -> None:
        """Count a connection that was closed for want of places or for bad manners; a line in the log sums them up."""
        if not self._closed:
            asyncio.get_running_loop().call_later(_QUIET, self._log)
        self._closed[what] += 1

    def _log(self) -> None:
        closed, self._closed = dict(self._closed), Counter()
        logging.getLogger("l2h.connections").warning("connections_closed", extra={"fields": closed})

    def _displace(self, address: str | None) -> bool:
        if self._per_address is None:
            return False
        for place in self._strangers:
            if address in (None, self._taken[place]) and place.give_way():
                self.leave(place)
                self.note("displaced")
                return True
        return False


def network_of(address: str) -> str:
    """Return the address that a peer is counted by: of IPv6 the half that its network was given."""
    if ":" not in address:
        return address
    whole = ipaddress.IPv6Address(address.partition("%")[0])
    return str(whole.ipv4_mapped or ipaddress.IPv6Network((int(whole) >> 64 << 64, 64)))
