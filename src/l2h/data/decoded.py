"""The images of a source, decoded once: read into memory where they fit, else stored on disk and read from there.

An entry of the cache is three files: ``KEY-X.npy``, ``KEY-y.npy`` and, written last, ``KEY.json`` with its source, the
class names, the checksums of the arrays and what was left out. The key depends on path, size and time of change of
every file of the source. Each file of an entry appears whole or not at all. One that does not match its checksums is
made again; images that are not read into memory are compared only where their file was changed since it was written.
Once a source has changed, its entries can never be used again. They are removed when it is decoded anew.
"""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import IO, Any

import numpy as np

from l2h.data.dataset import Array
from l2h.data.images import FirstImage, Pixels, decode_batch, first_image, room_for
from l2h.data.reading import RawPart, ReadOptions
from l2h.errors import DataError
from l2h.rows import Rows, StoredArray, chunks, free_memory, in_bytes

#: Raise it when the same file would be decoded into other arrays.
FORMAT_VERSION = 1
#: Of the memory that is free, what the images of a part may take: training makes copies of some, and has its own needs.
MEMORY_SHARE = 1 / 8
#: Bytes of pixels that are decoded at a time, and the most images.
_PIECE, _MOST = 48 * 2**20, 16384
#: How many of the images that were left out are named.
_NAMED = 5
#: What is being written, by its name, and after how many seconds without a change its process must have been killed.
_TEMPORARY, _ABANDONED = re.compile(r"[0-9a-f]{32}(-[Xy]\.npy|\.json)\..*(part|tmp)"), 86400
#: Seconds between two lines of the log about what is decoded, where nobody is told.
_SECONDS = 20
_log = logging.getLogger("l2h.data")


class _NoRoomError(DataError):
    """Images that are to be read into memory do not fit there."""


@dataclass(frozen=True)
class EncodedImages:
    """A piece of a source: images as it holds them."""

    encoded: Sequence[bytes | Path]  # the bytes of each, or its file
    y: Array  # the label of each
    name: Callable[[int], str] = str  # what messages call image ``i`` of them
    wrong: Sequence[str] = ()  # what could not be read of this piece, and why


@dataclass(frozen=True)
class ImageSource:
    """Images that are read a piece at a time."""

    title: str  # what messages call it
    place: str  # what the user named it by: it stays the same when files are changed, added or removed
    files: Sequence[Path]  # those that hold it: where one changes, all is decoded again
    count: Callable[[], int]  # returns how many images there are, as far as that can be told without decoding
    pieces: Callable[[int], Iterator[EncodedImages]]  # gives them in order, at most so many at a time
    class_names: Callable[[], tuple[str, ...] | None]  # returns None where the source has no names
    all_labels: Callable[[Array], Array] = np.asarray  # returns what the labels of all images are


def read_part(source: ImageSource, options: ReadOptions) -> RawPart:
    """Return the images of a source, from the cache where its files have not changed since they were decoded.

    A cache folder that cannot be written is reported in the log where the images fit into memory; else it is an error.
    """
    entries = []
    if options.cache is not None:
        # What nothing was left out of serves both ways of treating what is damaged.
        ways = ("", " skip")[: 1 + (options.on_error == "skip")]
        size = "" if options.size is None else f" size {options.size}"
        state, *keys = _keys(source.files, ("", *(size + way for way in ways)))
        entries = [_Entry(options.cache, key, source, state) for key in keys]
    part = _open(entries, options) or _make(source, options, entries)
    for text in part.skipped[:_NAMED]:
        _log.warning("left out: %s", text)
    if len(part.skipped) > _NAMED:
        _log.warning("left out of %s: %d more like these", source.title, len(part.skipped) - _NAMED)
    return part


