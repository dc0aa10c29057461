"""WebDataset: ``.tar`` files whose members are named ``KEY.EXTENSION``, those of one image one after the other.

``KEY.jpg`` (or another kind of image) is the image. ``KEY.cls`` holds its label as text, or ``KEY.json`` an object with
``label``, ``cls``, ``target`` or ``class``. Where there are several, as with ``KEY.mask.png``, the shortest extension
counts. Members of other extensions, and those whose names begin with a dot, are not read. A link instead of an image or
a label counts as damaged, and so does what follows the end of the archive.
"""

import json
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from l2h.data.decoded import EncodedImages, ImageSource
from l2h.data.images import SUFFIXES
from l2h.data.reading import RawDataset, ReadOptions, whole_file
from l2h.data.shards import Shards, holds_shards, read_shards
from l2h.errors import DataError, in_one_line

SUFFIX = ".tar"
_LABELS, _LABEL_FILES = ("label", "cls", "target", "class"), (".cls", ".json")
#: Bytes of images that are held at a time, and the longest file of a label.
_BYTES, _LONGEST_LABEL = 64 * 2**20, 2**20
_CHUNK = 2**20
_BLOCK = 512
#: A tar is filled up with zeros to a whole record: of 20 blocks, unless its writer was told otherwise.
_RECORDS = (20 * _BLOCK, *(_BLOCK << power for power in range(12)))


def matches(path: Path) -> bool:
    """Return whether this is a ``.tar``, a pattern of such files, or a folder of them."""
    return holds_shards(path, SUFFIX)


def read(path: Path, test: Path | None, options: ReadOptions) -> RawDataset:
    """Read the train files and, where there are any, the test files, as :func:`l2h.data.shards.find_parts` finds them.

    Labels are whole numbers where every label of the part is one, else text.
    """
    return read_shards(path, test, SUFFIX, options, _source)


@dataclass
class _Sample:
    key: str
    images: list[tarfile.TarInfo] = field(default_factory=list)
    labels: list[tarfile.TarInfo] = field(default_factory=list)


def _source(shards: Shards) -> ImageSource:
    def count() -> int:
        return sum(bool(sample.images) for file in shards.files for sample, _ in _samples(file) if sample is not None)

    def pieces(rows: int) -> Iterator[EncodedImages]:
        for file in shards.files:
            try:
                yield from _read_file(file, rows)
            except OSError as error:
                yield EncodedImages([], np.zeros(0, str), wrong=[f"{str(file)!r} cannot be read: {error.strerror}"])

    return ImageSource(shards.title, shards.place, shards.files, count, pieces, lambda: None, _numbers)


def _read_file(path: Path, rows: int) -> Iterator[EncodedImages]:
    names: list[str] = []
    encoded: list[bytes] = []
    labels: list[str] = []
    wrong: list[str] = []
    held = 0
    title = in_one_line(path.name)

    def piece() -> EncodedImages:
        nonlocal names, encoded, labels, wrong, held
        known = names
        out = EncodedImages(encoded, np.array(labels, dtype=str), lambda i: f"{known[i]} of {title}", wrong)
        names, encoded, labels, wrong, held = [], [], [], [], 0
        return out

    with path.open("rb") as file:
        for sample, problem in _samples(path):
            if sample is None:
                wrong.append(problem)
                continue
            try:
                label = _label(file, sample, title)
                image = _only(sample.images, f"{sample.key}* of {title}", "image")
                data = _bytes(file, image, title)
            except DataError as error:
                wrong.append(str(error))
                continue
            names.append(image.name)
            labels.append(label)
            encoded.append(data)
            held += len(data)
            if len(encoded) >= rows or held > _BYTES:
                yield piece()
    if encoded or wrong:
        yield piece()


def _samples(path: Path) -> Iterator[tuple[_Sample | None, str]]:
    """Give the samples of a file by their members; None and what is wrong where a link stands or it is damaged."""
    sample, problem = _Sample(""), ""
    try:
        with whole_file(path, "tar file"), tarfile.open(path, "r:", tarinfo=_PlainTarInfo) as archive:
            for member in iter(archive.next, None):
                archive.members.clear()  # type: ignore[attr-defined]  # a file may have millions
                if member.size < 0:  # tarfile would go back, and on for ever
                    raise DataError(f"{str(path)!r} is damaged after {sample.key.rstrip('.') or 'its beginning'}")
                member.name = in_one_line(member.name)
                name, _, extension = member.name.rpartition("/")[2].partition(".")
                ending = "." + extension.lower().rpartition(".")[2]
                if name and (member.islnk() or member.issym()) and ending in (*SUFFIXES, *_LABEL_FILES):
                    link = f"{member.name} of {in_one_line(path.name)}"
                    yield None, f"{link} is a link: make the tar with --hard-dereference -h"
                if not member.isreg() or not name or not extension:
                    continue
                key = member.name.removesuffix(extension)
                if key != sample.key:
                    if sample.images or sample.labels:
                        yield sample, ""
                    sample = _Sample(key)
                if ending in SUFFIXES:
                    sample.images.append(member)
                elif ending in _LABEL_FILES:
                    sample.labels.append(member)
            assert archive.fileobj is not None
            archive.fileobj.seek(archive.offset)
            _require_end(archive.fileobj, path, sample.key.rstrip(".") or "its beginning")
    except DataError as error:
        problem = str(error)
    if sample.images and sample.labels if problem else sample.images or sample.labels:
        yield sample, ""
    if problem:
        yield None, problem


