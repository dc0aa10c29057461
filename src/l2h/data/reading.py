"""What the reader of every format takes and gives back, and the checks that the readers share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from l2h.columns import Columns
from l2h.data.dataset import Array
from l2h.errors import DataError, in_one_line, missing_extra, reason
from l2h.labels import LabelCodec
from l2h.rows import Rows


@dataclass(frozen=True)
class RawPart:
    """One labelled part as a file holds it, not checked yet. ``class_names`` is None where the file has none."""

    X: Array | Rows
    y: Array
    class_names: tuple[str, ...] | None = None
    skipped: tuple[str, ...] = ()  # what was damaged and left out, and why


@dataclass(frozen=True)
class RawDataset:
    """What a source holds. ``test`` is None where it must be split off."""

    name: str
    train: RawPart
    test: RawPart | None = None

    @classmethod
    def read(cls, name: str, train: Path, test: Path | None, read: Callable[[Path], RawPart]) -> RawDataset:
        """Read the train file or folder and, where one is given, the test file or folder."""
        return cls(name, read(train), None if test is None else read(existing(test)))


@dataclass(frozen=True)
class ReadOptions:
    """How a source is read."""

    cache: Path | None = None  # where decoded images are kept; None: nowhere
    workers: int = 1  # how many threads or processes decode them
    target: str | None = None  # the column of a table that holds the labels
    columns: Columns | None = None  # those of a training, by which a table is encoded; None: its own
    size: int | None = None  # what images are brought to; None: they are of one size
    labels: LabelCodec | None = None  # those of a training, by which labels are read; None: the table's own
    stream: bool | None = None  # whether images are read from disk while they are used; None: where memory is short
    on_error: str = "stop"  # what is done about an image or a file of many that is damaged: stop, or skip it
    progress: Callable[[int, int], None] | None = None  # told how many of how many images are decoded


@contextmanager
def whole_file(path: Path, kind: str) -> Iterator[None]:
    """Turn what a library raises on a damaged file into a :class:`DataError` that names the file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # damaged bytes make numpy, scipy, pyarrow, tarfile and pickle raise almost anything
        raise DataError(f"{str(path)!r} is not a whole {kind}: {reason(error)}") from error


def is_file_or_lost(path: Path) -> bool:
    """Return whether this is a file, or a link to one that is gone: that is told where the file is read."""
    return path.is_file() or (path.is_symlink() and not path.exists())


def existing(path: Path) -> Path:
    """Return the path of a file or folder; raise a :class:`DataError` where it does not exist."""
    if not path.exists():
        raise DataError(f"there is no file or folder {str(path)!r}: check the path")
    return path


def beside(train: Path, name: str) -> Path:
    """Return the test file of this name beside a train file; raise a :class:`DataError` where it does not exist."""
    test = train.with_name(name)
    if not test.exists():
        raise DataError(f"{str(train)!r} has no {name} beside it: give test=, or rename it to have it split")
    return test


def refuse_test(test: Path | None, source: str) -> None:
    """Raise a :class:`DataError` where ``test=`` is given for a source that has its own test part."""
    if test is not None:
        raise DataError(f"test={str(test)!r} was given, but {source} has its own test part: leave test= out")


def same_parts(path: Path) -> DataError:
    """Return the error for a file or folder that was given for both parts."""
    return DataError(f"{in_one_line(str(path))!r} is in the train part and in the test part: name it for one of them")


def without_train(stem: str) -> str:
    """Return the name of a dataset from the name of its train file: ``cifar10-train`` is ``cifar10``."""
    return stem.removesuffix("-train").removesuffix("_train") or stem


def need(module: str, package: str, for_what: str) -> ModuleType:
    """Import a module that only some formats need; raise a :class:`MissingExtraError` where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing_extra(f"{for_what} needs the package {package!r}", "train") from error
