"""What the reader of a format gives back, and what it is given."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from l2h.data.validate import Array, Labels
from l2h.errors import DataError, MissingExtraError


@dataclass(frozen=True)
class Part:
    """One labelled part as a file holds it. ``class_names`` is ``None`` where the file names none."""

    X: Array
    y: Labels
    class_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Parts:
    """What a source holds. ``test`` is ``None`` where it must be split off."""

    name: str
    train: Part
    test: Part | None = None


@dataclass(frozen=True)
class Reading:
    """How to read: where decoded images are kept (``None``: nowhere), and how many threads decode them."""

    cache: Path | None = None
    workers: int = 1


def need(module: str, package: str, for_what: str) -> ModuleType:
    """A module that only some formats need.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        fix = "pip install 'l2h[train]'"
        raise MissingExtraError(f"{for_what} needs the package {package!r}: {fix}") from error


def refuse_test(test: Path | None, source: str) -> None:
    """Raise a :class:`DataError` where ``test=`` is given for a source that has its own test part."""
    if test is not None:
        raise DataError(f"test={str(test)!r} was given, but {source} has its own test part: leave test= out")


def existing(path: Path) -> Path:
    """The path of a file or folder that is there.

    Raises:
        DataError: it is not.
    """
    if not path.exists():
        raise DataError(f"there is no file or folder {str(path)!r}: check the path")
    return path


def drop_train(stem: str) -> str:
    """The name of a dataset from the name of its train file: ``cifar10-train`` is ``cifar10``."""
    return stem.removesuffix("-train").removesuffix("_train") or stem