def _require_end(file: Any, path: Path, last: str) -> None:
    """Raise where a file does not end here as a tar does: tarfile takes damaged headers and zeros for the end."""
    start = file.tell()
    if file.read(_BLOCK) != bytes(_BLOCK):
        raise DataError(f"{str(path)!r} is damaged after {last}")
    while data := file.read(_CHUNK):
        if any(data):
            raise DataError(
                f"{str(path)!r} goes on after its end, behind {last}: it is damaged, or several tar files in one"
            )
    size, zeros = file.tell(), file.tell() - start
    record = max(record for record in _RECORDS if size % record == 0 or record == _RECORDS[0])
    if zeros > record + 2 * _BLOCK:
        raise DataError(f"{str(path)!r} is damaged after {last}: {zeros} zero bytes follow, more than end a tar file")


class _PlainTarInfo(tarfile.TarInfo):
    """Reads the header of a plain file in half the time, since only its name, size and checksum are needed here."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        # The fields of a ustar header. The checksum counts its own 8 bytes as spaces.
        name, size, checksum, kind, prefix = buf[:100], buf[124:136], buf[148:156], buf[156:157], buf[345:346]
        written = b"%06o\0 " % (sum(buf) - sum(checksum) + 8 * ord(" "))
        if kind != tarfile.REGTYPE or prefix != b"\0" or checksum != written or size[0] & 0x80:
            return super().frombuf(buf, encoding, errors)
        out = cls(name.partition(b"\0")[0].decode(encoding, errors))
        out.size = int(size.partition(b"\0")[0].strip() or b"0", 8)
        return out


def _only(members: list[tarfile.TarInfo], whose: str, kind: str, hint: str = "") -> tarfile.TarInfo:
    """Return the member with the fewest dots in its name; of labels, ``.cls`` goes before ``.json``."""
    ranked = sorted(members, key=_rank)
    if not ranked:
        raise DataError(f"{whose}: there is no {kind}{hint}")
    if len(ranked) > 1 and _rank(ranked[0]) == _rank(ranked[1]):
        raise DataError(f"{whose}: {ranked[0].name} and {ranked[1].name} are two of one {kind}: name samples apart")
    return ranked[0]


def _rank(member: tarfile.TarInfo) -> tuple[int, bool]:
    return member.name.count("."), member.name.lower().endswith(".json")


def _label(file: BinaryIO, sample: _Sample, title: str) -> str:
    hint = ", which a .cls or .json of this name would hold"
    member = _only(sample.labels, f"{sample.key}* of {title}", "label", hint)
    name = f"{member.name} of {title}"
    if member.size > _LONGEST_LABEL:
        raise DataError(f"{name} has {member.size} bytes: it holds no label")
    try:
        value: Any = _bytes(file, member, title).decode("utf-8").strip()
        if member.name.lower().endswith(".json"):
            values = json.loads(value)
            value = next(values[key] for key in _LABELS if key in values)
        elif re.fullmatch(r"-\d+", value):
            value = int(value)
    except DataError:
        raise
    except (ValueError, TypeError, StopIteration, RecursionError) as error:
        raise DataError(f"{name} holds no label: text, or an object with {' or '.join(_LABELS)}") from error
    if (isinstance(value, str) and value) or (isinstance(value, int) and value >= 0):
        return str(int(value) if isinstance(value, int) else value)
    raise DataError(f"{name} holds no label: {value!r}")


def _bytes(file: BinaryIO, member: tarfile.TarInfo, title: str) -> bytes:
    file.seek(member.offset_data)
    data = file.read(min(member.size, os.fstat(file.fileno()).st_size))  # a damaged size may be beyond any memory
    if len(data) < member.size:
        raise DataError(f"{member.name} of {title} is cut off: the file is not whole")
    return data


def _numbers(labels: Any) -> Any:
    whole = np.char.isdecimal(labels).all() and np.char.str_len(labels).max() < len(str(np.iinfo(np.int64).max))
    return labels.astype(np.int64) if whole else labels
