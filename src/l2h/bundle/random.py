"""Random inputs for a model of which only the input's shape and type are known, to measure with."""

from typing import Any

import numpy as np
import numpy.typing as npt


def random_inputs(shape: tuple[int, ...], dtype: str, n: int) -> npt.NDArray[Any]:
    """Return n inputs, the same ones on every call: pixels for uint8, else normal numbers."""
    rng = np.random.default_rng(0)
    if dtype == "uint8":
        return rng.integers(0, 256, (n, *shape), dtype=np.uint8)
    return rng.normal(size=(n, *shape)).astype(dtype)
