"""Datasets from compressed images: Parquet and folders, and the cache of what was decoded."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from l2h.data import decoded, load_dataset
from l2h.data.images import decode_batch, decode_images
from l2h.errors import DataError, MissingExtraError

Encode = Callable[..., bytes]
WriteParquet = Callable[..., Path]
NAMES = ("cat", "dog", "fox")
Y = np.arange(12) % 3


@pytest.fixture
def pair(tmp_path: Path, images: Any, encode: Encode, write_parquet: WriteParquet) -> Path:
    """The stem of a train file of twelve PNG and a test file of the last six."""
    encoded = [encode(image) for image in images]
    write_parquet(tmp_path / "cifar-toy-train.parquet", encoded, Y, NAMES)
    write_parquet(tmp_path / "cifar-toy-test.parquet", encoded[6:], Y[6:], NAMES)
    return tmp_path / "cifar-toy"


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each decoding since had."""
    counts: list[int] = []

    def counted(encoded: Any, *rest: Any) -> Any:
        counts.append(len(encoded))
        return decode_batch(encoded, *rest)

    monkeypatch.setattr(decoded, "decode_batch", counted)
    return counts


def write_folder(root: Path, images: Any, labels: Any, encode: Encode, kind: str = "PNG") -> Path:
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        (root / NAMES[label]).mkdir(parents=True, exist_ok=True)
        (root / NAMES[label] / f"{i:03}.{kind.lower()}").write_bytes(encode(image, kind))
    return root


def test_parquet_gives_back_the_pixels_and_finds_its_test_file(pair: Path, tmp_path: Path, images: Any) -> None:
    for source in (pair, str(pair), f"{pair}-train.parquet"):
        data = load_dataset(source, cache=False)
        assert (data.name, data.class_names, data.augment) == ("cifar-toy", NAMES, "flip+shift")
        np.testing.assert_array_equal(data.X_train, images)
        np.testing.assert_array_equal(data.X_test, images[6:])
        assert data.y_train.tolist() == Y.tolist()
    train = tmp_path / "cifar-toy-train.parquet"
    other = load_dataset(pair, shutil.copy(train, tmp_path / "other.parquet"), cache=False)
    assert len(other.y_test) == 12
    with pytest.raises(DataError, match=r"cifar-toy-train\.parquet' is in the train part and in the test part"):
        load_dataset(pair, train, cache=False)


def test_parquet_of_other_column_names_and_none_of_the_classes(
    tmp_path: Path, images: Any, encode: Encode, write_parquet: WriteParquet
) -> None:
    path = tmp_path / "shapes.parquet"
    write_parquet(path, [encode(image) for image in images], Y, image="image", label="fine_label")
    data = load_dataset(path, test_share=0.25)
    assert (data.class_names, data.augment, data.name) == (("0", "1", "2"), "shift", "shapes")
    assert (len(data.y_train), len(data.y_test)) == (9, 3)


@pytest.mark.parametrize("size", [(40, 50), (70, 80)])
def test_the_number_of_threads_does_not_change_the_pixels(size: tuple[int, int], encode: Encode) -> None:
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (150, 3, *size), dtype=np.uint8)
    encoded = [encode(image) for image in pixels]
    for workers in (1, 2, 5):
        np.testing.assert_array_equal(decode_images(encoded, str, workers), pixels)


def test_jpeg_is_decoded_to_nearly_the_pixels_it_was_made_of(encode: Encode) -> None:
    ramp = np.linspace(0, 255, 32).astype(np.uint8)
    image = np.broadcast_to(ramp[None, :, None], (3, 32, 32)).copy()
    decoded = decode_images([encode(image, "JPEG")], str, 1)[0]
    # A grey ramp down the rows has little that JPEG throws away; turned axes would be off by up to 255.
    assert np.abs(decoded.astype(int) - image).max() < 12


