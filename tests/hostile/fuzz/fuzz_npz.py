"""Files of arrays: any ``.npz`` or ``.npy`` is a data set or a :class:`DataError`, in bounded memory.

An input is a whole ``.npz`` where it begins as one, and else the ``.npy`` of the samples in one.
"""

from __future__ import annotations

import io
import zipfile
from contextlib import suppress

import numpy as np
from fuzzing import at_most, scratch

import l2h
from l2h.data.load import read_inputs
from l2h.errors import DataError

__all__ = ["check"]

#: What a reader may hold of a small file: the largest arrays that it unpacks, and the same in other types.
MOST = 6 * 64 * 2**20
FOLDER = scratch()


def check(data: bytes) -> None:
    packed, plain = FOLDER / "data.npz", FOLDER / "data.npy"
    plain.write_bytes(data)
    packed.write_bytes(data if data.startswith(b"PK") else archive(data))
    with at_most(64 * len(data) + MOST):
        with suppress(DataError):
            found = l2h.load_dataset(packed, cache=False)
            assert len(found.X_train) == len(found.y_train)
            assert found.y_train.max() < len(found.class_names)
        for path in (packed, plain):
            with suppress(DataError):
                assert isinstance(read_inputs(str(path), (1,)), np.ndarray)


def archive(samples: bytes) -> bytes:
    """An archive of these samples, with labels that fit five of them."""
    out, labels = io.BytesIO(), io.BytesIO()
    np.save(labels, np.array([0, 1, 0, 1, 0]))
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("X.npy", samples)
        file.writestr("y.npy", samples if samples[-1:] == b"y" else labels.getvalue())
    return out.getvalue()
