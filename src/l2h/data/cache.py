"""Decoded images kept on disk, so that a file is decoded once.

An entry is three files: ``KEY-X.npy``, ``KEY-y.npy`` and, written last, ``KEY.json`` with the class names and the
checksums of the arrays. Each appears whole or not at all; an entry that does not match its checksums is rebuilt.
"""

import hashlib
import json
import logging
import os
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from l2h.data.reading import RawPart
from l2h.data.validate import Array

#: Raise it when the same file would be decoded into other arrays.
FORMAT_VERSION = 1

_log = logging.getLogger("l2h.data")


def cache_folder(cache: str | Path | bool) -> Path | None:
    """Return where decoded images are kept: ``True`` is ``$L2H_CACHE`` or ``~/.cache/l2h``, ``False`` is nowhere."""
    if cache is False:
        return None
    if cache is True:
        return Path(os.environ.get("L2H_CACHE") or Path.home() / ".cache" / "l2h")
    return Path(cache)


def cached(files: Sequence[Path], build: Callable[[], RawPart], folder: Path | None) -> RawPart:
    """Return what ``build`` makes of these files, from the cache where they have not changed since.

    A cache folder that cannot be written is reported in the log, and the part is returned all the same.
    """
    if folder is None:
        return build()
    key = _key(files)
    part = _read(folder, key)
    if part is None:
        part = build()
        try:
            _write(folder, key, part)
        except OSError as error:
            _log.warning("decoded images are not cached in %s: %s; set L2H_CACHE", folder, error)
    return part


def _key(files: Sequence[Path]) -> str:
    digest = hashlib.sha256(f"l2h {FORMAT_VERSION}".encode())
    for file in files:
        stat = file.stat()
        identity = f"\0{os.path.abspath(file)}\0{stat.st_size}\0{stat.st_mtime_ns}"
        digest.update(identity.encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def _read(folder: Path, key: str) -> RawPart | None:
    try:
        entry = json.loads((folder / f"{key}.json").read_text("utf-8"))
        X, y = (np.load(folder / f"{key}-{array}.npy", allow_pickle=False) for array in "Xy")
        if entry["checksums"] != [_checksum(X), _checksum(y)]:
            raise ValueError("checksum")
        names = entry["class_names"]
        return RawPart(X, y, None if names is None else tuple(names))
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - whatever is wrong with an entry, it is made again
        _log.warning("the cache entry %s in %s is damaged (%s) and is made again", key, folder, error)
        return None


def _write(folder: Path, key: str, part: RawPart) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = None if part.class_names is None else list(part.class_names)
    entry = {"class_names": names, "checksums": [_checksum(part.X), _checksum(part.y)]}
    _replace(folder / f"{key}-X.npy", lambda file: np.save(file, part.X, allow_pickle=False))
    _replace(folder / f"{key}-y.npy", lambda file: np.save(file, part.y, allow_pickle=False))
    _replace(folder / f"{key}.json", lambda file: file.write(json.dumps(entry).encode()))


def _replace(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _checksum(array: Array) -> int:
    kind = zlib.crc32(f"{array.dtype} {array.shape}".encode())
    return zlib.crc32(np.ascontiguousarray(array).data, kind)