def _make(source: ImageSource, options: ReadOptions, entries: Sequence["_Entry"]) -> RawPart:
    """Decode a source and keep it in the cache, where there is one."""
    first, count = _first(source, options), source.count()
    stream, choice = _choose_stream(source.title, count, count * first.nbytes, options)
    _log.info(choice)
    if entries:
        entries[0].remove_outdated()
    if not stream:
        part = _decode_into_memory(source, options, first, count)
        if entries:
            entries[0].check_source()
            try:
                entries[-1 if part.skipped else 0].write(part)
            except OSError as error:
                _log.warning(
                    "decoded images are not cached in %s (%s): set L2H_CACHE to a folder with room that can be written",
                    options.cache,
                    error,
                )
        return part
    if not entries:
        raise DataError(
            f"the images of {source.title} take {in_bytes(count * first.nbytes)} decoded, which is read from a cache "
            "folder, and cache=False allows none: give cache= a folder, or stream=False"
        )
    with entries[-1].written():
        found = _open(entries, options, tell=False)  # another process may have made it meanwhile
        if found is None:
            entries[-1].store(options, first, count, entries[0])
            found = _open(entries, replace(options, stream=True), tell=False)
    if found is None:
        raise DataError(f"the images of {source.title} were removed from {options.cache} while they were decoded")
    return found


def cache_folder(cache: str | Path | bool) -> Path | None:
    """Return where decoded images are kept: ``True`` is ``$L2H_CACHE`` or ``~/.cache/l2h``, ``False`` is nowhere."""
    if cache is False:
        return None
    if cache is True:
        return Path(os.environ.get("L2H_CACHE") or Path.home() / ".cache" / "l2h")
    return Path(cache).expanduser()


def settled(X: Any, stream: bool | None) -> Any:
    """Return rows that were selected of stored ones: read into memory where they fit and nobody asked otherwise."""
    return X[:] if isinstance(X, Rows) and stream is None and X.nbytes <= free_memory() * MEMORY_SHARE else X


def _open(entries: Sequence["_Entry"], options: ReadOptions, tell: bool = True) -> RawPart | None:
    return next((part for entry in entries if (part := entry.read(options, tell)) is not None), None)


def _choose_stream(title: str, count: int, nbytes: int, options: ReadOptions) -> tuple[bool, str]:
    """Return whether images are read from disk while they are used, and a line for the log that says why.

    Raise where they are not to be and memory has no room for them.
    """
    free = free_memory()
    stream = nbytes > free * MEMORY_SHARE if options.stream is None else options.stream
    if not stream and nbytes > free:
        raise _NoRoomError(
            f"the images of {title} take {in_bytes(nbytes)} decoded, but {in_bytes(free)} of memory are free: let them "
            "be read from disk where that is possible (without --no-stream, stream=None), or use a smaller --size"
        )
    why = "as asked" if options.stream is not None else f"of {in_bytes(free)} of free memory up to 1/8 is used for that"
    where = f"read from {options.cache} batch by batch" if stream else "read into memory"
    return stream, f"{title}: {count} images take {in_bytes(nbytes)} decoded: {where} ({why})"


def _first(source: ImageSource, options: ReadOptions) -> FirstImage:
    if options.size is not None:
        return FirstImage("", options.size, options.size)
    problem = f"{source.title} has no rows: at least one image is needed"
    for piece in source.pieces(1):
        try:
            if piece.encoded:
                return first_image(piece.encoded[0], piece.name(0), None)
            problem = next(iter(piece.wrong), problem)
        except DataError as error:
            problem = str(error)
        if options.on_error == "stop":
            break
    raise DataError(problem)


