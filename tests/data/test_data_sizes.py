"""Images of any size: from folders and Parquet, with the size that they are brought to."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from l2h.data import load_dataset, read_images
from l2h.data.load import read_inputs
from l2h.errors import DataError


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A smooth picture, so that a JPEG of it is close to it: four corners of their own colours."""
    corners = np.random.default_rng(seed).integers(0, 256, (2, 2, 3), dtype=np.uint8)
    return Image.fromarray(corners).resize((width, height), Image.Resampling.BICUBIC)


def turned(image: Image.Image, path: Path) -> Path:
    """What a phone writes that was held upright: the picture on its side, and a note to turn it (orientation 6)."""
    exif = Image.Exif()
    exif[0x0112] = 6
    image.transpose(Image.Transpose.ROTATE_90).save(path, quality=95, exif=exif)
    return path


def by_hand(image: Image.Image, size: int) -> np.ndarray:
    """The shorter side to ``size`` first, the centre after."""
    width, height = image.size
    factor = size / min(width, height)
    whole = image.resize((round(width * factor), round(height * factor)), Image.Resampling.BILINEAR)
    left, top = (whole.width - size) // 2, (whole.height - size) // 2
    return np.asarray(whole.crop((left, top, left + size, top + size))).transpose(2, 0, 1).astype(int)


@pytest.mark.parametrize(("width", "height"), [(64, 48), (48, 64), (20, 20), (300, 40), (8, 6)])
def test_the_shorter_side_is_resized_and_the_centre_cut_out(width: int, height: int, tmp_path: Path) -> None:
    image = picture(width, height)
    image.save(tmp_path / "photo.png")
    (found,) = read_images([tmp_path / "photo.png"], size=16)
    assert found.shape == (3, 16, 16)
    # Half a pixel more or less at the cut, of a picture whose colours change slowly.
    assert np.abs(found - by_hand(image, 16)).mean() < 6


@pytest.mark.parametrize("large", [False, True])
def test_a_phone_s_picture_is_turned_and_decoded_no_larger_than_needed(large: bool, tmp_path: Path) -> None:
    upright = picture(*((1200, 1600) if large else (60, 80)), seed=3)
    (found,) = read_images([turned(upright, tmp_path / "phone.jpg")], size=16)
    assert np.abs(found - by_hand(upright, 16)).mean() < 6
    sideways = by_hand(upright.transpose(Image.Transpose.ROTATE_90), 16)
    assert np.abs(found - sideways).mean() > 12, "else the test could not tell"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(10):
            picture(20 + 7 * i, 50 - 3 * i, seed=label).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def test_a_folder_of_many_sizes(folder: Path) -> None:
    for size in (8, 16):  # the cache tells them apart
        for workers in (1, 2):
            data = load_dataset(folder, size=size, workers=workers)
            assert data.input_shape == (3, size, size)
            assert len(data.X_train) + len(data.X_test) == 20
    with pytest.raises(DataError, match="bring every image to one size, with size= or --size"):
        load_dataset(folder)
    assert read_inputs(str(folder), (3, 16, 16), 16).shape[1:] == (3, 16, 16)


def test_parquet_of_many_sizes(tmp_path: Path, write_parquet: Callable[..., Path]) -> None:
    encoded = []
    for i in range(8):
        file = io.BytesIO()
        picture(20 + i, 30 - i, seed=i).save(file, "PNG")
        encoded.append(file.getvalue())
    path = write_parquet(tmp_path / "many.parquet", encoded, [0, 1] * 4)
    assert load_dataset(path, size=12).input_shape == (3, 12, 12)


@pytest.mark.parametrize(
    ("source", "size", "message"),
    [
        ("digits", 8, "size=8 is for images in a folder, Parquet or .tar files, and digits is none"),
        ("arrays.npz", 8, "is for images in a folder, Parquet or .tar files, and 'arrays.npz' is none"),
        ("digits", 0, "size=0 must be a whole number from 1"),
    ],
)
def test_a_size_that_makes_no_sense_is_refused(
    source: Any, size: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("arrays.npz", X=np.zeros((4, 1, 8, 8), np.uint8), y=[0, 1, 0, 1])
    with pytest.raises(DataError, match=message):
        load_dataset(source, size=size)
