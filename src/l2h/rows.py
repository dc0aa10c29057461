"""Samples that stay where they are and are read when they are indexed, for data that is larger than memory."""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.errors import DataError
from l2h.files import open_regular, read_npy_header

Array = npt.NDArray[Any]
RowNumbers = npt.NDArray[np.int64]
#: What one chunk of samples may take, in bytes, once they are float32.
CHUNK_BYTES = 128 * 2**20
#: The control groups of Linux that this process is in; and for both versions where they are mounted, and the files that
#: say how much memory a group may take and takes.
_GROUPS_OF_PROCESS = Path("/proc/self/cgroup")
_GROUPS = {
    "": (Path("/sys/fs/cgroup"), ("memory.max", "memory.current")),
    "memory": (Path("/sys/fs/cgroup/memory"), ("memory.limit_in_bytes", "memory.usage_in_bytes")),
}


class Rows(ABC):
    """Samples (n, ...) that are read when they are indexed, and never all at once.

    ``X[index]`` with a slice, row numbers or a mask is a numpy array, as of a numpy array. :meth:`select` takes rows
    without reading them. :meth:`l2h.HelpSystem.fit`, ``calibrate``, ``predict`` and ``evaluate`` take ``Rows`` wherever
    they take an array, and what they compute is the same. A subclass has ``shape``, ``dtype`` and :meth:`read`.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def read(self, rows: RowNumbers) -> Array:
        """Return the samples of these row numbers, each of 0 .. n - 1, in this order; repeats are allowed."""

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """What all samples would take in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, index: Any) -> Array:
        if isinstance(index, int | np.integer):
            row: Array = self._read(_numbers([index], len(self)))[0]
            return row
        return self._read(_numbers(index, len(self)))

    def _read(self, rows: RowNumbers) -> Array:
        """Return rows as :meth:`read` does, which a subclass may get wrong."""
        found = self.read(rows)
        expected = (len(rows), *self.shape[1:])
        if not isinstance(found, np.ndarray) or found.shape != expected or found.dtype != self.dtype:
            kind = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
            due = f"{self.dtype} {expected}"
            raise DataError(f"{type(self).__name__}.read gave {kind} for {len(rows)} rows: {due} is due")
        return found

    def select(self, index: Any) -> Rows:
        """Return some of the rows, by a slice, row numbers or a mask, to be read when they are indexed."""
        return SelectedRows(self, _numbers(index, len(self)))

    def map(self, function: Callable[[Array], Array], dtype: npt.DTypeLike) -> Rows:
        """Return the same rows, to be changed by a function of a batch (n, ...) after they are read."""
        return _MappedRows(self, function, np.dtype(dtype))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.asarray(in_memory(self), dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__.lstrip('_')}({self.shape} {self.dtype}, {in_bytes(self.nbytes)})"