def _decode(
    source: ImageSource, options: ReadOptions, first: FirstImage, count: int, keep: Callable[[Pixels], None]
) -> tuple[Array, bool, list[str]]:
    """Decode a source piece by piece; return the labels, whether an image has colour, and what was left out.

    The pixels that ``keep`` gets are overwritten once it has been called again and has returned.
    """
    _log.info("decoding %d images of %s", count, source.title)
    labels: list[Array] = []
    skipped: list[str] = []
    colour, done, bad, told = False, 0, 0, time.monotonic()
    rows = max(1, min(_MOST, _PIECE // first.nbytes, count))
    rooms = cycle([room_for(rows, first), room_for(rows, first)])  # fresh memory takes longer than what is done with it
    for piece, room in zip(_read_ahead(source.pieces(rows)), rooms, strict=False):
        decoded = decode_batch(piece.encoded, piece.name, options.workers, options.size, first, room)
        wrong = [*piece.wrong, *(text for _, text in decoded.wrong)]
        if wrong and options.on_error == "stop":
            raise DataError(wrong[0])
        skipped += wrong
        good = np.ones(len(piece.encoded), np.bool_)
        good[[i for i, _ in decoded.wrong]] = False
        keep(decoded.pixels if good.all() else decoded.pixels[good])  # also none: the rooms take turns
        if good.any():
            labels.append(piece.y[good])
        colour |= decoded.colour
        done, bad = done + len(good), bad + len(decoded.wrong)
        if options.progress is not None:
            options.progress(done, max(done, count))
        elif time.monotonic() - told > _SECONDS:
            told = time.monotonic()
            _log.info("decoded %d of %d images of %s", done, max(done, count), source.title)
    if 2 * bad > done:  # also where the first image, whose size the others must have, is the odd one
        raise DataError(f"{bad} of {done} images of {source.title} cannot be used, too many to skip: {skipped[0]}")
    if not labels:
        raise DataError(f"{source.title} has no image that can be used{f': {skipped[0]}' if skipped else ''}")
    if len({y.dtype.kind == "U" for y in labels}) > 1:
        raise DataError(f"some labels of {source.title} are text and others numbers: use one kind")
    return source.all_labels(np.concatenate(labels)), colour, skipped


def _read_ahead(pieces: Iterator[EncodedImages]) -> Iterator[EncodedImages]:
    """Give the pieces, and let a thread read the next one meanwhile."""
    with ThreadPoolExecutor(1, thread_name_prefix="l2h-read") as pool:
        coming = pool.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = pool.submit(next, pieces, None)
            yield piece


def _decode_into_memory(source: ImageSource, options: ReadOptions, first: FirstImage, count: int) -> RawPart:
    X = np.empty((count, 3, first.height, first.width), np.uint8)
    filled = 0

    def keep(pixels: Pixels) -> None:
        nonlocal filled
        if filled + len(pixels) > count:
            raise DataError(f"files of {source.title} have grown while they were decoded: start again")
        X[filled : filled + len(pixels)] = pixels
        filled += len(pixels)

    y, colour, skipped = _decode(source, options, first, count, keep)
    X = X[:filled] if colour else np.ascontiguousarray(X[:filled, :1])
    return RawPart(X, y, source.class_names(), tuple(skipped))


@dataclass(frozen=True)
class _Entry:
    """The files of one key in the cache."""

    folder: Path
    key: str
    source: ImageSource
    state: str  # of all files of the source

    def path(self, ending: str) -> Path:
        return self.folder / f"{self.key}{ending}"

    def read(self, options: ReadOptions, tell: bool) -> RawPart | None:
        """Return what is kept, None where nothing is or it is damaged."""
        try:
            entry = json.loads(self.path(".json").read_text("utf-8"))
            y = np.load(self.path("-y.npy"), allow_pickle=False)
            X: Any = StoredArray(self.path("-X.npy"))
            streamed, choice = _choose_stream(self.source.title, len(X), X.nbytes, options)
            if streamed:
                with suppress(OSError):  # a file system without locks
                    _lock(X, shared=True)  # against remove_outdated, as long as the array is used
            else:
                X = np.load(self.path("-X.npy"), allow_pickle=False)
            trusted = streamed and entry.get("stat") == _stat(self.path("-X.npy"))
            if entry["checksums"] != [entry["checksums"][0] if trusted else _checksum(X), _checksum(y)]:
                raise ValueError("checksum")
            names, skipped = entry["class_names"], tuple(entry.get("skipped", ()))
            part = RawPart(X, y, None if names is None else tuple(names), skipped)
        except FileNotFoundError:
            return None
        except _NoRoomError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with an entry, it is made again
            if tell and all(os.path.exists(self.path(ending)) for ending in (".json", "-X.npy", "-y.npy")):
                _log.warning("the cache entry %s in %s is damaged (%s) and is made again", self.key, self.folder, error)
            return None
        if tell:
            _log.info(choice)
        return part

    def write(self, part: RawPart, checksum: int | None = None) -> None:
        """Write an entry; with a checksum the images are in their place already."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if checksum is None:
            _replace(self.path("-X.npy"), lambda file: np.save(file, part.X, allow_pickle=False))
        names = None if part.class_names is None else list(part.class_names)
        entry: dict[str, Any] = {
            "source": self.source.place,
            "state": self.state,
            "class_names": names,
            "checksums": [_checksum(part.X) if checksum is None else checksum, _checksum(part.y)],
            "stat": _stat(self.path("-X.npy")),
        }
        if part.skipped:
            entry["skipped"] = list(part.skipped)
        _replace(self.path("-y.npy"), lambda file: np.save(file, part.y, allow_pickle=False))
        _replace(self.path(".json"), lambda file: file.write(json.dumps(entry).encode()))

    @contextmanager
    def written(self) -> Iterator[None]:
        """Let one process at a time make the entry; the others wait. What cannot be written is a DataError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.path(".lock"), self.source.title):
                yield
        except OSError as error:
            raise DataError(
                f"the decoded images of {self.source.title} cannot be kept in {str(self.folder)!r} "
                f"({error.strerror or error}): give --cache (cache=) a folder with room that can be written, or use a "
                "smaller --size"
            ) from error

    def store(self, options: ReadOptions, first: FirstImage, count: int, whole: "_Entry") -> None:
        """Decode the source into a file; it becomes the entry ``whole`` where nothing was left out."""
        temporary = self.path("-X.npy.part")
        try:
            writer = _RowWriter(temporary, (count, 3, first.height, first.width))
            with writer:
                y, colour, skipped = _decode(self.source, options, first, count, writer.add)
            if not colour:  # one channel is enough
                coloured = temporary.rename(self.path("-X.npy.colour.part"))
                X = StoredArray(coloured)
                try:
                    with (writer := _RowWriter(temporary, (len(X), 1, *X.shape[2:]))):
                        for chunk in chunks(X):
                            writer.add(chunk[:, :1])
                finally:
                    coloured.unlink(missing_ok=True)
            self.check_source()
            entry = self if skipped else whole
            stored = temporary.replace(entry.path("-X.npy"))
            part = RawPart(StoredArray(stored), y, self.source.class_names(), tuple(skipped))
            entry.write(part, writer.checksum or _checksum(part.X))
        finally:
            temporary.unlink(missing_ok=True)

    def remove_outdated(self) -> None:
        """Remove the entries of earlier states of the source, but those in use, and what killed processes left."""
        for file in [*self.folder.iterdir()] if os.path.isdir(self.folder) else ():
            with suppress(
                OSError, ValueError, TypeError, KeyError, RecursionError
            ):  # no file of ours, or not ours to remove
                if _TEMPORARY.fullmatch(file.name) and time.time() - file.stat().st_mtime > _ABANDONED:
                    file.unlink()
                if not re.fullmatch(r"[0-9a-f]{32}\.json", file.name):
                    continue
                found = json.loads(file.read_text("utf-8"))
                if found["source"] == self.source.place and found["state"] != self.state:
                    replace(self, key=file.stem).remove()

    def remove(self) -> None:
        """Remove the files of the entry unless another process reads from them."""
        with self.path("-X.npy").open("rb") as images:
            if _lock(images, wait=False):
                for ending in (".json", "-y.npy", "-X.npy"):
                    self.path(ending).unlink(missing_ok=True)
                _log.info("removed what was decoded of %s before it changed", self.source.title)

    def check_source(self) -> None:
        """Raise a :class:`DataError` where a file of the source is no longer what it was when its key was made."""
        if _keys(self.source.files, ("",)) != [self.state]:
            raise DataError(f"files of {self.source.title} were changed while they were decoded: start again")


class _RowWriter:
    """Writes images one after the other into an ``.npy``, whose header says at the end how many there are.

    A thread writes those that were added last: they must not be changed before the next are added.
    """

    def __init__(self, path: Path, expected: tuple[int, ...]) -> None:
        self.expected, self.count = expected, 0
        self._file = path.open("wb")
        self._crc = _kind(np.dtype(np.uint8), expected)
        self._pool, self._last = ThreadPoolExecutor(1, thread_name_prefix="l2h-write"), Future[None]()
        self._last.set_result(None)
        free, needed = shutil.disk_usage(path.parent).free, int(np.prod(expected, dtype=np.int64))
        if needed > free:
            self._file.close()
            path.unlink()
            raise OSError(errno.ENOSPC, f"they take {in_bytes(needed)}, and {in_bytes(free)} are free there")
        # What would not stay in memory until it is read must not push out what other programs read from there.
        self._drops = needed > free_memory() // 2 and hasattr(os, "posix_fadvise")
        self._write_header()

    def __enter__(self) -> "_RowWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._file, self._pool:
            if kind is None:
                self._last.result()
                self._file.seek(0)
                self._write_header()
                self._file.flush()
                os.fsync(self._file.fileno())

    def add(self, pixels: Pixels) -> None:
        self._last.result()  # raises what went wrong in the thread
        self._last = self._pool.submit(self._write, np.ascontiguousarray(pixels).data)
        self.count += len(pixels)

    def _write(self, data: memoryview) -> None:
        self._file.write(data)
        self._crc = zlib.crc32(data, self._crc)
        if self._drops:
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    @property
    def checksum(self) -> int | None:
        """That of :func:`_checksum`, which begins with the shape; None where fewer images came than were expected."""
        return self._crc if self.count == self.expected[0] else None

    def _write_header(self) -> None:
        shape = (self.count, *self.expected[1:])  # numpy leaves room for any number of rows
        np.lib.format.write_array_header_1_0(self._file, {"descr": "|u1", "fortran_order": False, "shape": shape})


def _keys(files: Sequence[Path], ways: Sequence[str]) -> list[str]:
    """Return a key of the files, as they are now, for each way to decode them."""
    digests = [hashlib.sha256(f"l2h {FORMAT_VERSION}{way}".encode()) for way in ways]
    for file in files:
        try:
            stat = file.stat()
            identity = f"\0{os.path.abspath(file)}\0{stat.st_size}\0{stat.st_mtime_ns}"
        except OSError:  # told by whoever reads it
            identity = f"\0{os.path.abspath(file)}\0"
        for digest in digests:
            digest.update(identity.encode(errors="surrogateescape"))
    return [digest.hexdigest()[:32] for digest in digests]


def _stat(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _replace(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _kind(dtype: Any, shape: tuple[int, ...]) -> int:
    return zlib.crc32(f"{dtype} {shape}".encode())


def _checksum(array: Array | Rows) -> int:
    found = _kind(array.dtype, tuple(array.shape))
    for chunk in chunks(array):
        found = zlib.crc32(np.ascontiguousarray(chunk).data, found)
    return found


def _lock(file: Any, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file until it is closed; return False where another process has it and ``wait`` is not set."""
    try:
        import fcntl
    except ImportError:  # a system without it
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


@contextmanager
def _locked(path: Path, title: str) -> Iterator[None]:
    while True:
        file = path.open("a")
        if not _lock(file, wait=False):
            _log.info("another process decodes the images of %s: waiting for it", title)
            _lock(file)
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            break
        file.close()  # whoever held it has removed it
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()