def test_grey_images_keep_one_channel_unless_one_has_colour(images: Any, encode: Encode) -> None:
    grey = images[:, :1]
    encoded = [encode(image) for image in grey]
    np.testing.assert_array_equal(decode_images(encoded, str, 1), grey)
    mixed = decode_images([*encoded[:-1], encode(images[-1])], str, 1)
    np.testing.assert_array_equal(mixed[:-1], np.repeat(grey[:-1], 3, axis=1))
    np.testing.assert_array_equal(mixed[-1], images[-1])


def test_an_image_of_more_than_eight_bits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(path)
    with pytest.raises(DataError, match=r"the deep one: cannot decode image: mode I;16 is not 8 bits"):
        decode_images([path], lambda _: "the deep one", 1)


@pytest.mark.parametrize("cut", [0, 20, 60])
def test_a_damaged_image_is_named_by_its_row(
    cut: int, tmp_path: Path, images: Any, encode: Encode, write_parquet: WriteParquet
) -> None:
    encoded = [encode(image) for image in images]
    encoded[7] = encoded[7][:cut]
    path = write_parquet(tmp_path / "x.parquet", encoded, Y)
    with pytest.raises(DataError, match=r"^row 7 of x\.parquet: cannot decode image: "):
        load_dataset(path)


def test_the_first_damaged_row_is_named_whatever_the_threads(encode: Encode) -> None:
    encoded = [encode(np.zeros((3, 64, 64), np.uint8))] * 300
    for bad in (90, 91, 290):
        encoded[bad] = b"no image"
    for workers in (1, 4):
        with pytest.raises(DataError, match=r"^row 90: cannot decode"):
            decode_images(encoded, lambda row: f"row {row}", workers)


def test_many_small_images_are_decoded_by_processes_to_the_same_pixels(encode: Encode) -> None:
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
    few = [encode(image) for image in pixels]
    encoded = few * 110  # 4,400: enough to be worth processes
    for workers in (1, 2, 3):
        np.testing.assert_array_equal(decode_images(encoded, str, workers), np.tile(pixels, (110, 1, 1, 1)))
    for bad in (1000, 1050, 4390):
        encoded[bad] = b"no image"
    for workers in (1, 3):
        with pytest.raises(DataError, match=r"^row 1000: cannot decode"):
            decode_images(encoded, lambda row: f"row {row}", workers)


def test_parquet_that_cannot_be_used_is_refused(
    tmp_path: Path, images: Any, encode: Encode, write_parquet: WriteParquet
) -> None:
    encoded: list[Any] = [encode(image) for image in images]
    path = tmp_path / "x.parquet"

    def refused(message: str, *args: Any, **names: Any) -> None:
        write_parquet(path, *args, **names)
        with pytest.raises(DataError, match=message):
            load_dataset(path)

    refused(r"x\.parquet' has no column img or image: its columns are picture, label", encoded, Y, image="picture")
    refused(r"has no column label or fine_label: its columns are img, kind", encoded, Y, label="kind")
    refused(r"row 3 of x\.parquet: there are no image bytes", [*encoded[:3], None, *encoded[4:]], Y)
    refused(r"row 11 of x\.parquet: there is no label", encoded, [*Y[:11].tolist(), None])
    refused(r"label 2 in row \d+ is not in 0\.\.1", encoded, Y, ["a", "b"])
    refused(r"label -1 in row 0", encoded, Y - 1)
    refused(r"has no rows", [], [])
    refused(r"row 4 of x\.parquet: the image is 5x3, but row 0 of x\.parquet is 5x6",
            [*encoded[:4], encode(images[4, :, :3]), *encoded[5:]], Y)  # fmt: skip


