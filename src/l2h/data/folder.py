"""A folder of images: ``train/CLASS/*.png`` and ``test/CLASS/*.png``, or ``CLASS/*.png`` to be split."""

import logging
from pathlib import Path

import numpy as np

from l2h.data.images import SUFFIXES, cached, decode_images
from l2h.data.reading import RawDataset, RawPart, ReadOptions
from l2h.errors import DataError

_log = logging.getLogger("l2h.data")


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
            if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
        )
        if not images:
            raise DataError(f"{str(folder)!r} holds no image: files end in {', '.join(SUFFIXES)}")
        files += images
        labels += [names.index(folder.name)] * len(images)

    def decode() -> RawPart:
        _log.info("decoding %d images of %s", len(files), root.name)
        X = decode_images(files, lambda i: str(files[i]), options.workers, options.size)
        return RawPart(X, np.array(labels, np.int64), names)

    return cached(files, decode, options.cache, options.size)
