"""Rates per key, shared by all workers: a small table in a mapped file; every change locks a byte of it.

The rule is GCRA, the leaky bucket kept as one time, ``empty_at``, when the bucket will be empty again. A request of n
inputs passes if the bucket then holds no more than the burst, and moves ``empty_at`` by n inputs' worth of time. A
request of more inputs than the burst passes an empty bucket and is paid back afterwards: no request is impossible, and
the rate still holds over any longer time.

The clock counts the time since the system's start, the same in all processes. The kernel frees the lock of a process
that dies. The file lies beside the ledger, so the buckets outlive the server, however it ends. It takes its place on
the disk at the start, since a disk that fills up would kill whoever writes to a mapped file. After a restart of the
system the buckets go on by the wall clock, and none is fuller than when it was last seen.
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
from pathlib import Path

from l2h.clock import boot_id, boot_time
from l2h.serving.accounts.key import Rate

#: What the file is; which start of the system its times count from; the wall clock less that; when it was last used.
_HEADER = struct.Struct("<8s40sdd")
_MAGIC = b"L2HRATE1"
#: A key's id and its time.
_RECORD = struct.Struct("<16sd")
_STRIDE = _RECORD.size
#: Bytes of a group of records, which share a lock, and how many groups there are.
_GROUP, _GROUPS = 16 * _STRIDE, 512
_FIRST = _HEADER.size
_SIZE = _FIRST + _GROUPS * _GROUP


def make_memory(size: int) -> int:
    """Return a file descriptor of so many zeros, for the workers to inherit. The file has no name and ends with them.

    It lies in memory where the system can do that: a disk that fills up would kill whoever writes to a mapped file.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("l2h")
        os.truncate(descriptor, size)
        return descriptor
    with tempfile.TemporaryFile() as file:
        file.write(bytes(size))
        file.flush()
        return os.dup(file.fileno())


def make_table(path: Path | None = None) -> int:
    """Return a file descriptor of a table, for the workers to inherit: the one in a file, or a new one in memory."""
    if path is None:
        return make_memory(_SIZE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _take_place(descriptor)
        with mmap.mmap(descriptor, _SIZE) as memory:
            _begin(memory)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _take_place(descriptor: int) -> None:
    """Write zeros where the file is not as long as the table, since it is new or was cut."""
    size = os.fstat(descriptor).st_size
    if size < _SIZE:
        os.pwrite(descriptor, bytes(_SIZE - size), size)


def _begin(memory: mmap.mmap) -> None:
    """Bring a table's times to this start of the system."""
    magic, boot, offset, seen = _HEADER.unpack_from(memory)
    now, wall, this = boot_time(), time.time(), (boot_id() or "").encode()[:40].ljust(40, b"\0")
    if magic != _MAGIC:
        memory[:] = bytes(_SIZE)
    elif boot != this or not this.strip(b"\0"):
        for place in range(_FIRST, _SIZE, _STRIDE):
            name, empty_at = _RECORD.unpack_from(memory, place)
            left = min(empty_at + offset - wall, empty_at - seen)
            _RECORD.pack_into(memory, place, *((name, now + left) if left > 0.0 else (bytes(16), 0.0)))
    _HEADER.pack_into(memory, 0, _MAGIC, this, wall - now, now)


class RateTable:
    """The rates of all keys, in the table of :func:`make_table`."""

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        _take_place(descriptor)
        self._memory = mmap.mmap(descriptor, _SIZE)

    def note_time(self) -> None:
        """Write down the time, for a restart of the system; called about once a second."""
        now = boot_time()
        struct.pack_into("<dd", self._memory, _HEADER.size - 16, time.time() - now, now)

    def take(self, key: str, rate: Rate, inputs: int, paid: int = 0, now: float | None = None) -> float:
        """Let inputs through and return at most 0.0, or take nothing and return the seconds until they would pass.

        Of them, ``paid`` were let through before. What is below 0.0 is the time for which the rate could go on at once.
        """
        now = boot_time() if now is None else now
        name, first = _locate(key)
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, first)
        try:
            place, empty_at = self._find(name, first, now)
            wait = _wait(max(empty_at, now) - now - paid / rate.per_second, rate, inputs)
            if wait > 0.0:
                return wait
            _RECORD.pack_into(self._memory, place, name, max(empty_at, now) + (inputs - paid) / rate.per_second)
            return wait
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


@lru_cache(maxsize=_GROUPS * _GROUP // _STRIDE)
def _locate(key: str) -> tuple[bytes, int]:
    """A key as the table holds it, and the place of the first record of its group."""
    name = key.encode()[:16].ljust(16, b"\0")
    return name, _FIRST + zlib.crc32(name) % _GROUPS * _GROUP


def _wait(filled: float, rate: Rate, inputs: int) -> float:
    """Seconds until a bucket with ``filled`` seconds' worth in it has room."""
    return filled - (rate.burst - min(inputs, rate.burst)) / rate.per_second
