"""Files written whole and read within bounds, strict JSON, and the ``config.json`` of a run."""

import errno
import io
import json
import math
import os
import stat
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from l2h.errors import CheckpointError, ResumeError, RunError

SCHEMA = 1
#: Of a run folder that version 0.1 cannot read: with several servers or a second opinion. The newest that is read.
NEWER_SCHEMA = 2
CONFIG, METRICS, CHECKPOINTS, PLOTS = "config.json", "metrics.json", "checkpoints", "plots"
#: What the checkpoints of a training, and those of its stand-in client, depend on.
TRAINING, CLIENT_TRAINING = "training.json", "client.json"
#: The longest file of plain values that is read, in bytes.
LONGEST = 64 * 2**20
#: Arrays of so many bytes are unpacked from any file, and of so many times its size from a larger one.
_SMALL_ARRAYS, _PACKED = 64 * 2**20, 100


def parse_json(text: str | bytes) -> Any:
    """Return what JSON stands for; raise a ``ValueError`` for NaN and infinity, which Python's reader takes."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a file; raise an ``OSError`` for a device or a pipe, which may have no end or never answer."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_whole(path: str | Path, most: int = LONGEST) -> bytes:
    """Return the bytes of a regular file; raise an ``OSError`` where there are more than ``most``."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and at most {most} are read", str(path))
        data = file.read(size + 1)
    if len(data) != size:
        raise OSError(errno.EIO, "it changed while it was read", str(path))
    return data


def read_json(path: Path) -> Any:
    """Return what a file of JSON stands for; raise an ``OSError`` or a ``ValueError`` where it cannot be read."""
    return parse_json(read_whole(path))


def read_npy(file: IO[bytes], size: int) -> npt.NDArray[Any]:
    """Return the array of an ``.npy`` of so many bytes, if these are as many as its header declares."""
    _npy_header(file, size)
    file.seek(0)
    array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def read_npy_header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return shape and type of the array of an ``.npy`` whose rows follow each other, and where the first begins."""
    shape, by_columns, dtype = _npy_header(file, size)
    if by_columns or not shape:
        raise ValueError("its rows do not follow each other: write it with numpy.save of an array in C order")
    return shape, dtype, file.tell()


def _npy_header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in headers:
        raise ValueError(f"it is an array of version {version}, which holds no plain numbers")
    shape, by_columns, dtype = headers[version](file)
    held = size - file.tell()
    if dtype.hasobject or not dtype.itemsize or math.prod(shape) * dtype.itemsize != held:
        raise ValueError(f"an array of {held} bytes is declared as {shape} of {dtype}")
    return shape, by_columns, dtype


def require_room(total: int, packed: int, most: int | None = None, hint: str = "") -> None:
    """Raise a ``ValueError`` where arrays of a file take too much: beyond ``most`` bytes, or where that is None both
    64 MiB and a hundred times the file.
    """
    limit = max(_SMALL_ARRAYS, _PACKED * packed) if most is None else most
    if total > limit:
        raise ValueError(f"its arrays take {total} bytes, more than {limit}{hint}")


def read_npz(
    source: Path | bytes, choose: Callable[[list[str]], Iterable[str]] = list, most: int | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Return arrays of an ``.npz`` by name: all, or those that ``choose`` picks from the names.

    What they take is known before any is unpacked: at most ``most`` bytes, or where that is None 64 MiB or a hundred
    times the file, whichever is more. Raises an ``OSError`` or a ``ValueError`` where the file cannot be read.
    """
    with io.BytesIO(source) if isinstance(source, bytes) else open_regular(source) as file:
        packed = file.seek(0, io.SEEK_END)
        try:
            with zipfile.ZipFile(file) as archive:
                entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
                chosen = {name: entries[name] for name in choose(list(entries))}
                total = sum(entry.file_size for entry in chosen.values())
                require_room(total, packed, most, ": write it with numpy.savez" if most is None else "")
                return {name: _read_member(archive, entry) for name, entry in chosen.items()}
        except (OSError, ValueError):
            raise
        except Exception as error:  # zipfile, zlib and Python's parser each have their own for a damaged archive
            raise ValueError(f"it is damaged: {str(error) or repr(error)}") from error


