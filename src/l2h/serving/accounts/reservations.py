"""Reserved parts of quotas, shared by all workers: a table in memory; every change locks a byte of it.

The ledger counts what was charged, after the model ran. So that no more is computed than may be charged, inputs are
reserved here before the model runs, and given back when their request has ended. A record holds what the ledger said
last of a key's period, and what each worker has reserved. It is filled from the ledger when a period is new to it, and
afterwards by what each charge finds. The kernel frees the lock of a process that dies; the supervisor drops what a dead
worker had reserved.
"""

import fcntl
import mmap
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from l2h.clock import boot_time
from l2h.serving.accounts.key import Key
from l2h.serving.accounts.store import ChargeResult, Room

#: A key's id and the seconds of its period; the end of the period; what is used of it; what the ledger said was used
#: when it was last asked. Then what each worker has reserved.
_HEAD = struct.Struct("<16sdqq")
#: Records of a group, which share a lock, and how many groups there are.
_RECORDS, _GROUPS = 16, 512


#: While a quota has so many inputs left for each worker, a worker reserves so many more than it needs.
_MUCH, _MORE = 4096, 256
_GRANTED = Room(True, True, 0, 1.0)


@dataclass(slots=True)
class _Spare:
    """Inputs that a worker has reserved and nobody has asked for yet."""

    count: int  # of the quota
    inputs: int
    idle: bool  # whether none of them was asked for since the last flush


class UsedQuota(NamedTuple):
    """What the ledger says of a key's present period."""

    used: int
    ends: float  # seconds since the system's start


