"""Decoding of compressed images into one array, several at a time; decoded ones are kept on disk.

An entry of the cache is three files: ``KEY-X.npy``, ``KEY-y.npy`` and, written last, ``KEY.json`` with the class names
and the checksums of the arrays. Each appears whole or not at all; one that does not match its checksums is rebuilt.
"""

import hashlib
import io
import json
import logging
import math
import mmap
import os
import tempfile
import warnings
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from l2h.data.dataset import Array
from l2h.data.reading import RawPart, need
from l2h.errors import DataError

Pixels = npt.NDArray[np.uint8]

_log = logging.getLogger("l2h.data")
#: Raise it when the same file would be decoded into other arrays.
FORMAT_VERSION = 1
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_GREY = ("1", "L", "LA")
_COLOUR = ("RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr")
_CHUNK = 32
_LARGEST_SIZE = 8192
# Below this, reading an image's header, which holds the interpreter's lock, takes longer than decoding it, which does
# not: on two idle cores, two threads took 1.4 to 1.6 times as long as one at 32x32, 0.5 to 0.95 times from 64x64 on.
# Smaller images are decoded by processes, where there are enough images to make up for starting the processes.
_PIXELS_WORTH_A_THREAD = 64 * 64
_IMAGES_WORTH_A_PROCESS = 4096


def decode_images(
    encoded: Sequence[bytes | Path], name: Callable[[int], str], workers: int, size: int | None = None
) -> Pixels:
    """Decode one or more images of one size to uint8 (n, C, H, W): C is 1 where every image is grey, else 3.

    With ``size`` they may be of any size. Each is turned as its EXIF orientation says, its shorter side is resized to
    ``size`` by Pillow's ``BILINEAR`` filter, and the centre of size x size is cut out.

    ``encoded`` are the bytes of each image, or the file that holds them; ``name(i)`` is what messages call image ``i``.
    ``workers`` is the number of threads, from 64x64 pixels on. Smaller images are decoded by this many processes, where
    there are thousands of them and the system can fork, else by one thread. The pixels do not depend on it.
    """
    pillow = need("PIL.Image", "pillow", "decoding images")
    width, height = _decode(pillow, encoded[0], name(0))[0] if size is None else (size, size)
    # Shared memory, so that forked processes can write into it.
    shape = (len(encoded), 3, height, width)
    pixels = np.frombuffer(mmap.mmap(-1, math.prod(shape)), np.uint8).reshape(shape)

    def decode_chunk(start: int) -> bool:
        stop = min(start + _CHUNK, len(encoded))
        rows, any_colour = [], False
        for i in range(start, stop):
            found, colour, row = _decode(pillow, encoded[i], name(i), size)
            if found != (width, height):
                raise DataError(
                    f"{name(i)}: the image is {found[0]}x{found[1]}, but {name(0)} is {width}x{height}: "
                    "bring every image to one size, with size= or --size"
                )
            rows.append(row)
            any_colour |= colour
        chunk = np.frombuffer(b"".join(rows), np.uint8).reshape(stop - start, height, width, 3)
        pixels[start:stop] = chunk.transpose(0, 3, 1, 2)
        return any_colour

    starts = range(0, len(encoded), _CHUNK)
    small = size is None and width * height < _PIXELS_WORTH_A_THREAD
    if workers > 1 and not small:
        with ThreadPoolExecutor(workers, thread_name_prefix="l2h-decode") as pool:
            colours = list(pool.map(decode_chunk, starts))
    elif workers > 1 and len(encoded) >= _IMAGES_WORTH_A_PROCESS and "fork" in get_all_start_methods():
        colours = _in_processes(decode_chunk, starts, workers)
    else:
        colours = [decode_chunk(start) for start in starts]
    return pixels if any(colours) else np.ascontiguousarray(pixels[:, :1])


def cache_folder(cache: str | Path | bool) -> Path | None:
    """Return where decoded images are kept: ``True`` is ``$L2H_CACHE`` or ``~/.cache/l2h``, ``False`` is nowhere."""
    if cache is False:
        return None
    if cache is True:
        return Path(os.environ.get("L2H_CACHE") or Path.home() / ".cache" / "l2h")
    return Path(cache)


def read_images(
    files: Sequence[str | Path], size: int | None = None, *, colour: bool = False, workers: int = 1
) -> Pixels:
    """Read images as uint8 (n, C, H, W), as :func:`l2h.load_dataset` reads those of a folder.

    Args:
        files: their paths.
        size: what their shorter side is resized to; the centre is cut out, and the EXIF orientation is followed. Where
            None, they must be of one size.
        colour: give three channels even where every image is grey.
        workers: how many threads decode them.

    Raises:
        DataError: a file is missing or no image, or the sizes differ; the message names it.
    """
    check_size(size)
    pixels = decode_images([Path(file) for file in files], lambda i: str(files[i]), workers, size)
    return np.repeat(pixels, 3, axis=1) if colour and pixels.shape[1] == 1 else pixels