def test_columns_of_the_wrong_type_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"img": ["a.png", "b.png"], "label": [0, 1]}), tmp_path / "paths.parquet")
    with pytest.raises(DataError, match=r"column img .* is string, but a struct of bytes"):
        load_dataset(tmp_path / "paths.parquet")
    pq.write_table(pa.table({"img": [b"1", b"2"], "label": [0.5, 1.0]}), tmp_path / "floats.parquet")
    with pytest.raises(DataError, match=r"column label .* is double: labels are text, integers or booleans"):
        load_dataset(tmp_path / "floats.parquet")


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_a_truncated_parquet_is_refused(pair: Path, keep: float) -> None:
    train = Path(f"{pair}-train.parquet")
    data = train.read_bytes()
    train.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(DataError, match=r"cifar-toy-train\.parquet' is not a whole Parquet file"):
        load_dataset(pair)


def test_a_missing_test_file_and_other_class_names_are_refused(
    pair: Path, images: Any, encode: Encode, write_parquet: WriteParquet
) -> None:
    test = Path(f"{pair}-test.parquet")
    write_parquet(test, [encode(image) for image in images], Y, ("cat", "owl", "fox"))
    with pytest.raises(DataError, match=r"differ in class 1: train 'dog', test 'owl'"):
        load_dataset(pair)
    write_parquet(test, [encode(image) for image in images], Y, ("cat", "dog", "fox", "owl"))
    with pytest.raises(DataError, match=r"differ in classes: train has 3, test 4"):
        load_dataset(pair)
    test.unlink()
    with pytest.raises(DataError, match=r"has no cifar-toy-test\.parquet beside it: give test="):
        load_dataset(pair)
    with pytest.raises(DataError, match=r"no file or folder .*elsewhere\.parquet"):
        load_dataset(pair, "elsewhere.parquet")


@pytest.mark.parametrize(("module", "package"), [("PIL.Image", "pillow"), ("pyarrow", "pyarrow")])
def test_a_missing_package_names_the_extra(
    pair: Path, monkeypatch: pytest.MonkeyPatch, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"'{package}': pip install -e '.*\[train\]'"):
        load_dataset(pair)


def test_a_folder_of_two_parts(tmp_path: Path, images: Any, encode: Encode) -> None:
    write_folder(tmp_path / "pets" / "train", images, Y, encode)
    write_folder(tmp_path / "pets" / "test", images[:2], [0, 2], encode)
    (tmp_path / "pets" / "train" / "cat" / "notes.txt").write_text("not an image")
    data = load_dataset(tmp_path / "pets")
    assert (data.name, data.class_names, data.augment) == ("pets", NAMES, "shift")
    order = np.argsort(Y, kind="stable")
    np.testing.assert_array_equal(data.X_train, images[order])
    assert data.y_train.tolist() == Y[order].tolist()
    assert data.y_test.tolist() == [0, 2]


def test_a_folder_of_classes_is_split_or_goes_with_another(tmp_path: Path, images: Any, encode: Encode) -> None:
    write_folder(tmp_path / "all", images, Y, encode)
    write_folder(tmp_path / "more", images[:5], Y[:5], encode, "BMP")
    alone = load_dataset(tmp_path / "all", test_share=0.25)
    assert (np.bincount(alone.y_train).tolist(), np.bincount(alone.y_test).tolist()) == ([3] * 3, [1] * 3)
    assert len(load_dataset(tmp_path / "all", tmp_path / "more").y_test) == 5
    with pytest.raises(DataError, match=r"all' is in the train part and in the test part"):
        load_dataset(tmp_path / "all", tmp_path / "all")


def test_folders_that_cannot_be_used_are_refused(tmp_path: Path, images: Any, encode: Encode) -> None:
    root = write_folder(tmp_path / "pets" / "train", images, Y, encode).parent
    with pytest.raises(DataError, match=r"has train/ but no test/: give test="):
        load_dataset(root)
    (root / "test").mkdir()
    with pytest.raises(DataError, match=r"test' holds no folder for each class"):
        load_dataset(root)
    (root / "test" / "owl").mkdir()
    with pytest.raises(DataError, match=r"owl' is a class that the train part does not have: it has cat, dog, fox"):
        load_dataset(root)
    (root / "test" / "owl").rename(root / "test" / "cat")
    with pytest.raises(DataError, match=r"cat' holds no image: files end in \.jpg"):
        load_dataset(root)
    (root / "test" / "cat" / "a.png").write_bytes(b"\x89PNG but not really")
    with pytest.raises(DataError, match=r"a\.png: cannot decode image"):
        load_dataset(root)
    (root / "train" / "dog" / "004.png").write_bytes(encode(images[0][:, :2, :2]))
    with pytest.raises(DataError, match=r"dog/004\.png: the image is 2x2, but .*cat/000\.png is 5x6"):
        load_dataset(root)


