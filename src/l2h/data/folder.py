"""A folder of images: ``train/CLASS/*.png`` and ``test/CLASS/*.png``, or ``CLASS/*.png`` to be split."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from l2h.data.decoded import EncodedImages, ImageSource, read_part
from l2h.data.images import SUFFIXES
from l2h.data.reading import RawDataset, RawPart, ReadOptions, is_file_or_lost, same_parts
from l2h.errors import DataError, in_one_line


def matches(path: Path) -> bool:
    """Return whether this is a folder with folders in it."""
    return path.is_dir() and bool(_folders(path))


def read(path: Path, test: Path | None, options: ReadOptions) -> RawDataset:
    """Read the images of a folder; classes are the names of their folders, in sorted order.

    ``path`` holds ``train/CLASS`` and ``test/CLASS``, or ``CLASS``; files that are not images are skipped. ``test``
    holds ``CLASS``, where it is not ``path/test``.
    """
    path = path.resolve()
    train = path / "train" if (path / "train").is_dir() else path
    if test is None and train != path:
        test = path / "test"
        if not test.is_dir():
            raise DataError(
                f"{str(path)!r} has train/ but no test/: give test=, or give {str(train)!r} to have it split"
            )
    if test is not None and test.resolve() == train:
        raise same_parts(train)
    names = tuple(folder.name for folder in _folders(train))
    return RawDataset.read(path.name, train, test, lambda root: _read_folder(root, names, options))


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _read_folder(root: Path, names: tuple[str, ...], options: ReadOptions) -> RawPart:
    files, labels = [], []
    if not root.is_dir() or not _folders(root):
        raise DataError(f"{str(root)!r} holds no folder for each class: images go into {root.name}/CLASS/")
    for folder in _folders(root):
        if folder.name not in names:
            raise DataError(f"{str(folder)!r} is a class that the train part does not have: it has {', '.join(names)}")
        images = sorted(
            file
            for file in folder.iterdir()
            if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and is_file_or_lost(file)
        )
        if not images:
            raise DataError(f"{str(folder)!r} holds no image: files end in {', '.join(SUFFIXES)}")
        files += images
        labels += [names.index(folder.name)] * len(images)

    y = np.array(labels, np.int64)

    def pieces(rows: int) -> Iterator[EncodedImages]:
        for start in range(0, len(files), rows):
            part = files[start : start + rows]
            yield EncodedImages(part, y[start : start + rows], lambda i, part=part: in_one_line(str(part[i])))  # type: ignore[misc]

    return read_part(
        ImageSource(in_one_line(root.name), str(root), files, lambda: len(files), pieces, lambda: names), options
    )