class ReservationTable:
    """The reserved inputs of all workers, in a file of :func:`l2h.serving.accounts.rates.make_memory`.

    Inputs that were charged move from what is reserved to what is used with the next :meth:`flush`, and not before: so
    the sum of both is right at every moment. Of those that the ledger had counted when it was asked, which a charge
    tells by how much was used after it, none is counted twice.

    To lock and look takes longer than all the rest. So a worker alone takes no lock, and while the quota has much room
    left, every worker reserves more than it needs, and gives the rest back when it is not needed any more.
    """

    def __init__(self, descriptor: int, workers: int, worker: int = 0) -> None:
        self._file, self._workers, self._worker = descriptor, workers, worker
        self._record = struct.Struct(f"{_HEAD.format}{workers}q")
        self._own = struct.Struct("<q")
        self._size = _RECORDS * self._record.size
        self._memory = mmap.mmap(descriptor, table_size(workers))
        #: By the names of records: charges that are yet to be moved, with their inputs; what is spare; where they lie.
        self._settled: dict[bytes, list[tuple[int, ChargeResult | None]]] = {}
        self._spare: dict[bytes, _Spare] = {}
        self._places: dict[bytes, int] = {}

    def reserve(self, key: Key, inputs: int, read: Callable[[], UsedQuota | None]) -> Room:
        """Reserve inputs of the key's quota, all or none; ``read`` asks the ledger, where the period is new."""
        quota = key.quota
        assert quota is not None
        name = _named(key.id, quota.seconds)
        spare = self._spare.get(name)
        if spare is not None and spare.inputs >= inputs and spare.count == quota.count:
            spare.inputs -= inputs
            spare.idle = False
            return _GRANTED
        room = self._reserve(name, quota.count, inputs, read)
        if not room.granted and (spare is not None or name in self._settled):
            self.flush(give_back=True)
            room = self._reserve(name, quota.count, inputs, read)
        return room

    def _reserve(self, name: bytes, count: int, inputs: int, read: Callable[[], UsedQuota | None]) -> Room:
        first = self._first(name)
        self._lock(fcntl.LOCK_EX, first)
        try:
            place = self._find(name, first)
            place = self._make(name, first) if place is None else place
            if place is None:  # as many keys as a group holds are being computed for: the charge decides
                return Room(True, False, 0, 1.0)
            _, ends, used, _, *reserved = self._record.unpack_from(self._memory, place)
            now = boot_time()
            if now >= ends:
                known = read()
                used, ends = (0, now) if known is None else known
                _HEAD.pack_into(self._memory, place, name, ends, used, used)
            left = count - used - sum(reserved)
            if inputs > left and ends > now:
                # Requests that are being computed may fail, and leave room.
                return Room(False, False, max(0, left), ends - now if used + inputs > count else 1.0)
            more = _MORE if left >= _MUCH * self._workers else 0
            self._set(place, reserved[self._worker] + inputs + more)
            if more:
                spare = self._spare.setdefault(name, _Spare(0, 0, False))
                spare.inputs, spare.count = spare.inputs + more, count
            return _GRANTED
        finally:
            self._lock(fcntl.LOCK_UN, first)

    def settle(self, key: Key, inputs: int, result: ChargeResult | None) -> None:
        """Note that reserved inputs were charged with this result, or will not be; :meth:`flush` moves them."""
        assert key.quota is not None
        self._settled.setdefault(_named(key.id, key.quota.seconds), []).append((inputs, result))
        # It leaves room for others, as one that was charged elsewhere does, or others have taken it.
        if result is None or result.outcome != "charged" or result.used is None:
            self.flush()

    def flush(self, give_back: bool = False) -> None:
        """Give back what was settled, and count what was charged of it; also what is spare and not needed any more."""
        settled, self._settled = self._settled, {}
        for name, spare in list(self._spare.items()):
            if spare.idle or give_back:
                settled.setdefault(name, []).append((spare.inputs, None))
                del self._spare[name]
            spare.idle = True
        for name, charges in settled.items():
            first = self._first(name)
            self._lock(fcntl.LOCK_EX, first)
            try:
                place = self._find(name, first)
                if place is not None:
                    self._move(place, name, charges)
            finally:
                self._lock(fcntl.LOCK_UN, first)

    def _move(self, place: int, name: bytes, charges: list[tuple[int, ChargeResult | None]]) -> None:
        _, ends, used, base, *reserved = self._record.unpack_from(self._memory, place)
        under_way, half = sum(reserved), int.from_bytes(name[12:], "little") / 2
        for inputs, result in charges:
            reserved[self._worker] -= inputs
            if result is None or result.used is None:
                continue
            if result.outcome == "over_quota":  # the ledger has the last word
                ends, used, base = result.ends, result.used, result.used
            elif result.outcome == "charged" and abs(result.ends - ends) < half:
                used += inputs if result.used > base else 0
                # More than all that is known here: another server writes to the ledger as well.
                used, ends = max(used, result.used - under_way), result.ends
        self._set(place, max(0, reserved[self._worker]))
        _HEAD.pack_into(self._memory, place, name, ends, used, base)

    def is_known(self, key: Key) -> bool:
        """Return whether :meth:`reserve` knows of the key's period, and reads nothing; from memory."""
        quota = key.quota
        assert quota is not None
        name = _named(key.id, quota.seconds)
        place = self._find(name, self._first(name))
        return place is not None and boot_time() < _HEAD.unpack_from(self._memory, place)[1]

    def used_up(self, key: Key) -> float:
        """Return the seconds for which a quota is known to be used up; 0.0 where it is not known to be."""
        quota = key.quota
        assert quota is not None
        name = _named(key.id, quota.seconds)
        place = self._find(name, self._first(name))
        if place is None:
            return 0.0
        _, ends, used, _ = _HEAD.unpack_from(self._memory, place)
        return max(0.0, float(ends) - boot_time()) if used >= quota.count else 0.0

    def drop(self) -> None:
        """Drop what the worker has reserved, since it has ended; what it had charged is read from the ledger again."""
        for first in range(0, _GROUPS * self._size, self._size):
            self._lock(fcntl.LOCK_EX, first)
            for place in range(first, first + self._size, self._record.size):
                name, _, used, base, *reserved = self._record.unpack_from(self._memory, place)
                if reserved[self._worker]:
                    self._set(place, 0)
                    _HEAD.pack_into(self._memory, place, name, 0.0, used, base)
            self._lock(fcntl.LOCK_UN, first)

    def _first(self, name: bytes) -> int:
        """Return the place of the first record of a name's group."""
        return zlib.crc32(name) % _GROUPS * self._size

    def _find(self, name: bytes, first: int) -> int | None:
        place = self._places.get(name, first)
        if self._memory[place : place + 16] == name:
            return place
        for place in range(first, first + self._size, self._record.size):
            if self._memory[place : place + 16] == name:
                if len(self._places) >= _GROUPS * _RECORDS:
                    self._places.clear()
                self._places[name] = place
                return place
        return None

    def _make(self, name: bytes, first: int) -> int | None:
        """Give a key a record, whose period is yet to be read, in place of one that nothing is reserved of."""
        for place in range(first, first + self._size, self._record.size):
            if not any(self._record.unpack_from(self._memory, place)[4:]):
                _HEAD.pack_into(self._memory, place, name, 0.0, 0, 0)
                return place
        return None

    def _lock(self, how: int, first: int) -> None:
        if self._workers > 1:
            fcntl.lockf(self._file, how, 1, first)

    def _set(self, place: int, reserved: int) -> None:
        self._own.pack_into(self._memory, place + _HEAD.size + 8 * self._worker, reserved)


@lru_cache(maxsize=_GROUPS * _RECORDS)
def _named(key: str, seconds: int) -> bytes:
    return key.encode()[:12].ljust(12, b"\0") + seconds.to_bytes(4, "little")


def table_size(workers: int) -> int:
    """Return the bytes of a table."""
    return _GROUPS * _RECORDS * (_HEAD.size + 8 * workers)
