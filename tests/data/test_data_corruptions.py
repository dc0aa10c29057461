"""Corruptions: each gets worse with its strength, leaves shape and type, and refuses what is no image."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from scipy.signal import convolve2d

from l2h import load_dataset
from l2h.data.corruptions import CORRUPTIONS, STRENGTHS, corrupt
from l2h.errors import DataError

DIGITS = load_dataset("digits").X_test[:100]
COLOUR = np.random.default_rng(0).integers(0, 256, (20, 3, 16, 12), dtype=np.uint8)


@pytest.mark.parametrize("images", [DIGITS, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_stronger_corruption_changes_more(kind: str, images: np.ndarray) -> None:
    before = images.copy()
    made = [corrupt(images, kind, strength) for strength in range(1, 6)]
    assert all((one.shape, one.dtype) == (images.shape, images.dtype) for one in made)
    change = [np.square(one.astype(float) - images).mean() for one in made]
    assert change[0] > 0
    assert change == sorted(change)
    assert (corrupt(images, kind, 3) == made[2]).all(), "the same seed makes the same"
    assert (images == before).all()


def test_each_does_what_its_table_says() -> None:
    grey = np.full((50, 1, 32, 32), 128, np.uint8)
    for strength, amount in enumerate(STRENGTHS["noise"], start=1):
        assert corrupt(grey, "noise", strength).std() == pytest.approx(255 * amount, rel=0.02)
        assert (corrupt(grey, "noise", strength, 1) != corrupt(grey, "noise", strength, 2)).any()
    for strength, factor in enumerate(STRENGTHS["contrast"], start=1):
        mean = COLOUR.mean(axis=(2, 3), keepdims=True)
        assert np.abs(corrupt(COLOUR, "contrast", strength) - (mean + factor * (COLOUR - mean))).max() <= 0.5001
    # A point that is blurred is a Gaussian: convolved here in another way.
    point = np.zeros((1, 1, 33, 33), np.uint8)
    point[..., 16, 16] = 255
    x = np.arange(-4, 5)
    for strength, sigma in enumerate(STRENGTHS["blur"], start=1):
        kernel = np.exp(-(x**2) / (2 * (sigma * 33 / 32) ** 2))
        wanted = convolve2d(point[0, 0], np.outer(kernel, kernel) / kernel.sum() ** 2, mode="same")
        assert np.abs(corrupt(point, "blur", strength)[0, 0] - wanted).max() < 1.1
    file = io.BytesIO()
    Image.fromarray(COLOUR[3].transpose(1, 2, 0)).save(file, "JPEG", quality=40)
    assert (corrupt(COLOUR, "jpeg", 5)[3] == np.asarray(Image.open(file)).transpose(2, 0, 1)).all()


@pytest.mark.parametrize(
    ("images", "kind", "strength", "says"),
    [
        (COLOUR, "fog", 1, "fog:1 is no corruption: there are noise, blur, contrast, jpeg"),
        (COLOUR, "blur", 6, "blur:6 is no corruption.*strength 1 to 5"),
        (COLOUR.astype(np.float32), "blur", 1, "blur is for images of 8 bits.*these inputs are float32"),
        (np.zeros((3, 4), np.uint8), "noise", 1, r"noise is for images.*shape \(3, 4\)"),
        (np.zeros((3, 2, 8, 8), np.uint8), "jpeg", 1, "jpeg is for images of one or three channels; these have 2"),
    ],
)
def test_what_cannot_be_corrupted_is_refused(images: np.ndarray, kind: str, strength: int, says: str) -> None:
    with pytest.raises(DataError, match=says):
        corrupt(images, kind, strength)
