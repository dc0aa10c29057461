"""The run folder: ``config.json``, ``metrics.json``, ``history.csv``, ``checkpoints/``, ``plots/``, ``report.html``."""

import csv
import io
import itertools
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.errors import ResumeError, RunError
from l2h.files import (
    CHECKPOINTS,
    CLIENT_TRAINING,
    CONFIG,
    METRICS,
    PLOTS,
    SCHEMA,
    TRAINING,
    differences,
    holds_run,
    read_config,
    read_npz,
    require_same,
    write_atomically,
    write_json,
)
from l2h.remote.cache import FILE as ANSWERS
from l2h.settings import Settings
from l2h.training import Context, Progress, pick_device
from l2h.training.checkpoint import Checkpoints

__all__ = ["CHECKPOINTS", "CONFIG", "METRICS", "PLOTS", "SCHEMA", "differences", "read_config", "write_json"]

HISTORY = "history.csv"
#: Of training on two hosts: what one side published, what the other fetched, and how the link did.
SNAPSHOTS, ARRIVALS, LINK = "snapshots", "arrivals", "link.json"


@dataclass(frozen=True)
class RunTarget:
    """Where a training goes, and what happens to a run that is there already."""

    folder: Path
    force: bool = False  # remove the run that is there
    resume: bool = False  # go on with it
    checkpoint_every: int = 1  # epochs between two checkpoints

    def require_usable(self) -> None:
        """Raise a :class:`RunError` where no training can go into the folder, or on in it; nothing is changed."""
        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{folder} is a file: choose a folder")
        if self.resume:
            if not (folder / CONFIG).exists():
                raise ResumeError(f"nothing to resume in {folder}: start without --resume")
        elif self._holds_another():
            if not holds_run(folder):
                raise RunError(f"{folder} is not empty and holds no run: choose another folder")
            if not self.force:
                raise RunError(f"{folder} already holds a run: --resume goes on with it, --force replaces it")

    def prepare(self, training: Mapping[str, Any]) -> None:
        """Make the folder ready for a training, whose plain values ``config.json`` holds; resume compares them."""
        self.require_usable()
        folder = self.folder
        if self.resume:
            before = read_config(folder)
            place = {"cache": training.get("cache")}  # where images are kept does not change what is trained
            require_same(before.get("training", {}) | place, {**training, **place}, folder)
            if "system" in before:
                raise ResumeError(
                    f"the run in {folder} is finished: l2h evaluate {folder} evaluates it, --force starts anew"
                )
            return
        if self._holds_another():
            # A new training must not begin with the snapshots that the old one published or fetched.
            files, folders = (CONFIG, METRICS, HISTORY, LINK, "report.html"), (CHECKPOINTS, PLOTS, SNAPSHOTS, ARRIVALS)
            _remove(folder, (*files, *folders, "tensorboard"))
        write_json(folder / CONFIG, {"schema": SCHEMA, "training": dict(training)})

    def _holds_another(self) -> bool:
        return self.folder.exists() and any(self.folder.iterdir()) and not _never_began(self.folder)

    def context(self, settings: Settings, progress: Progress, history_file: Path | None = None) -> Context:
        """Return what the stages of the training share, with checkpoints in the folder."""
        checkpoints = Checkpoints(self.folder / CHECKPOINTS, self.resume, self.checkpoint_every)
        return Context(settings, pick_device(settings.device), checkpoints, progress, history_file=history_file)


def require_empty(folder: Path, *, force: bool) -> None:
    """Raise :class:`RunError` where results cannot go into a folder: it is a file, or not empty and not forced."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose a folder")
    if folder.exists() and any(folder.iterdir()) and not force:
        raise RunError(f"{folder} is not empty: --force replaces what is in it")


def prepare_study(folder: Path, kind: str, study: Mapping[str, Any], files: Sequence[str], *, force: bool) -> None:
    """Make a folder ready for a study of a kind, which ``config.json`` holds; ``force`` removes the study's files."""
    what = "comparison" if kind == "several" else kind
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose a folder with --out")
    if (folder / CONFIG).exists():
        config = read_config(folder)
        if kind not in config:
            raise RunError(f"{folder} holds something else, not a {what}: choose another folder with --out")
        differing = differences(config[kind], study)
        if force:
            _remove(folder, files)
        elif differing:
            raise RunError(f"{folder} holds another {what} ({'; '.join(differing)}): --force replaces it")
    elif folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty and holds no {what}: choose another folder with --out")
    write_json(folder / CONFIG, {"schema": SCHEMA, kind: dict(study)})


@contextmanager
def kept_alone(folder: Path) -> Iterator[None]:
    """Keep a folder to this process for the time of the block; raise a :class:`RunError` where another one has it.

    What a killed process had is free again. Where a system or a disk has no locks, nobody is kept out.
    """
    descriptor = None
    try:
        import fcntl

        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)  # type: ignore[arg-type]
        raise RunError(
            f"another command works in {folder}: wait for it, or choose another folder with --out"
        ) from error
    except (ModuleNotFoundError, OSError):  # where the folder itself cannot be, whoever uses it says why
        pass
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def write_arrays(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays and plain values as one ``.npz`` without pickles, atomically."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, meta=np.array(json.dumps(meta)), **arrays)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


@contextmanager
def read_arrays(path: Path, then: str) -> Iterator[tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]]:
    """Give the plain values and the arrays of :func:`write_arrays`."""
    try:
        arrays = read_npz(path)
        yield json.loads(str(arrays.pop("meta"))), arrays
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged: {error}; remove it, and {then}") from error


def columns_of(path: Path) -> tuple[str, ...]:
    """Return the columns of a CSV file."""
    try:
        with path.open(newline="") as file:
            return tuple(next(csv.reader(file), ()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def read_rows(
    path: Path, fields: Sequence[str], what: str, numbers: Iterable[str] = (), optional: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the rows of a CSV file with these columns; raise a :class:`RunError` for any other.

    The columns ``numbers`` become floats, of these the ``optional`` ones None where they are empty.
    """
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != tuple(fields):
                raise RunError(f"{path} has other columns than {what}: name another file")
            rows: list[dict[str, Any]] = list(reader)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    for name, (line, row) in itertools.product(numbers, enumerate(rows, start=2)):
        try:
            row[name] = None if row[name] == "" and name in optional else float(row[name])
        except (TypeError, ValueError) as error:
            raise RunError(f"{path}, line {line}: {name} is {row[name]!r}, no number") from error
    return rows


def append_rows(path: Path, fields: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows at the end of a CSV file with these columns, which is made where it is missing; all or none."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    if not path.exists():
        writer.writeheader()
    writer.writerows(rows)
    before = path.read_bytes() if path.exists() else b""
    write_atomically(path, before + text.getvalue().encode())


def _remove(folder: Path, names: Iterable[str]) -> None:
    for path in (folder / name for name in names):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _never_began(folder: Path) -> bool:
    """Return whether a run failed before its first epoch: nothing is lost by starting over, since answers stay."""
    left = {path.name for path in folder.rglob("*") if path.is_file()}
    return holds_run(folder) and left <= {CONFIG, TRAINING, CLIENT_TRAINING, ANSWERS}
