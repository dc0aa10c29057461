"""Rates per key, shared by all workers: a small table in shared memory, a byte of its file locked for every change.

The rule is GCRA, the leaky bucket kept as one time: ``full``, when the bucket will be empty again. A request of n
inputs passes if the bucket then holds no more than the burst, and moves ``full`` by n inputs' worth of time. A request
of more inputs than the burst passes an empty bucket and is paid back afterwards, so that none is impossible and the
rate over any longer time is kept all the same.

The clock is the system's monotonic one, the same in all processes. The kernel frees the lock of a process that dies.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import time
import zlib

from l2h.serving.accounts.allowance import Rate

_RECORD = struct.Struct("<16sd8x")
_ROWS = 16384
_PROBES = 16
_SIZE = _ROWS * _RECORD.size


def make_table() -> int:
    """A file descriptor of an empty table, to be inherited by the workers; the file has no name and dies with them.

    It lies in memory where the system can do that: on a disk, one that fills up would kill whoever writes to it.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("l2h-rates")
        os.truncate(descriptor, _SIZE)
        return descriptor
    with tempfile.TemporaryFile() as file:
        file.write(bytes(_SIZE))
        file.flush()
        return os.dup(file.fileno())


class RateTable:
    """The rates of all keys.

    Args:
        descriptor: of :func:`make_table`.
    """

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        self._memory = mmap.mmap(descriptor, _SIZE)
        self._places: dict[str, tuple[bytes, int, int]] = {}

    def take(self, key: str, rate: Rate, inputs: int, now: float | None = None) -> float:
        """Let ``inputs`` through: 0.0, or the seconds after which they would be, and then nothing is taken."""
        now = time.monotonic() if now is None else now
        name, row, _ = self._place(key)
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, row)
        try:
            place, full = self._find(key, now)
            wait = _wait(max(full, now) - now, rate, inputs)
            if wait <= 0.0:
                _RECORD.pack_into(self._memory, place, name, max(full, now) + inputs / rate.per_second)
                return 0.0
            return wait
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, row)

    def peek(self, key: str, rate: Rate, now: float | None = None) -> float:
        """Seconds until one input would be let through; nothing is taken, and no lock waited for."""
        now = time.monotonic() if now is None else now
        _, full = self._find(key, now)
        return max(0.0, _wait(max(full, now) - now, rate, 1))

    def _place(self, key: str) -> tuple[bytes, int, int]:
        """A key as the table holds it, the first of the rows that it may be in, and where it was last found."""
        found = self._places.get(key)
        if found is None:
            name = key.encode()[:16].ljust(16, b"\0")
            row = zlib.crc32(name) % (_ROWS // _PROBES) * _PROBES
            found = self._places[key] = name, row, row * _RECORD.size
        return found

    def _find(self, key: str, now: float) -> tuple[int, float]:
        """Where a key's record is, or would be, and its time.

        All keys that share a first row share its lock and the rows after it. With all of them taken the one longest
        empty is given up: an empty bucket says no more than none.
        """
        name, row, place = self._place(key)
        found, full = _RECORD.unpack_from(self._memory, place)
        if found == name:
            return place, full
        spare, oldest = row * _RECORD.size, float("inf")
        for place in range(row * _RECORD.size, (row + _PROBES) * _RECORD.size, _RECORD.size):
            found, full = _RECORD.unpack_from(self._memory, place)
            if found == name:
                self._places[key] = name, row, place
                return place, full
            if full < oldest:
                spare, oldest = place, full
        return spare, now


def _wait(filled: float, rate: Rate, inputs: int) -> float:
    """Seconds until a bucket with ``filled`` seconds' worth in it has room."""
    return filled - (rate.burst - min(inputs, rate.burst)) / rate.per_second
