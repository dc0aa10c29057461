"""Files that a reader never finds half of, strict JSON, the ``config.json`` of a run, and the fingerprint of arrays."""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from l2h.errors import CheckpointError, ResumeError, RunError

SCHEMA = 1
CONFIG, CHECKPOINTS = "config.json", "checkpoints"


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


def note_training(folder: Path, description: Mapping[str, Any], *, resume: bool) -> None:
    """Keep what the checkpoints depend on beside them, and on resume refuse to mix two trainings."""
    path = folder / CHECKPOINTS / "training.json"
    if resume and path.exists():
        require_same(json.loads(path.read_text()), description, folder)
    write_json(path, description)


def read_config(folder: Path) -> dict[str, Any]:
    """Return ``config.json`` of a run; refuse one that is missing, damaged, or of a newer schema."""
    path = folder / CONFIG
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise RunError(f"{folder} holds no run: {CONFIG} is missing") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not isinstance(values, dict):
        raise RunError(f"{path} is damaged: expected an object")
    schema = values.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise RunError(f"{path} has schema {schema!r}; this version reads up to {SCHEMA}: update l2h")
    return values


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write plain values as JSON, atomically; NaN is refused, since JSON has none."""
    write_atomically(path, (json.dumps(values, indent=2, allow_nan=False) + "\n").encode())


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


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
