"""Writing files so that a reader never finds half of one, reading strict JSON, and the fingerprint of arrays."""

import hashlib
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from l2h.errors import CheckpointError


def digest(*arrays: npt.NDArray[Any]) -> str:
    """Return a SHA-256 over shape, type and bytes of arrays: it is the same for the same data."""
    out = hashlib.sha256()
    for array in arrays:
        out.update(f"{array.shape}{array.dtype}".encode())
        out.update(np.ascontiguousarray(array).data)
    return out.hexdigest()


def parse_json(text: str | bytes) -> Any:
    """Return what JSON stands for; raise a ``ValueError`` for NaN and infinity, which Python's reader takes."""
    return json.loads(text, parse_constant=_refuse_constant)


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


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
