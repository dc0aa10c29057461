"""Inputs without labels, from files of every kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from l2h.data.load import read_inputs
from l2h.errors import DataError

X = np.random.default_rng(0).integers(0, 256, (11, 1, 8, 8), dtype=np.uint8)
SHAPE = (1, 8, 8)


def test_inputs_of_every_kind(tmp_path: Path) -> None:
    np.savez(tmp_path / "four.npz", X_train=X[:9], y_train=np.zeros(9), X_test=X[9:], y_test=np.zeros(2))
    assert np.array_equal(read_inputs(str(tmp_path / "four.npz"), SHAPE), X[9:])
    np.savez(tmp_path / "one.npz", whatever=X)
    assert np.array_equal(read_inputs(str(tmp_path / "one.npz"), SHAPE), X)
    np.save(tmp_path / "plain.npy", X)
    assert np.array_equal(read_inputs(str(tmp_path / "plain.npy"), SHAPE), X)
    assert read_inputs("digits", SHAPE).shape[1:] == SHAPE


def test_files_that_hold_no_inputs_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=X, b=X)
    with pytest.raises(DataError, match="name the inputs X"):
        read_inputs(str(tmp_path / "two.npz"), SHAPE)
    for name in ("bad.npy", "bad.npz"):
        (tmp_path / name).write_bytes(b"no arrays at all")
        with pytest.raises(DataError, match="plain arrays"):
            read_inputs(str(tmp_path / name), SHAPE)
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    with pytest.raises(DataError, match="plain arrays"):
        read_inputs(str(tmp_path / "objects.npy"), SHAPE)
    with pytest.raises(DataError, match="does not exist"):
        read_inputs("nowhere", SHAPE)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_is_read_as_in_training(channels: int, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    image.fromarray(grey).save(tmp_path / "grey.png")
    read = read_inputs(str(tmp_path / "grey.png"), (channels, 8, 8))
    assert np.array_equal(read, np.repeat(grey[None, None], channels, axis=1))
    several = [str(tmp_path / "grey.png")] * 2
    assert np.array_equal(read_inputs(several, (channels, 8, 8)), np.concatenate([read, read]))
    with pytest.raises(DataError, match="each must be the file of an image, and 'digits' is none"):
        read_inputs([*several, "digits"], (channels, 8, 8))
