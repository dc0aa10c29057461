"""Images in many files, decoded once onto the disk: the same pixels as in memory, and every kind of damage."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from shard_maker import add_member, write_tar
from waiting import STUCK

from l2h.data import Rows, StoredArray, decoded, load_dataset
from l2h.errors import DataError
from l2h.rows import free_memory

NAMES = ("cat", "dog", "fox")
N = 30
Y = np.arange(N) % 3


@pytest.fixture
def pictures(rng: Any) -> Any:
    return rng.integers(0, 256, (N, 3, 6, 5), dtype=np.uint8)


@pytest.fixture(params=["parquet", "tar", "folder"])
def source(request: Any, tmp_path: Path, pictures: Any, encode: Callable[..., bytes], write_parquet: Any) -> Path:
    """A folder of 24 train images, in three files where the format has files, and 6 test images."""
    root = tmp_path / "pets"
    root.mkdir()
    encoded = [encode(picture) for picture in pictures]
    for number, start in enumerate((0, 10, 20, 24)):
        name, part = ("train", slice(start, min(start + 10, 24))) if number < 3 else ("test", slice(24, N))
        if request.param == "parquet":
            write_parquet(root / f"{name}-{number:05}-of-00003.parquet", encoded[part], Y[part], NAMES)
        elif request.param == "tar":
            write_tar(root / f"{name}-{number:06}.tar", encoded[part], Y[part], ("cls", "json")[number % 2], start)
        else:
            for i in range(N)[part]:
                (root / name / NAMES[Y[i]]).mkdir(parents=True, exist_ok=True)
                (root / name / NAMES[Y[i]] / f"{i:03}.png").write_bytes(encoded[i])
    return root


def test_stored_images_are_those_of_memory(
    source: Path, cache_folder: Path, pictures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = load_dataset(source, stream=False, cache=False)
    monkeypatch.setattr(decoded, "_MOST", 3)  # many pieces, which are read, decoded and written at the same time
    stored, again = (load_dataset(source, stream=True) for _ in range(2))
    assert sorted(map(tuple, memory.X_train.reshape(24, -1).tolist())) == sorted(
        map(tuple, pictures[:24].reshape(24, -1).tolist())
    )
    for data in (stored, again):
        assert isinstance(data.X_train, StoredArray)
        assert str(data) == str(memory)
        for part in ("X_train", "X_test", "y_train", "y_test"):
            np.testing.assert_array_equal(getattr(data, part)[:], getattr(memory, part))
        assert data.class_names == memory.class_names
    assert {file.suffix for file in cache_folder.iterdir()} == {".npy", ".json"}


def test_a_part_that_is_split_off_or_limited_is_the_same(source: Path) -> None:
    train = source / "train" if (source / "train").is_dir() else source / f"train-*{next(source.iterdir()).suffix}"
    memory, stored = (load_dataset(train, stream=stream, limit=7, seed=3) for stream in (False, True))
    assert isinstance(stored.X_test, Rows)
    for part in ("X_train", "X_test", "y_train", "y_test"):
        np.testing.assert_array_equal(getattr(stored, part)[:], getattr(memory, part))


def test_the_choice_is_by_the_free_memory_and_told(
    source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "l2h.data")
    assert isinstance(load_dataset(source).X_train, np.ndarray)
    assert "read into memory" in caplog.text
    caplog.clear()
    monkeypatch.setattr(decoded, "free_memory", lambda: 8 * 24 * 90 - 1)  # X_train takes one byte more than an eighth
    data = load_dataset(source)
    assert isinstance(data.X_train, StoredArray)
    assert isinstance(data.X_test, np.ndarray)
    assert "24 images take 2.16 KB decoded: read from" in caplog.text
    assert "of 17.3 KB of free memory up to 1/8" in caplog.text
    assert isinstance(load_dataset(source, limit=20).X_train, np.ndarray)
    assert 2**28 < free_memory() < 2**48


def test_grey_images_are_stored_with_one_channel(tmp_path: Path, pictures: Any, encode: Callable[..., bytes]) -> None:
    encoded = [encode(picture[:1]) for picture in pictures]
    write_tar(tmp_path / "grey.tar", encoded, Y)
    data = load_dataset(tmp_path / "grey.tar", stream=True, test_share=1.0)
    np.testing.assert_array_equal(data.X_test[:], pictures[:, :1])


@pytest.mark.parametrize("stream", [True, False])
def test_a_damaged_image_stops_or_is_left_out_by_name(
    source: Path, stream: bool, pictures: Any, caplog: pytest.LogCaptureFixture
) -> None:
    whole = load_dataset(source, stream=False, cache=False)
    broken = _damage_image(source)
    for _ in range(2):
        with pytest.raises(DataError, match=rf"{broken}.*: cannot decode image"):
            load_dataset(source, stream=stream)
    for _ in range(2):  # decoded, and from the cache
        caplog.clear()
        data = load_dataset(source, stream=stream, on_error="skip")
        np.testing.assert_array_equal(data.X_train[:], np.delete(whole.X_train, _row(source), axis=0))
        np.testing.assert_array_equal(data.y_train, np.delete(whole.y_train, _row(source)))
        assert broken.replace("\\", "") in caplog.text
        assert caplog.text.count("left out: ") == 1
    with pytest.raises(DataError, match="cannot decode image"):  # what was left out is not taken for whole
        load_dataset(source, stream=stream)


def _row(source: Path) -> int:
    """Return the train row that is damaged: image 12."""
    return [i for label in range(3) for i in range(24) if Y[i] == label].index(12) if _kind(source) == "folder" else 12


def _kind(source: Path) -> str:
    return "folder" if (source / "train").is_dir() else next(source.iterdir()).suffix


def _damage_image(source: Path) -> str:
    """Damage the pixels of image 12, and return how messages name it."""
    if _kind(source) == "folder":
        file = source / "train" / "cat" / "012.png"
        file.write_bytes(file.read_bytes()[:40])
        return r"012\.png"
    file = source / ("train-000001.tar" if _kind(source) == ".tar" else "train-00001-of-00003.parquet")
    if file.suffix == ".parquet":
        table = parquet.read_table(file)
        rows = table.to_pylist()
        rows[2]["img"]["bytes"] = rows[2]["img"]["bytes"][:40]
        parquet.write_table(pyarrow.Table.from_pylist(rows, table.schema), file)
        return r"row 2 of train-00001-of-00003\.parquet"
    data = bytearray(file.read_bytes())
    start = data.index(b"IDAT", data.index(b"a/0012.png"))
    data[start : start + 12] = bytes(12)
    file.write_bytes(data)
    return r"a/0012\.png of train-000001\.tar"


@pytest.mark.parametrize("keep", [0.0, 0.4, 0.97])
@pytest.mark.parametrize("suffix", [".parquet", ".tar"])
def test_a_cut_off_file_stops_or_is_left_out_by_name(
    tmp_path: Path, pictures: Any, encode: Any, write_parquet: Any, suffix: str, keep: float, caplog: Any
) -> None:
    encoded = [encode(picture) for picture in pictures]
    write = write_parquet if suffix == ".parquet" else write_tar
    files = [write(tmp_path / f"{start:03}{suffix}", encoded[start : start + 10], Y[:10]) for start in (0, 10, 20)]
    data = files[1].read_bytes()
    files[1].write_bytes(data[: int(len(data) * keep) if suffix == ".parquet" else 10240 if keep else 0])
    pattern = tmp_path / f"*{suffix}"
    with pytest.raises(DataError, match=rf"010\{suffix}' is (not a whole|damaged)"):
        load_dataset(pattern)
    for stream in (False, True):
        caplog.clear()
        found = load_dataset(pattern, stream=stream, on_error="skip", test_share=1.0).X_test[:]
        assert f"010{suffix}" in caplog.text
        assert {tuple(x.ravel()) for x in found} >= {tuple(x.ravel()) for x in (*pictures[:10], *pictures[20:])}
        assert 20 <= len(found) < 30


def test_a_damaged_header_inside_a_tar_is_not_its_end(tmp_path: Path, pictures: Any, encode: Any) -> None:
    path = write_tar(tmp_path / "a.tar", [encode(picture) for picture in pictures], Y)
    data = bytearray(path.read_bytes())
    start = data.index(b"a/0020.png")
    data[start : start + 512] = os.urandom(512)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.tar' is damaged after a/0019"):
        load_dataset(path)
    assert len(load_dataset(path, on_error="skip", test_share=1.0).y_test) == 20


def test_where_the_first_image_is_the_odd_one_all_others_are_not_left_out(
    tmp_path: Path, pictures: Any, encode: Any
) -> None:
    encoded = [encode(pictures[0][:, :2, :2]), *map(encode, pictures[1:])]
    path = write_tar(tmp_path / "odd.tar", encoded, Y)
    with pytest.raises(DataError, match=r"29 of 30 images of odd\.tar cannot be used, .* is 5x6, but .* is 2x2"):
        load_dataset(path, on_error="skip")


def test_samples_without_an_image_or_a_label_are_named(tmp_path: Path, pictures: Any, encode: Any) -> None:
    def refused(message: str, members: dict[str, bytes]) -> None:
        with tarfile.open(tmp_path / "x.tar", "w") as archive:
            for name, data in members.items():
                add_member(archive, name, data)
        with pytest.raises(DataError, match=message):
            load_dataset(tmp_path / "x.tar")

    image = encode(pictures[0])
    refused(r"^a\.\* of x\.tar: there is no label", {"a.png": image, "b.cls": b"1"})
    refused(r"^b\.\* of x\.tar: there is no image", {"a.png": image, "a.cls": b"0", "b.cls": b"1"})
    refused(r"^a\.cls of x\.tar holds no label", {"a.png": image, "a.cls": b" "})
    refused(r"^a\.cls of x\.tar holds no label", {"a.png": image, "a.cls": b"\xff\xfe"})
    refused(r"^a\.json of x\.tar holds no label", {"a.png": image, "a.json": b'{"caption": "a cat"}'})
    refused(r"^a\.json of x\.tar holds no label", {"a.png": image, "a.json": b'{"label": -1}'})
    refused(r"^a\.cls of x\.tar holds no label: -1", {"a.png": image, "a.cls": b"-1"})
    refused(r"^a\.\* of x\.tar: a\.1\.png and a\.2\.png are two", {"a.1.png": image, "a.cls": b"1", "a.2.png": image})
    refused(r"^x\.tar has no rows", {"README": b"nothing"})


def test_the_shortest_extension_counts_and_hidden_members_do_not(tmp_path: Path, pictures: Any, encode: Any) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for i, picture in enumerate(pictures):
            image, label = encode(picture), b"1234567890123456789012"[: i % 2 * 30 + 1]
            members = {f"._{i}.png": b"?", f"{i}.png": image, f"{i}.mask.png": encode(0 * picture), f"{i}.cls": label}
            for name, data in members.items():
                add_member(archive, name, data)
    data = load_dataset(tmp_path / "x.tar", test_share=1.0)
    assert np.array_equal(data.X_train, pictures)
    assert data.class_names == ("1", "1234567890123456789012")  # no number of 64 bits


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_tar_and_of_name_is_read(tmp_path: Path, pictures: Any, encode: Any, kind: int) -> None:
    names = ["a", "b b", "ü", "C:\\pets\\c", f"{'deep/' * 15}{'d' * 90}", f"pets/{'e' * 95}"]
    if kind != tarfile.USTAR_FORMAT:
        names.append(f"{'deeper/' * 40}f")
    with tarfile.open(tmp_path / "x.tar", "w", format=kind) as archive:
        for i, name in enumerate(names):
            folder = tarfile.TarInfo(f"folder{i}.d")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
            for ending, data in (("png", encode(pictures[i])), ("cls", b"%d" % (i % 2))):
                add_member(archive, f"{name}.{ending}", data)
    data = load_dataset(tmp_path / "x.tar", test_share=1.0)
    np.testing.assert_array_equal(data.X_train, pictures[: len(names)])
    np.testing.assert_array_equal(data.y_train, np.arange(len(names)) % 2)


def test_a_tar_that_cannot_be_opened_stops_or_is_left_out_by_name(tmp_path: Path, pictures: Any, encode: Any) -> None:
    write_tar(tmp_path / "a-0.tar", [encode(picture) for picture in pictures], Y)
    (tmp_path / "a-1.tar").mkdir()
    for stream in (False, True):
        with pytest.raises(DataError, match=r"a-1\.tar' cannot be read: Is a directory"):
            load_dataset(tmp_path / "a-*.tar", stream=stream)
        data = load_dataset(tmp_path / "a-*.tar", stream=stream, on_error="skip", test_share=1.0)
        assert len(data.y_test) == N


def test_text_labels_and_patterns_with_ranges(tmp_path: Path, pictures: Any, encode: Any) -> None:
    encoded = [encode(picture) for picture in pictures]
    names = [NAMES[y] for y in Y]
    for start in (0, 10, 20):
        write_tar(tmp_path / f"pets-train-{start:03}.tar", encoded[start : start + 10], names[start : start + 10])
    data = load_dataset(f"{tmp_path}/pets-train-{{000..020}}.tar".replace("000..020", "000..000"), test_share=1.0)
    assert (len(data.y_train), data.name, data.class_names) == (10, "pets", NAMES)
    other = load_dataset(tmp_path / "pets-train-0[01]0.tar", tmp_path / "pets-train-020.tar")
    assert (len(other.y_train), len(other.y_test)) == (20, 10)
    for train, test in (("pets-train-0?0.tar", "pets-train-020.tar"), ("pets-train-010.tar", ".")):
        with pytest.raises(DataError, match=r"pets-train-0[12]0\.tar' is in the train part and in the test part"):
            load_dataset(tmp_path / train, tmp_path / test)
    with pytest.raises(DataError, match="in the train part and in the test part"):
        load_dataset(tmp_path / "pets-train-010.tar", tmp_path / "pets-train-010.tar")
    write_tar(tmp_path / "train-0.tar", encoded[:10], names[:10])
    assert load_dataset(tmp_path / "train-*.tar", test_share=1.0).name == tmp_path.name  # not "train"
    with pytest.raises(DataError, match=r"no file or folder .*pets-train-001\.tar"):
        load_dataset(f"{tmp_path}/pets-train-{{000..020}}.tar")
    with pytest.raises(DataError, match="no file matches"):
        load_dataset(tmp_path / "dogs-*.tar")


def test_categories_of_pandas_are_labels(tmp_path: Path, pictures: Any, encode: Any, write_parquet: Any) -> None:
    table = parquet.read_table(write_parquet(tmp_path / "pets.parquet", [encode(picture) for picture in pictures], Y))
    names = pyarrow.array([NAMES[y] for y in Y]).dictionary_encode()
    parquet.write_table(table.set_column(1, "label", names), tmp_path / "pets.parquet")
    data = load_dataset(tmp_path / "pets.parquet", test_share=1.0)
    assert (data.class_names, list(data.y_train)) == (NAMES, [NAMES[y] for y in Y])


def test_an_archive_beside_folders_of_images_changes_nothing(tmp_path: Path, pictures: Any, encode: Any) -> None:
    root = tmp_path / "pets"
    for i in range(N):
        (root / NAMES[Y[i]]).mkdir(parents=True, exist_ok=True)
        (root / NAMES[Y[i]] / f"{i}.png").write_bytes(encode(pictures[i]))
    before = load_dataset(root)
    write_tar(root / "all.tar", [encode(pictures[0])], [0])
    assert load_dataset(root).X_train.shape == before.X_train.shape
    for part in ("train", "test"):
        shutil.copytree(root, tmp_path / "parts" / part)
    assert len(load_dataset(tmp_path / "parts").y_train) == N


def test_shards_that_do_not_belong_together_are_refused(
    tmp_path: Path, pictures: Any, encode: Any, write_parquet: Any
) -> None:
    encoded = [encode(picture) for picture in pictures]
    write_parquet(tmp_path / "train-0.parquet", encoded[:10], Y[:10], NAMES)
    with pytest.raises(DataError, match=r"none of test: give test= \(--test\)"):
        load_dataset(tmp_path)
    write_parquet(tmp_path / "train-1.parquet", encoded[10:], Y[10:], ("cat", "owl", "fox"))
    with pytest.raises(DataError, match=r"train-1\.parquet has other class names than train-0\.parquet"):
        load_dataset(tmp_path / "*.parquet")
    write_parquet(tmp_path / "train-1.parquet", encoded[10:], Y[10:], NAMES, label="fine_label")
    for on_error in ("stop", "skip"):
        match = r"^train-1\.parquet has its labels in the column fine_label, train-0\.parquet in label: .* together$"
        with pytest.raises(DataError, match=match):
            load_dataset(tmp_path / "*.parquet", on_error=on_error)
    with pytest.raises(DataError, match=r"on_error='ignore' is unknown; known: stop, skip"):
        load_dataset(tmp_path, on_error="ignore")
    for options in ({"stream": True}, {"on_error": "skip"}):
        with pytest.raises(DataError, match=r"is for images in a folder, Parquet or \.tar files, and digits is none"):
            load_dataset("digits", **options)


def test_a_disk_without_room_says_so_and_is_left_as_it_was(
    source: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(_: Any) -> Any:
        return type("Usage", (), {"free": 500})

    with monkeypatch.context() as patch:
        patch.setattr(decoded.shutil, "disk_usage", usage)
        with pytest.raises(DataError, match=r"they take 2.16 KB, and 500 B are free there\): give --cache"):
            load_dataset(source, stream=True)
    assert list(cache_folder.iterdir()) == []
    with monkeypatch.context() as patch:  # another program fills the disk meanwhile
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(DataError, match=r"l2h-cache' \(No space left on device\): give --cache"):
            load_dataset(source, stream=True)
    assert list(cache_folder.iterdir()) == []
    with pytest.raises(DataError, match="cache=False allows none"):
        load_dataset(source, stream=True, cache=False)
    (source.parent / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be kept in .*file' \(File exists\)"):
        load_dataset(source, stream=True, cache=source.parent / "file")


def test_stored_images_that_changed_are_noticed(source: Path, cache_folder: Path, caplog: Any) -> None:
    whole = load_dataset(source, stream=True).X_train[:]
    largest = max(cache_folder.glob("*-X.npy"), key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[-1] ^= 1
    largest.write_bytes(data)
    again = load_dataset(source, stream=True)
    assert caplog.text.count("is damaged (checksum) and is made again") == 1
    np.testing.assert_array_equal(again.X_train[:], whole)
    caplog.clear()
    os.utime(largest)  # a copy of the folder: the same pixels
    np.testing.assert_array_equal(load_dataset(source, stream=True).X_train[:], whole)
    assert "damaged" not in caplog.text


def test_what_was_decoded_before_a_source_changed_is_removed(source: Path, cache_folder: Path) -> None:
    def change() -> set[str]:
        """Change the test part, load all, and return the keys of the cache that were there before."""
        before = {file.stem for file in cache_folder.glob("*.json")}
        file = next(
            file for file in sorted(source.rglob("*")) if file.is_file() and "test" in str(file.relative_to(source))
        )
        os.utime(file, ns=(0, file.stat().st_mtime_ns + 10**9))
        load_dataset(source, stream=stream)
        return before & {file.stem for file in cache_folder.glob("*.json")}

    theirs = [cache_folder / name for name in ("notes.json", "a.part", f"{'0' * 32}.json")]
    abandoned = [cache_folder / f"{'a' * 32}{ending}" for ending in ("-X.npy.part", "-y.npy.x1.tmp")]
    recent = cache_folder / f"{'b' * 32}-X.npy.part"
    cache_folder.mkdir()
    for path in (*theirs, *abandoned):
        path.write_text("[]")
        os.utime(path, (0, 0))
    recent.touch()
    for stream in (True, False):
        load_dataset(source, stream=stream)
        assert len(change()) == 1 + (len(theirs) - 1)  # the train part, and what is none of ours
    assert not any(path.exists() for path in abandoned)
    assert all(path.exists() for path in (*theirs, recent))
    read = load_dataset(source, stream=True).X_test
    assert len(change()) == 2 + (len(theirs) - 1)  # one is in use
    assert len(pickle.loads(pickle.dumps(read))[:]) == len(read)
    del read
    assert len(change()) == 1 + (len(theirs) - 1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_source_that_changes_while_it_is_decoded_is_not_kept(source: Path, cache_folder: Path, stream: bool) -> None:
    file = [file for file in sorted(source.rglob("*")) if file.is_file()][-1]  # of the train part
    with pytest.raises(DataError, match=r"^files of .* were changed while they were decoded: start again$"):
        load_dataset(source, stream=stream, progress=lambda *_: os.utime(file))
    assert not list(cache_folder.glob("*-X*"))


SLOW = """
import sys, time
from l2h.data import decoded, load_dataset
plain = decoded.decode_batch
def slow(*args):
    print("decoding", flush=True)
    time.sleep(float(sys.argv[2]))
    return plain(*args)
