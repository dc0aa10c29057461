"""Files and data: written so that a reader never finds half of one, and told apart by their bytes."""

from __future__ import annotations

import hashlib
import os
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


def write_atomically(path: Path, data: bytes) -> Path:
    """Write ``data`` to ``path`` through a temporary file beside it, flushed to the disk before the move.

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