def _read_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> npt.NDArray[Any]:
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{entry.filename} is packed in another way than numpy does it")
    with archive.open(entry) as member:
        return read_npy(member, entry.file_size)


def write_atomically(path: Path, data: bytes, like: os.stat_result | None = None) -> Path:
    """Write ``data`` to ``path`` through a temporary file beside it, flushed to the disk before the move.

    The folder is made when it is missing. The file gets mode and owner of ``like``, or those of a new file. Where it
    cannot be written, a :class:`CheckpointError` says so, and what was at ``path`` before is untouched.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if like is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
                made = os.fstat(file.fileno())
                if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
                    os.fchown(file.fileno(), like.st_uid, like.st_gid)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):  # a parent that is a file
            temporary.unlink(missing_ok=True)
        kept = "the previous one is kept" if path.exists() else "there was none before"
        raise CheckpointError(f"cannot write {path} ({error.strerror or error}); {kept}") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def note_training(folder: Path, description: Mapping[str, Any], *, resume: bool, name: str = TRAINING) -> None:
    """Keep what the checkpoints depend on beside them, and on resume refuse to mix two trainings."""
    path = folder / CHECKPOINTS / name
    if resume and path.exists():
        require_same(_read_object(path), description, folder)
    write_json(path, description)


def read_config(folder: Path) -> dict[str, Any]:
    """Return ``config.json`` of a run; refuse one that is missing, damaged, or of a newer schema."""
    path = folder / CONFIG
    try:
        values = _read_object(path)
    except FileNotFoundError:
        raise RunError(f"{folder} holds no run: {CONFIG} is missing") from None
    schema = values.get("schema")
    if not isinstance(schema, int) or schema > NEWER_SCHEMA:
        raise RunError(f"{path} has schema {schema!r}; this version reads up to {NEWER_SCHEMA}: update l2h")
    return values


def holds_run(folder: Path) -> bool:
    """Return whether ``config.json`` is one of ours: many other programs have a file of that name."""
    try:
        config = read_json(folder / CONFIG)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "schema" in config and bool({"training", "system", "router"} & {*config})


def write_json(path: Path, values: Mapping[str, Any], rows: Mapping[str, Iterable[Any]] | None = None) -> None:
    """Write plain values as JSON, atomically; NaN is refused, since JSON has none.

    Lists in ``rows`` are written after the values, with each item on one line.
    """
    text = json.dumps(values, indent=2, allow_nan=False)
    for name, items in (rows or {}).items():
        lines = ",\n    ".join(json.dumps(item, allow_nan=False) for item in items)
        text = f"{text[:-2]},\n  {json.dumps(name)}: [\n    {lines}\n  ]\n}}"
    write_atomically(path, (text + "\n").encode())


def require_same(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Refuse to resume with other settings; the message names those that differ, with both values."""
    differing = differences(before, json.loads(json.dumps(dict(now))), "")
    if differing:
        raise ResumeError(f"cannot resume {folder}: settings differ: {'; '.join(differing)}")


def differences(before: Mapping[str, Any], now: Mapping[str, Any], under: str = "") -> list[str]:
    """What differs between two sets of plain values, by dotted name with both values."""
    out = []
    for key in sorted({*before, *now}):
        a, b = before.get(key), now.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            out += differences(a, b, f"{under}{key}.")
        elif a != b:
            out.append(f"{under}{key} was {a!r}, is {b!r}")
    return out


def _read_object(path: Path) -> dict[str, Any]:
    try:
        values = read_json(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not isinstance(values, dict):
        raise RunError(f"{path} is damaged: expected an object")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
