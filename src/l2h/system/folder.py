"""The part of a run folder that a saved system owns: ``config.json`` and ``checkpoints/``."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from l2h.errors import ResumeError, RunError
from l2h.files import write_atomically

SCHEMA = 1
CONFIG, CHECKPOINTS = "config.json", "checkpoints"


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


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.json`` atomically."""
    write_json(folder / CONFIG, config)


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