class StoredArray(Rows):
    """The rows of an ``.npy`` file, read from the file whenever they are indexed.

    They are read, not mapped: pages of a mapped file count as memory of the process. Processes may share the file, and
    a copy that is sent to another process opens it again.

    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/x.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
        ...     X = StoredArray(f"{folder}/x.npy")
        ...     X[[2, 0]].tolist(), X.select([3, 1])[:1].tolist(), X.shape
        ([[6.0, 7.0, 8.0], [0.0, 1.0, 2.0]], [[9.0, 10.0, 11.0]], (4, 3))
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._file = open_regular(self.path)
            self.shape, self.dtype, self._start = read_npy_header(self._file, os.fstat(self.fileno()).st_size)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{str(self.path)!r} holds no array that can be read by rows: {error}") from error
        self._row = math.prod(self.shape[1:]) * self.dtype.itemsize

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredArray, (self.path,)

    def fileno(self) -> int:
        """Return the descriptor of the open file."""
        return self._file.fileno()

    def read(self, rows: RowNumbers) -> Array:
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        bytes_of = out.reshape(-1).view(np.uint8).data
        # Rows that follow each other in the file are read by one call.
        ends = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
        for first, last in pairwise(ends):
            if first < last:
                self._fill(bytes_of[first * self._row : last * self._row], self._start + int(rows[first]) * self._row)
        return out

    def _fill(self, room: memoryview, offset: int) -> None:
        while room:
            count = os.preadv(self.fileno(), [room], offset)
            if not count:
                raise DataError(f"{str(self.path)!r} has become shorter while it is read: it was changed")
            room, offset = room[count:], offset + count


class SelectedRows(Rows):
    """Some rows of a source, read when they are indexed; :meth:`Rows.select` makes them."""

    def __init__(self, source: Rows, rows: RowNumbers) -> None:
        self.source, self.rows = source, rows
        self.shape, self.dtype = (len(rows), *source.shape[1:]), source.dtype

    def select(self, index: Any) -> Rows:
        return SelectedRows(self.source, self.rows[_numbers(index, len(self))])

    def read(self, rows: RowNumbers) -> Array:
        return self.source[self.rows[rows]]


class _MappedRows(Rows):
    def __init__(self, source: Rows, function: Callable[[Array], Array], dtype: np.dtype[Any]) -> None:
        self.source, self.function, self.dtype = source, function, dtype
        self.shape = (len(source), *function(source[:1]).shape[1:])

    def read(self, rows: RowNumbers) -> Array:
        return self.function(self.source[rows]).astype(self.dtype, copy=False)


def in_memory(X: Array | Rows, times: int = 1) -> Array:
    """Return all rows as an array; raise a :class:`DataError` where memory has no room for ``times`` as much."""
    if not isinstance(X, Rows):
        return X
    free = free_memory()
    if times * X.nbytes > free:
        raise DataError(
            f"all {len(X)} samples at once are needed here and take {in_bytes(times * X.nbytes)}, but {in_bytes(free)} "
            "of memory are free: use fewer samples, smaller images, or a model that is trained in batches"
        )
    return X[:]


def take_rows(X: Any, rows: Any) -> Any:
    """Return some rows of an array, a table or :class:`Rows`; the last are not read yet."""
    return X.select(rows) if isinstance(X, Rows) else X[rows]


def batch_rows(shape: tuple[int, ...], most: int) -> int:
    """Return how many samples of an array of this shape are worked on at a time, at most ``most``.

    It depends on the shape alone, so that an array in memory and a stored one are worked on in the same batches, which
    gives the same numbers to the last bit.
    """
    return max(1, min(most, CHUNK_BYTES // max(1, 4 * math.prod(shape[1:]))))


def chunks(X: Array | Rows, most: int = 2**20) -> Iterator[Array]:
    """Give an array or :class:`Rows` in pieces of :func:`batch_rows` samples, in their order."""
    size = batch_rows(tuple(X.shape), most)
    return (X[start : start + size] for start in range(0, len(X), size))


def moments(X: Array | Rows) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return mean and standard deviation of each channel of images, or of each column of a table.

    Those of uint8 are exact before they are rounded, so that they do not depend on the order of the rows.
    """
    axes, count = (0, *range(2, X.ndim)), len(X) * math.prod(X.shape[2:])
    if X.dtype == np.uint8:
        sums, squares = np.zeros((2, X.shape[1]), object)  # of Python's integers, which do not overflow
        for chunk in chunks(X):
            sums += chunk.sum(axes, dtype=np.uint64).astype(object)
            squares += np.square(chunk, dtype=np.uint16).sum(axes, dtype=np.uint64).astype(object)
        variance = (count * squares - sums * sums) / count**2
        return (sums / count).astype(np.float64), np.sqrt(variance.astype(np.float64))
    mean = np.asarray(sum(chunk.sum(axes, dtype=np.float64) for chunk in chunks(X)) / count)
    shape = (-1, *(1,) * (X.ndim - 2))
    spread = sum(np.square(chunk - mean.reshape(shape)).sum(axes, dtype=np.float64) for chunk in chunks(X))
    return mean, np.sqrt(spread / count)


def digest(*arrays: Array | Rows) -> str:
    """Return a SHA-256 over shape, type and bytes of arrays: it is the same for the same data, stored or not."""
    out = hashlib.sha256()
    for array in arrays:
        out.update(f"{array.shape}{array.dtype}".encode())
        for chunk in chunks(array):
            out.update(np.ascontiguousarray(chunk).data)
    return out.hexdigest()


def free_memory() -> int:
    """Return how many bytes of memory this process can still take: of the machine, and of each group it is in."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for group, names in _groups():
        with suppress(OSError, ValueError):  # no such group, or one without a limit
            limit, used = (int((group / name).read_text("ascii")) for name in names)
            stat = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
            # What files take can be freed. The first version counts the groups within a group under another name.
            found.append(limit - used + int(stat.get("total_inactive_file", stat.get("inactive_file", 0))))
    return max(0, min(found))


def _groups() -> Iterator[tuple[Path, tuple[str, str]]]:
    """Give the folders of this process's groups, which lie in each other, up to the root that a container sees."""
    yield from _GROUPS.values()
    with suppress(OSError, ValueError):
        for line in _GROUPS_OF_PROCESS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for root, names in [_GROUPS[name] for name in controllers.split(",") if name in _GROUPS]:
                group = root / path.lstrip("/")
                while group != root:
                    yield group, names
                    group = group.parent


def in_bytes(count: float) -> str:
    """Return a number of bytes as people write it: ``12.3 GB``."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _numbers(index: Any, count: int) -> RowNumbers:
    """Return the row numbers that an index of numpy stands for."""
    if isinstance(index, slice):
        return np.arange(*index.indices(count), dtype=np.int64)
    rows = np.asarray(index)
    if rows.dtype == np.bool_:
        if rows.shape != (count,):
            raise IndexError(f"a mask of shape {rows.shape} for {count} rows")
        return np.flatnonzero(rows)
    rows = rows.astype(np.int64) if rows.size else np.zeros(0, np.int64)
    if rows.ndim != 1 or (rows.size and not -count <= rows.min() <= rows.max() < count):
        raise IndexError(f"row numbers of shape {rows.shape} that do not lie in 0 .. {count - 1}")
    return np.where(rows < 0, rows + count, rows)
