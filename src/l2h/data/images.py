"""Decoding of compressed images into one array, several at a time."""

import io
import math
import mmap
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

from l2h.data.reading import need
from l2h.errors import DataError, reason

Pixels = npt.NDArray[np.uint8]

#: Whether an image of a chunk has colour, and the images of it that cannot be used.
_Chunk = tuple[bool, list[tuple[int, str]]]
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_GREY = ("1", "L", "LA")
_COLOUR = ("RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr")
MODES = (*_GREY, *_COLOUR)  # of Pillow, with at most 8 bits per channel
_CHUNK = 32
_LARGEST_SIZE = 8192
# Below this, reading an image's header, which holds the interpreter's lock, takes longer than decoding it, which does
# not: on two idle cores, two threads took 1.4 to 1.6 times as long as one at 32x32, 0.5 to 0.95 times from 64x64 on.
# Smaller images are decoded by processes, where there are enough images to make up for starting the processes.
_PIXELS_WORTH_A_THREAD = 64 * 64
_IMAGES_WORTH_A_PROCESS = 4096


@dataclass(frozen=True)
class DecodedImages:
    """Images of one size, decoded."""

    pixels: Pixels  # (n, 3, H, W), also of grey images; anything where an image is ``wrong``
    colour: bool  # whether one of them has colour
    wrong: list[tuple[int, str]]  # the number of each image that cannot be used, and why

    def checked(self) -> Pixels:
        """Return the pixels, of one channel where every image is grey; raise for the first that cannot be used."""
        if self.wrong:
            raise DataError(self.wrong[0][1])
        return self.pixels if self.colour else np.ascontiguousarray(self.pixels[:, :1])


@dataclass(frozen=True)
class FirstImage:
    """The image whose size all others must have."""

    name: str
    width: int
    height: int

    @property
    def nbytes(self) -> int:
        """What an image of this size takes, with three channels."""
        return 3 * self.width * self.height


def decode_images(
    encoded: Sequence[bytes | Path], name: Callable[[int], str], workers: int, size: int | None = None
) -> Pixels:
    """Decode one or more images of one size to uint8 (n, C, H, W): C is 1 where every image is grey, else 3.

    ``encoded`` are the bytes of each image, or the file that holds them; ``name(i)`` is what messages call image ``i``.
    The rest is as in :func:`decode_batch`.
    """
    first = first_image(encoded[0], name(0), size)
    return decode_batch(encoded, name, workers, size, first, room_for(len(encoded), first)).checked()


def first_image(encoded: bytes | Path, name: str, size: int | None) -> FirstImage:
    """Return the size that the images after this one must have."""
    pillow = need("PIL.Image", "pillow", "decoding images")
    return FirstImage(name, *(_decode(pillow, encoded, name)[0] if size is None else (size, size)))


def room_for(count: int, first: FirstImage) -> Pixels:
    """Return an array for so many images of the size of ``first``, in memory that forked processes share."""
    shape = (count, 3, first.height, first.width)
    return np.frombuffer(mmap.mmap(-1, max(1, math.prod(shape))), np.uint8, math.prod(shape)).reshape(shape)


def decode_batch(
    encoded: Sequence[bytes | Path],
    name: Callable[[int], str],
    workers: int,
    size: int | None,
    first: FirstImage,
    room: Pixels,
) -> DecodedImages:
    """Decode images of the size of ``first`` into the first rows of ``room``, which :func:`room_for` made.

    With ``size`` they may be of any size. Each is turned as its EXIF orientation says, its shorter side is resized to
    ``size`` by Pillow's ``BILINEAR`` filter, and the centre of size x size is cut out.

    ``workers`` is the number of threads, from 64x64 pixels on. Smaller images are decoded by this many processes, where
    there are thousands of them and the system can fork, else by one thread. The pixels do not depend on it.
    """
    pillow = need("PIL.Image", "pillow", "decoding images")
    width, height, pixels = first.width, first.height, room[: len(encoded)]

    def decode_chunk(start: int) -> _Chunk:
        any_colour, wrong = False, []
        for i in range(start, min(start + _CHUNK, len(encoded))):
            try:
                found, colour, row = _decode(pillow, encoded[i], name(i), size)
                if found != (width, height):
                    raise DataError(
                        f"{name(i)}: the image is {found[0]}x{found[1]}, but {first.name} is {width}x{height}: "
                        "bring every image to one size, with size= or --size"
                    )
            except DataError as error:
                wrong.append((i, str(error)))
                continue
            pixels[i] = np.frombuffer(row, np.uint8).reshape(height, 3, width).transpose(1, 0, 2)
            any_colour |= colour
        return any_colour, wrong

    starts = range(0, len(encoded), _CHUNK)
    small = size is None and width * height < _PIXELS_WORTH_A_THREAD
    if workers > 1 and not small:
        with ThreadPoolExecutor(workers, thread_name_prefix="l2h-decode") as pool:
            done = list(pool.map(decode_chunk, starts))
    elif workers > 1 and len(encoded) >= _IMAGES_WORTH_A_PROCESS and "fork" in get_all_start_methods():
        done = _in_processes(decode_chunk, starts, workers)
    else:
        done = [decode_chunk(start) for start in starts]
    return DecodedImages(pixels, any(colour for colour, _ in done), sorted(bad for _, wrong in done for bad in wrong))


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


def _in_processes(decode_chunk: Callable[[int], _Chunk], starts: range, workers: int) -> list[_Chunk]:
    """Decode every ``workers``-th chunk in a forked process, which shares the encoded images and the pixels."""

    def share(first: int, sender: Connection) -> None:
        sender.send([decode_chunk(start) for start in starts[first::workers]])

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
    done: list[_Chunk] = []
    killed = False
    for process, receiver in running:
        try:
            done += receiver.recv()
        except EOFError:
            killed = True
        process.join()
    if killed:
        raise DataError("a decoding process was killed: try again, or give workers=1")
    return done


def _decode(
    pillow: ModuleType, encoded: bytes | Path, name: str, size: int | None = None
) -> tuple[tuple[int, int], bool, bytes]:
    """Return width and height, whether it has colour, and its bytes row by row: all red ones, all green, all blue."""
    source = io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded
    try:
        with pillow.open(source, formats=FORMATS) as image:
            mode = image.mode
            if mode in MODES:
                if size is not None:
                    image.draft(None, (2 * size, 2 * size))  # a large JPEG is decoded no larger than is needed
                rgb = image if mode == "RGB" else image.convert("RGB")
                if size is not None:
                    edit = need("PIL.ImageOps", "pillow", "resizing images")
                    rgb = edit.fit(edit.exif_transpose(rgb), (size, size), pillow.Resampling.BILINEAR)
                return rgb.size, mode in _COLOUR, rgb.tobytes("raw", "RGB;L")
    except Exception as error:  # damaged bytes make Pillow's decoders raise almost anything
        # Pillow's own text ends in the address of a buffer, which tells the reader nothing.
        raise DataError(f"{name}: cannot decode image: {reason(error).split(' <_io.')[0]}") from error
    raise DataError(f"{name}: cannot decode image: mode {mode} is not 8 bits per channel: convert it to RGB or L")
