"""Data in one file or in many: which files make up the train part and the test part."""

import glob
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from l2h.data.decoded import ImageSource, read_part
from l2h.data.reading import RawDataset, ReadOptions, beside, existing, is_file_or_lost, same_parts, without_train
from l2h.errors import DataError, in_one_line

#: What the files or the folder of a test part are called, the first that there is.
_TEST = ("test", "validation", "val")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_PATTERN = re.compile(r"[*?\[]|\{\d+\.\.\d+\}")


@dataclass(frozen=True)
class Shards:
    """The files of a part, in order."""

    files: list[Path]
    place: str  # what the user named them by

    @property
    def title(self) -> str:
        """What messages call them."""
        first = in_one_line(self.files[0].name)
        return first if len(self.files) == 1 else f"{first} and {len(self.files) - 1} more"


@dataclass(frozen=True)
class ShardedParts:
    """The files of each part; ``test`` is None where it must be split off."""

    name: str
    train: Shards
    test: Shards | None


def holds_shards(path: Path, suffix: str) -> bool:
    """Return whether this is a file of the suffix, a pattern of such files, or a folder of them.

    A folder with further folders holds them only in its folder ``train``, which has none: an archive beside a folder
    for each class is what these came from.
    """
    if not path.is_dir():
        return path.suffix == suffix
    folder = path / "train" if (path / "train").is_dir() else path
    return bool(_files(folder, suffix)) and not any(
        entry.is_dir() for entry in folder.iterdir() if entry.name[0] != "."
    )


def read_shards(
    path: Path, test: Path | None, suffix: str, options: ReadOptions, source: Callable[[Shards], ImageSource]
) -> RawDataset:
    """Read the images of both parts, as :func:`find_parts` finds them; ``source`` says how the files hold them."""
    parts = find_parts(path, test, suffix)
    train = read_part(source(parts.train), options)
    return RawDataset(parts.name, train, None if parts.test is None else read_part(source(parts.test), options))


def find_parts(path: Path, test: Path | None, suffix: str) -> ShardedParts:
    """Return the files of both parts.

    ``path`` is a file, where ``X-train`` goes with ``X-test`` beside it; a pattern (``train-*.tar``,
    ``train-{000..011}.tar``), which has no test part but that of ``test``; or a folder of ``train-*`` and ``test-*``
    (or ``validation-*``), of ``train/`` and ``test/``, or of files with other names, of which a test part is split off.
    """
    if path.is_dir():
        name, train = path.resolve().name, _files(path, suffix, "train")
        if (path / "train").is_dir():
            train = _files(path / "train", suffix)
            own = next((path / part for part in _TEST if (path / part).is_dir()), None)
            tests = None if own is None else _files(own, suffix)
        else:
            tests = next((found for part in _TEST if (found := _files(path, suffix, part))), None)
        if train and not tests and test is None:
            raise DataError(
                f"{str(path)!r} has train{suffix} files but none of test: give test= (--test), or the files as "
                f"{str(path / f'*{suffix}')!r} to have them split"
            )
        if not train:
            train, tests = _files(path, suffix), None
    else:
        train, tests = _expand(path), None
        single = len(train) == 1 and train[0] == path
        name = without_train(path.stem if single else _PATTERN.split(path.name)[0].rstrip("-_."))
        if name in ("", "train"):
            name = path.resolve().parent.name
        if single and test is None and path.stem.endswith("-train"):
            tests = [beside(path, path.stem.removesuffix("-train") + "-test" + suffix)]
    if test is not None:
        tests = _files(test, suffix) if test.is_dir() else _expand(test)
        if not tests:
            raise DataError(f"{str(test)!r} holds no file that ends in {suffix}")
    both = {os.path.realpath(file) for file in train} & {os.path.realpath(file) for file in tests or ()}
    if both:
        raise same_parts(Path(min(both)))
    named = Shards(train, f"train part of {os.path.abspath(path)}")
    return ShardedParts(
        name, named, None if tests is None else Shards(tests, f"test part of {os.path.abspath(test or path)}")
    )


def _files(folder: Path, suffix: str, start: str = "") -> list[Path]:
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix == suffix and file.name.startswith(start) and file.name[0] != "." and is_file_or_lost(file)
    )


def _expand(path: Path) -> list[Path]:
    """Return the files of a pattern, or the one file of a path."""
    if path.exists() or not _PATTERN.search(str(path)):
        return [existing(path)]
    span = _RANGE.search(str(path))
    if span is not None:
        first, last = span.groups()
        numbers = (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
        found = (Path(str(path)[: span.start()] + number + str(path)[span.end() :]) for number in numbers)
        files = [file for pattern in found for file in _expand(pattern)]
    else:
        files = sorted(map(Path, glob.glob(str(path))))
    if not files:
        raise DataError(f"no file matches {str(path)!r}: check the path")
    return files
