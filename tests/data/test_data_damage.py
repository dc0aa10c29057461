"""Shards and folders of which something is lost or damaged: a line that names it, and no sample less in silence."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shard_maker import add_member, write_tar

from l2h.data import decoded, load_dataset
from l2h.errors import DataError

N = 30
Y = np.arange(N) % 3


@pytest.fixture
def encoded(rng: Any, encode: Callable[..., bytes]) -> list[bytes]:
    return [encode(picture) for picture in rng.integers(0, 256, (N, 3, 6, 5), dtype=np.uint8)]


def refused(path: Path | str, match: str, kept: int | None) -> None:
    """Loading stops with these words; with ``skip`` so many images are left, or where None it stops as well."""
    with pytest.raises(DataError, match=match):
        load_dataset(path, test_share=1.0)
    if kept is None:
        with pytest.raises(DataError, match=match):
            load_dataset(path, test_share=1.0, on_error="skip")
    else:
        assert len(load_dataset(path, test_share=1.0, on_error="skip").y_test) == kept


def offset_of(path: Path, member: int) -> int:
    with tarfile.open(path) as archive:
        return archive.getmembers()[member].offset


def hole(data: bytes, start: int) -> bytes:
    return data[:start] + bytes(4096) + data[start + 4096 :]


def preallocated(data: bytes, start: int) -> bytes:
    return data[:start] + bytes(len(data) - start)


def joined(data: bytes, _: int) -> bytes:
    return data + data


@pytest.mark.parametrize(
    ("damage", "match", "kept"),
    [
        (hole, r"a\.tar' goes on after its end, behind a/0019: it is damaged, or several tar files in one$", 20),
        (joined, r"a\.tar' goes on after its end, behind a/0029: it is damaged, or several tar files in one$", N),
        (preallocated, r"a\.tar' is damaged after a/0019: \d+ zero bytes follow, more than end a tar file$", 20),
    ],
)
def test_zeros_before_the_end_of_a_tar_are_not_its_end(
    tmp_path: Path, encoded: list[bytes], damage: Any, match: str, kept: int
) -> None:
    path = write_tar(tmp_path / "a.tar", encoded, Y)
    path.write_bytes(damage(path.read_bytes(), offset_of(path, 3 * 20)))  # three members are a sample
    refused(path, match, kept)


@pytest.mark.parametrize("record", [1, 512, 10240, 2**17, 2**20])
def test_a_tar_may_be_filled_up_to_any_usual_record(tmp_path: Path, encoded: list[bytes], record: int) -> None:
    path = write_tar(tmp_path / "a.tar", encoded, Y)
    data = path.read_bytes().rstrip(b"\0")
    blocks = -(-len(data) // 512) * 512 + 1024
    path.write_bytes(data.ljust(-(-blocks // record) * record, b"\0"))
    assert len(load_dataset(path, test_share=1.0).y_test) == N


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_links_in_a_tar_are_named(tmp_path: Path, encoded: list[bytes], kind: bytes) -> None:
    path = write_tar(tmp_path / "a.tar", encoded, Y)
    with tarfile.open(path, "a") as archive:
        for ending in ("png", "cls", "txt"):
            link = tarfile.TarInfo(f"a/9000.{ending}")
            link.type, link.linkname = kind, f"a/0000.{ending}"
            archive.addfile(link)
    refused(path, r"^a/9000\.png of a\.tar is a link: make the tar with --hard-dereference -h$", N)


@pytest.mark.parametrize("size", [2**62, -512])
@pytest.mark.parametrize("ending", ["png", "cls"])
def test_an_impossible_size_of_a_member_is_damage(tmp_path: Path, encoded: list[bytes], size: int, ending: str) -> None:
    path = write_tar(tmp_path / "a.tar", encoded, Y)
    header = tarfile.TarInfo(f"a/9000.{ending}")
    header.size = size
    with tarfile.open(path, "a") as archive:
        if ending == "cls":
            add_member(archive, "a/9000.png", encoded[0])
        archive.addfile(header)
        add_member(archive, "a/9001.png", encoded[0])
    refused(path, r"a\.tar", N)


def test_brackets_without_end_are_no_label(tmp_path: Path, encoded: list[bytes]) -> None:
    path = write_tar(tmp_path / "a.tar", encoded, Y)
    with tarfile.open(path, "a") as archive:
        add_member(archive, "b.png", encoded[0])
        add_member(archive, "b.json", b'{"label":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    refused(path, r"^b\.json of a\.tar holds no label", N)


def test_brackets_without_end_in_the_cache_are_nothing_of_ours(
    tmp_path: Path, cache_folder: Path, encoded: list[bytes]
) -> None:
    cache_folder.mkdir()
    (cache_folder / f"{'0' * 32}.json").write_text("[" * 100_000)
    assert len(load_dataset(write_tar(tmp_path / "a.tar", encoded, Y), test_share=1.0).y_test) == N


@pytest.mark.parametrize("suffix", [".parquet", ".tar"])
def test_a_shard_whose_link_is_broken_is_named(
    tmp_path: Path, encoded: list[bytes], write_parquet: Any, suffix: str
) -> None:
    write = write_parquet if suffix == ".parquet" else write_tar
    folder = tmp_path / "shards"
    folder.mkdir()
    write(folder / f"0{suffix}", encoded, Y)
    (folder / f"1{suffix}").symlink_to(tmp_path / "gone")
    for path in (folder, folder / f"*{suffix}"):
        refused(path, rf"1{suffix}'.*No such file", N)


def test_an_image_whose_link_is_broken_is_named(tmp_path: Path, encoded: list[bytes]) -> None:
    for i in range(N):
        (tmp_path / "pets" / "abc"[Y[i]]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "pets" / "abc"[Y[i]] / f"{i}.png").write_bytes(encoded[i])
    (tmp_path / "pets" / "a" / "zz.png").symlink_to(tmp_path / "gone")
    refused(tmp_path / "pets", r"a/zz\.png: cannot decode image: .*No such file", N)


def test_names_stay_in_their_line(tmp_path: Path, encoded: list[bytes]) -> None:
    folder = tmp_path / "pets" / "a"
    name = "x\nerror: all is well\x1b[2J.png"
    shown = r"x\\nerror: all is well\\x1b\[2J\.png"
    for label in "ab":
        (folder.parent / label).mkdir(parents=True)
        (folder.parent / label / "0.png").write_bytes(encoded[0])
    (folder / name).write_bytes(b"damaged")
    refused(folder.parent, rf"/a/{shown}: cannot decode image", 2)
    path = write_tar(tmp_path / "a\n.tar", encoded, Y)
    with tarfile.open(path, "a") as archive:
        add_member(archive, name, encoded[0])
    refused(path, r"^x\\nerror: all is well\\x1b\[2J\.\* of a\\n\.tar: there is no label", N)


def test_a_file_that_grows_while_it_is_read_into_memory_is_refused(tmp_path: Path, encoded: list[bytes]) -> None:
    write_tar(tmp_path / "0.tar", encoded, Y)
    shorter, whole = write_tar(tmp_path / "1.tar", encoded[:-1], Y[:-1]), write_tar(tmp_path / "whole", encoded, Y)

    def grow(*_: int) -> None:
        if whole.exists():
            whole.rename(shorter)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoded, "_MOST", 1)  # the second file is read after the first images are decoded
        with pytest.raises(DataError, match=r"^files of .* have grown while they were decoded: start again$"):
            load_dataset(tmp_path / "?.tar", stream=False, cache=False, progress=grow)


@pytest.mark.parametrize("cached", [True, False])
def test_images_that_memory_has_no_room_for_are_refused(
    tmp_path: Path, encoded: list[bytes], monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    path = write_tar(tmp_path / "a.tar", encoded, Y)
    if cached:
        load_dataset(path)
    monkeypatch.setattr(decoded, "free_memory", lambda: N * 90 - 1)
    with pytest.raises(DataError, match=r"a\.tar take 2\.7 KB decoded, but 2\.7 KB of memory are free: .* --no-stream"):
        load_dataset(path, stream=False)
    assert len(load_dataset(path, test_share=1.0).y_test) == N


def test_a_range_of_files_is_not_made_before_its_first_is_missed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x-00000000\.tar"):
        load_dataset(f"{tmp_path}/x-{{00000000..99999999999}}.tar")
