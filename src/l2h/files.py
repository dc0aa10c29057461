"""Writing files so that a reader never finds half of one, and the fingerprint of arrays."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any
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


def write_atomically(path: Path, data: bytes, like: os.stat_result | None = None) -> Path:
    """Write ``data`` to ``path`` through a temporary file beside it, flushed to the disk before the move.

    Args:
        path: the file; its folder is made when it is missing.
        data: the whole content.
        like: the file whose mode and owner it gets; None for those of a new file.

    Raises:
        CheckpointError: it could not be written; what was at ``path`` before is untouched.
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