def test_images_are_decoded_once(pair: Path, cache_folder: Path, decodes: list[int], images: Any) -> None:
    first = load_dataset(pair)
    assert decodes == [12, 6]
    second = load_dataset(pair)
    assert decodes == [12, 6]
    np.testing.assert_array_equal(second.X_train, first.X_train)
    assert second.class_names == first.class_names
    assert not list(cache_folder.glob("*.tmp"))
    load_dataset(pair, cache=False)
    assert decodes == [12, 6] * 2
    load_dataset(pair, cache=cache_folder.parent / "elsewhere")
    assert decodes == [12, 6] * 3


def test_a_changed_file_is_decoded_anew(pair: Path, decodes: list[int]) -> None:
    load_dataset(pair)
    train = Path(f"{pair}-train.parquet")
    stat = train.stat()
    os.utime(train, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    load_dataset(pair)
    assert decodes == [12, 6, 12]


def test_an_added_image_is_seen_in_a_cached_folder(tmp_path: Path, images: Any, encode: Encode) -> None:
    root = write_folder(tmp_path / "all", images, Y, encode)
    load_dataset(root)
    (root / "fox" / "new.png").write_bytes(encode(images[0]))
    data = load_dataset(root)
    assert len(data.y_train) + len(data.y_test) == 13


def flip_last_byte(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("ending", ["-X.npy", "-y.npy", ".json"])
@pytest.mark.parametrize("damage", [lambda data: data[:40], lambda data: b"", flip_last_byte, None])
def test_a_damaged_cache_entry_is_rebuilt(
    pair: Path, cache_folder: Path, decodes: list[int], ending: str, damage: Any
) -> None:
    whole = load_dataset(pair, cache=False)
    load_dataset(pair)
    decodes.clear()
    for file in cache_folder.glob(f"*{ending}"):
        file.unlink() if damage is None else file.write_bytes(damage(file.read_bytes()))
    rebuilt, again = load_dataset(pair), load_dataset(pair)
    assert decodes == [12, 6]
    for data in (rebuilt, again):
        np.testing.assert_array_equal(data.X_train, whole.X_train)
        np.testing.assert_array_equal(data.y_train, whole.y_train)
        assert data.class_names == whole.class_names


def test_a_failed_write_leaves_no_entry_behind(
    pair: Path, cache_folder: Path, decodes: list[int], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        assert len(load_dataset(pair).y_train) == 12
    assert "not cached" in caplog.text
    assert list(cache_folder.iterdir()) == []
    load_dataset(pair)
    assert decodes == [12, 6, 12, 6]


def test_folders_that_cannot_be_opened_are_told_in_one_line(pair: Path, caplog: Any) -> None:
    nowhere = pair.parent / ("x" * 300)  # no system opens a name of this length
    assert len(load_dataset(pair, cache=nowhere).y_train) == 12
    assert "File name too long" in caplog.text
    with pytest.raises(DataError, match=r"cannot be kept in .* \(File name too long\): give --cache"):
        load_dataset(pair, cache=nowhere, stream=True)
    with pytest.raises(DataError, match=r"^'.*xxx' cannot be read: .*File name too long"):
        load_dataset(nowhere)


def test_decoding_is_logged(pair: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.INFO, logger="l2h.data"):
        load_dataset(pair)
    assert "decoding 12 images of cifar-toy-train.parquet" in caplog.messages
    assert capsys.readouterr().out == ""
