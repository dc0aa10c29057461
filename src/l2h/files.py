"""Files and data: written so that a reader never finds half of one, and told apart by their bytes."""

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
    """SHA-256 over shape, type and bytes of arrays: the same for the same data."""
    out = hashlib.sha256()
    for array in arrays:
        out.update(f"{array.shape}{array.dtype}".encode())
        out.update(np.ascontiguousarray(array).data)
    return out.hexdigest()


def write_atomically(path: Path, data: bytes, like: os.stat_result | None = None) -> Path:
    """Write ``data`` to ``path`` through a temporary file beside it, flushed to the disk before the move.

    Args:
        path: of the file.
        data: all of it.
        like: whose mode and owner it gets; None for a new file's.

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
