"""Decoding of compressed images into one array, several at a time."""

import io
import math
import mmap
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

from l2h.data.reading import need
from l2h.errors import DataError

Pixels = npt.NDArray[np.uint8]

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_GREY = ("1", "L", "LA")
_COLOUR = ("RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr")
_CHUNK = 32
# Below this, reading an image's header, which holds the interpreter's lock, takes longer than decoding it, which does
# not: on two idle cores, two threads took 1.4 to 1.6 times as long as one at 32x32, 0.5 to 0.95 times from 64x64 on.
# Smaller images are decoded by processes, where there are enough images to make up for starting the processes.
_PIXELS_WORTH_A_THREAD = 64 * 64
_IMAGES_WORTH_A_PROCESS = 4096


def decode_images(encoded: Sequence[bytes | Path], name: Callable[[int], str], workers: int) -> Pixels:
    """Decode images of one size.

    Args:
        encoded: the bytes of each image, or the file that holds them. At least one.
        name: returns what messages call image ``i``.
        workers: number of threads, from 64x64 pixels on. Smaller images are decoded by this many processes, where there
            are thousands of them and the system can fork, else by one thread. The pixels do not depend on it.

    Returns:
        uint8 (n, C, H, W): C is 1 where every image is grey, else 3.

    Raises:
        DataError: an image cannot be decoded, has over 8 bits per channel, or differs in size from the first.
        MissingExtraError: Pillow is not installed.
    """
    pillow = need("PIL.Image", "pillow", "decoding images")
    width, height = _decode(pillow, encoded[0], name(0))[0]
    # Shared memory, so that forked processes can write into it.
    shape = (len(encoded), 3, height, width)
    pixels = np.frombuffer(mmap.mmap(-1, math.prod(shape)), np.uint8).reshape(shape)

    def decode_chunk(start: int) -> bool:
        stop = min(start + _CHUNK, len(encoded))
        rows, any_colour = [], False
        for i in range(start, stop):
            size, colour, row = _decode(pillow, encoded[i], name(i))
            if size != (width, height):
                raise DataError(
                    f"{name(i)}: the image is {size[0]}x{size[1]}, but {name(0)} is {width}x{height}: "
                    "bring every image to one size first"
                )
            rows.append(row)
            any_colour |= colour
        chunk = np.frombuffer(b"".join(rows), np.uint8).reshape(stop - start, height, width, 3)
        pixels[start:stop] = chunk.transpose(0, 3, 1, 2)
        return any_colour

    starts = range(0, len(encoded), _CHUNK)
    small = width * height < _PIXELS_WORTH_A_THREAD
    if workers > 1 and not small:
        with ThreadPoolExecutor(workers, thread_name_prefix="l2h-decode") as pool:
            colours = list(pool.map(decode_chunk, starts))
    elif workers > 1 and len(encoded) >= _IMAGES_WORTH_A_PROCESS and "fork" in get_all_start_methods():
        colours = _in_processes(decode_chunk, starts, workers)
    else:
        colours = [decode_chunk(start) for start in starts]
    return pixels if any(colours) else np.ascontiguousarray(pixels[:, :1])


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


def _decode(pillow: ModuleType, encoded: bytes | Path, name: str) -> tuple[tuple[int, int], bool, bytes]:
    """Return width and height, whether it has colour, and its RGB bytes row by row."""
    source = io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded
    try:
        with pillow.open(source, formats=FORMATS) as image:
            mode = image.mode
            if mode in _GREY or mode in _COLOUR:
                rgb = image if mode == "RGB" else image.convert("RGB")
                return image.size, mode in _COLOUR, rgb.tobytes()
    except Exception as error:  # damaged bytes make Pillow's decoders raise almost anything
        # Pillow's own text ends in the address of a buffer, which tells the reader nothing.
        reason = str(error).split(" <_io.")[0] or type(error).__name__
        raise DataError(f"{name}: cannot decode image: {reason}") from error
    raise DataError(f"{name}: cannot decode image: mode {mode} is not 8 bits per channel: convert it to RGB or L")
