"""The run folder: ``config.json``, ``metrics.json``, ``history.csv``, ``checkpoints/``, ``plots/``, ``report.html``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from l2h.errors import ResumeError, RunError

SCHEMA = 1
CONFIG, METRICS, HISTORY, CHECKPOINTS, PLOTS = "config.json", "metrics.json", "history.csv", "checkpoints", "plots"
#: Of the two programs of setting IA: what one published, what the other fetched, and how the link did.
SNAPSHOTS, ARRIVALS, LINK = "snapshots", "arrivals", "link.json"


def prepare_run(folder: Path, training: Mapping[str, Any], *, force: bool = False, resume: bool = False) -> None:
    """Make the folder ready for a training with these settings.

    Args:
        folder: the run.
        training: plain values; kept under ``"training"`` in ``config.json`` and compared on resume.
        force: remove the run that is there.
        resume: go on with it.

    Raises:
        RunError: a run is there and neither ``force`` nor ``resume`` is given, or the folder holds something else.
        ResumeError: there is nothing to resume, or its settings differ; the message names them.
    """
    config = folder / CONFIG
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose a folder")
    if resume:
        if not config.exists():
            raise ResumeError(f"nothing to resume in {folder}: start without --resume")
        before = read_config(folder)
        require_same(before.get("training", {}), training, folder)
        if "system" in before:
            raise ResumeError(f"the run in {folder} is finished: l2h evaluate {folder} judges it, --force starts anew")
        return
    if folder.exists() and any(folder.iterdir()) and not _never_began(folder):
        if not _holds_run(folder):
            raise RunError(f"{folder} is not empty and holds no run: choose another folder")
        if not force:
            raise RunError(f"{folder} already holds a run: --resume goes on with it, --force replaces it")
        for name in (CONFIG, METRICS, HISTORY, LINK, "report.html"):
            (folder / name).unlink(missing_ok=True)
        # A new training must not begin with the snapshots that the old one published or fetched.
        for name in (CHECKPOINTS, PLOTS, SNAPSHOTS, ARRIVALS, "tensorboard"):
            shutil.rmtree(folder / name, ignore_errors=True)
    write_config(folder, {"schema": SCHEMA, "training": dict(training)})


def _never_began(folder: Path) -> bool:
    """True for a run that failed before its first epoch: nothing is lost by starting over."""
    left = {path.name for path in folder.rglob("*") if path.is_file()}
    return _holds_run(folder) and left <= {CONFIG, "training.json"}


def note_training(folder: Path, description: Mapping[str, Any], *, resume: bool) -> None:
    """Keep what the checkpoints depend on beside them, and on resume refuse to mix two trainings.

    Raises:
        ResumeError: the checkpoints are of another training; the message names what differs.
    """
    path = folder / CHECKPOINTS / "training.json"
    if resume and path.exists():
        require_same(json.loads(path.read_text()), description, folder)
    write_json(path, description)


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a run.

    Raises:
        RunError: it is missing, damaged, or of a newer schema.
    """
    return _read(folder, CONFIG)


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.json`` atomically."""
    write_json(folder / CONFIG, config)


def read_metrics(folder: Path) -> dict[str, Any]:
    """``metrics.json`` of a run; raises as :func:`read_config`."""
    return _read(folder, METRICS)


def write_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Write ``metrics.json`` atomically."""
    write_json(folder / METRICS, metrics)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write plain values as JSON, atomically; NaN is refused, since JSON has none."""
    from l2h.files import write_atomically

    write_atomically(path, (json.dumps(values, indent=2, allow_nan=False) + "\n").encode())


def _holds_run(folder: Path) -> bool:
    """Whether ``config.json`` is one of ours: many other programs have a file of that name."""
    try:
        config = json.loads((folder / CONFIG).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "schema" in config and ("training" in config or "system" in config)


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise RunError(f"{folder} holds no run: {name} is missing") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not isinstance(values, dict):
        raise RunError(f"{path} is damaged: expected an object")
    schema = values.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise RunError(f"{path} has schema {schema!r}; this version reads up to {SCHEMA}: update l2h")
    return values


def require_same(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Refuse to resume with other settings.

    Raises:
        ResumeError: some differ; the message names them with both values.
    """
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