def check_size(size: int | None) -> None:
    """Raise a :class:`DataError` where a size of images is none."""
    if size is not None and not (isinstance(size, int) and 1 <= size <= _LARGEST_SIZE):
        raise DataError(f"size={size!r} must be a whole number from 1 to {_LARGEST_SIZE}")


def cached(
    files: Sequence[Path], build: Callable[[], RawPart], folder: Path | None, size: int | None = None
) -> RawPart:
    """Return what ``build`` makes of these files, from the cache where they have not changed since.

    ``size`` is that to which it brings images, if any.
    A cache folder that cannot be written is reported in the log, and the part is returned all the same.
    """
    if folder is None:
        return build()
    key = _key(files, size)
    part = _read(folder, key)
    if part is None:
        part = build()
        try:
            _write(folder, key, part)
        except OSError as error:
            _log.warning("decoded images are not cached in %s: %s; set L2H_CACHE", folder, error)
    return part


def _in_processes(decode_chunk: Callable[[int], bool], starts: range, workers: int) -> list[bool]:
    """Decode every ``workers``-th chunk in a forked process, which shares the encoded images and the pixels."""

    def share(first: int, sender: Connection) -> None:
        colours = []
        for start in starts[first::workers]:
            try:
                colours.append(decode_chunk(start))
            except DataError as error:
                sender.send((start, str(error)))
                return
        sender.send(colours)

    fork = get_context("fork")
    running = []
    for first in range(workers):
        receiver, sender = fork.Pipe(duplex=False)
        process = fork.Process(target=share, args=(first, sender), daemon=True)
        with warnings.catch_warnings():  # a fork beside threads is fine here: the child only decodes
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        sender.close()
        running.append((process, receiver))
    colours: list[bool] = []
    wrong: list[tuple[int, str]] = []
    for process, receiver in running:
        try:
            answer = receiver.recv()
        except EOFError:
            answer = (len(starts) * _CHUNK, "a decoding process was killed: try again, or give workers=1")
        process.join()
        if isinstance(answer, tuple):
            wrong.append(answer)
        else:
            colours += answer
    if wrong:
        raise DataError(min(wrong)[1])
    return colours


def _decode(
    pillow: ModuleType, encoded: bytes | Path, name: str, size: int | None = None
) -> tuple[tuple[int, int], bool, bytes]:
    """Return width and height, whether it has colour, and its RGB bytes row by row."""
    source = io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded
    try:
        with pillow.open(source, formats=FORMATS) as image:
            mode = image.mode
            if mode in _GREY or mode in _COLOUR:
                if size is not None:
                    image.draft(None, (2 * size, 2 * size))  # a large JPEG is decoded no larger than is needed
                rgb = image if mode == "RGB" else image.convert("RGB")
                if size is not None:
                    edit = need("PIL.ImageOps", "pillow", "resizing images")
                    rgb = edit.fit(edit.exif_transpose(rgb), (size, size), pillow.Resampling.BILINEAR)
                return rgb.size, mode in _COLOUR, rgb.tobytes()
    except Exception as error:  # damaged bytes make Pillow's decoders raise almost anything
        # Pillow's own text ends in the address of a buffer, which tells the reader nothing.
        reason = str(error).split(" <_io.")[0] or type(error).__name__
        raise DataError(f"{name}: cannot decode image: {reason}") from error
    raise DataError(f"{name}: cannot decode image: mode {mode} is not 8 bits per channel: convert it to RGB or L")


def _key(files: Sequence[Path], size: int | None) -> str:
    digest = hashlib.sha256(f"l2h {FORMAT_VERSION}{'' if size is None else f' size {size}'}".encode())
    for file in files:
        stat = file.stat()
        identity = f"\0{os.path.abspath(file)}\0{stat.st_size}\0{stat.st_mtime_ns}"
        digest.update(identity.encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def _read(folder: Path, key: str) -> RawPart | None:
    try:
        entry = json.loads((folder / f"{key}.json").read_text("utf-8"))
        X, y = (np.load(folder / f"{key}-{array}.npy", allow_pickle=False) for array in "Xy")
        if entry["checksums"] != [_checksum(X), _checksum(y)]:
            raise ValueError("checksum")
        names = entry["class_names"]
        return RawPart(X, y, None if names is None else tuple(names))
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - whatever is wrong with an entry, it is made again
        _log.warning("the cache entry %s in %s is damaged (%s) and is made again", key, folder, error)
        return None


def _write(folder: Path, key: str, part: RawPart) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = None if part.class_names is None else list(part.class_names)
    entry = {"class_names": names, "checksums": [_checksum(part.X), _checksum(part.y)]}
    _replace(folder / f"{key}-X.npy", lambda file: np.save(file, part.X, allow_pickle=False))
    _replace(folder / f"{key}-y.npy", lambda file: np.save(file, part.y, allow_pickle=False))
    _replace(folder / f"{key}.json", lambda file: file.write(json.dumps(entry).encode()))


def _replace(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _checksum(array: Array) -> int:
    kind = zlib.crc32(f"{array.dtype} {array.shape}".encode())
    return zlib.crc32(np.ascontiguousarray(array).data, kind)