decoded.decode_batch = slow
print(load_dataset(sys.argv[1], stream=True, test_share=1.0).X_train[:].sum(), flush=True)
"""


def test_processes_share_one_decoding_and_one_that_was_killed_leaves_nothing_in_the_way(
    tmp_path: Path, cache_folder: Path, pictures: Any, encode: Any
) -> None:
    path = write_tar(tmp_path / "pets.tar", [encode(picture) for picture in pictures], Y)

    def start(seconds: float) -> Any:
        return subprocess.Popen([sys.executable, "-c", SLOW, path, str(seconds)], stdout=subprocess.PIPE, text=True)

    killed = start(60)
    assert killed.stdout.readline() == "decoding\n"
    waiting = [start(0.2), start(0.2)]
    deadline = time.monotonic() + 60
    while sum(cache_folder.joinpath(name).stat().st_size == 0 for name in os.listdir(cache_folder)) == 0:
        assert time.monotonic() < deadline
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    printed = [process.communicate(timeout=STUCK)[0].splitlines() for process in waiting]
    assert sorted(map(len, printed)) == [1, 2]  # one of them decoded
    assert {lines[-1] for lines in printed} == {str(pictures.sum())}
    assert {file.suffix for file in cache_folder.iterdir()} == {".npy", ".json"}


def test_progress_tells_how_many_images_are_decoded(source: Path) -> None:
    told: list[tuple[int, int]] = []
    load_dataset(source, stream=True, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (6, 6)
    assert (24, 24) in told
