"""Inputs without labels: a file of arrays, an image, or the test part of a data set."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.data.images import SUFFIXES, decode_images
from l2h.data.load import load_dataset
from l2h.data.reading import whole_file
from l2h.errors import DataError


def read_inputs(source: str, input_shape: Sequence[int]) -> npt.NDArray[Any]:
    """Read inputs for a model.

    Args:
        source: a ``.npy``, an ``.npz``, an image, or what :func:`l2h.load_dataset` takes.
        input_shape: of one input of the model. A grey image for a model of colour images gets three equal channels, as
            in training; beyond that the inputs are not compared with it.

    Raises:
        DataError: the source is none of these, or damaged.
    """
    path = Path(source).expanduser()
    if path.suffix.lower() in SUFFIXES and path.is_file():
        pixels = decode_images([path], lambda _: str(path), workers=1)
        in_colour = len(input_shape) == 3 and input_shape[0] == 3
        return np.repeat(pixels, 3, axis=1) if in_colour and pixels.shape[1] == 1 else pixels
    if path.suffix not in (".npy", ".npz") or not path.is_file():
        return load_dataset(source).X_test
    with whole_file(path, "file of plain arrays"):
        loaded = np.load(path, allow_pickle=False)
        if path.suffix == ".npy":
            return loaded  # type: ignore[no-any-return]
        with loaded:
            names = [name for name in ("X_test", "X", "X_train") if name in loaded.files] or loaded.files
            if not names or (names == loaded.files and len(names) > 1):
                raise DataError(f"{source} holds {', '.join(loaded.files) or 'nothing'}: name the inputs X or X_test")
            return loaded[names[0]]  # type: ignore[no-any-return]
