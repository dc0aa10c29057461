"""Rates per key, shared by all workers: a small table in shared memory; every change locks a byte of its file.

The rule is GCRA, the leaky bucket kept as one time, ``empty_at``, when the bucket will be empty again. A request of n
inputs passes if the bucket then holds no more than the burst, and moves ``empty_at`` by n inputs' worth of time. A
request of more inputs than the burst passes an empty bucket and is paid back afterwards: no request is impossible, and
the rate still holds over any longer time.

The clock is the system's monotonic one, the same in all processes. The kernel frees the lock of a process that dies.
"""

import fcntl
import math
import mmap
import os
import struct
import tempfile
import time
import zlib
from functools import lru_cache

from l2h.serving.accounts.key import Rate

#: A key's id, its time, and padding.
_RECORD = struct.Struct("<16sd8x")
_STRIDE = _RECORD.size
#: Bytes of a group of records, which share a lock, and how many groups there are.
_GROUP, _GROUPS = 16 * _STRIDE, 1024
_SIZE = _GROUPS * _GROUP


def make_table() -> int:
    """Return a file descriptor of an empty table, for the workers to inherit. The file has no name and ends with them.

    It lies in memory where the system can do that: a disk that fills up would kill whoever writes to a mapped file.
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
    """The rates of all keys, in the table of :func:`make_table`."""

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        self._memory = mmap.mmap(descriptor, _SIZE)

    def take(self, key: str, rate: Rate, inputs: int, paid: int = 0, now: float | None = None) -> float:
        """Let inputs through and return 0.0, or take nothing and return the seconds after which they would pass.

        Of them, ``paid`` were let through before.
        """
        now = time.monotonic() if now is None else now
        name, first = _locate(key)
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, first)
        try:
            place, empty_at = self._find(name, first, now)
            wait = _wait(max(empty_at, now) - now - paid / rate.per_second, rate, inputs)
            if wait > 0.0:
                return wait
            _RECORD.pack_into(self._memory, place, name, max(empty_at, now) + (inputs - paid) / rate.per_second)
            return 0.0
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, first)

    def _find(self, name: bytes, first: int, now: float) -> tuple[int, float]:
        """Where a key's record is, or would be, and its time.

        Where all records of its group are taken, the bucket that has been empty longest is given up: an empty bucket
        says no more than none.
        """
        spare, oldest = first, math.inf
        for place in range(first, first + _GROUP, _STRIDE):
            owner, empty_at = _RECORD.unpack_from(self._memory, place)
            if owner == name:
                return place, empty_at
            if empty_at < oldest:
                spare, oldest = place, empty_at
        return spare, now


@lru_cache(maxsize=_SIZE // _STRIDE)
def _locate(key: str) -> tuple[bytes, int]:
    """A key as the table holds it, and the place of the first record of its group."""
    name = key.encode()[:16].ljust(16, b"\0")
    return name, zlib.crc32(name) % _GROUPS * _GROUP


def _wait(filled: float, rate: Rate, inputs: int) -> float:
    """Seconds until a bucket with ``filled`` seconds' worth in it has room."""
    return filled - (rate.burst - min(inputs, rate.burst)) / rate.per_second
