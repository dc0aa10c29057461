"""Lists of numbers within JSON: short ones as arrays, quickly, and long ones in slices.

A parser of JSON holds the interpreter's lock for a whole text and makes an object of every number. Read in slices, a
list takes little more memory than its array, other threads have their turn, and the time can be limited.
"""

import math
import re
import secrets
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
#: A text and how many bytes of it are JSON; None for a text that is too long to be searched.
Source = tuple[bytes | bytearray, int] | None

#: Bytes of a list that a parser may read at once, and of all that a long message has beside such lists.
SHORT = 64 * 1024
#: Bytes of a message that a parser may read at once, and lists and objects in it, which take longer than numbers.
LONG, _MANY = 256 * 1024, 8192
#: Bytes of a slice, and how far beyond its end the next comma may be.
_SLICE, _APART = 64 * 1024, 4096
_OPENING = re.compile(rb'"data"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}(?=\[)')
_SPACE = b" \t\r\n"
#: What numbers, ``true`` and ``false`` are written with.
_VALUE = b"0123456789+-.eEtrufals"
_BLANK = bytes.maketrans(b"[]", b"  ")


def leaf_values(data: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Return the values of a list that is flat, or nested as the shape says; never builds more than the shape has."""
    level = data
    if data and isinstance(data[0], list):
        lists = [data]
        for size in shape:
            if any(type(row) is not list or len(row) != size for row in lists):
                raise ValueError(f"its data is not nested as its shape {list(shape)} says")
            level = lists = [value for row in lists for value in row]
    if len(level) != math.prod(shape):
        raise ValueError(f"{len(level)} values for a shape of {list(shape)}")
    return level


def flat_array(data: list[Any], kind: np.dtype[Any], source: Source) -> Array | None:
    """Return a flat list of numbers that all fit, several times as fast as numpy does; None for any other."""
    numbers = (int, float) if kind.kind == "f" else (int,)
    if not data or type(data[0]) not in numbers or kind.char in "?e" or sys.byteorder != "little":
        return None
    # Python takes true for 1; to look at all values always would take half as long again.
    if (source is None or _flags_in(*source)) and bool in set(map(type, data)):
        return None
    try:
        out: Array = np.frombuffer(bytes(data) if kind.char == "B" else array(kind.char, data), dtype=kind)
    except (TypeError, ValueError, OverflowError):
        return None
    return out if kind.kind != "f" or np.isfinite(out).all() else None


def _flags_in(text: bytes | bytearray, length: int) -> bool:
    """Return whether ``true`` or ``false`` may stand in a list of some JSON, and not only as the value of a key.

    The third letter of both is rare in messages: the few places where it stands are found faster than all values.
    """
    for word in (b"true", b"false"):
        at, letter = length, word[2:3]
        for _ in range(16):
            at = text.rfind(letter, 0, at)
            if at < 0:
                break
            if text.startswith(word, at - 2) and text[max(0, at - 10) : at - 2].rstrip()[-1:] != b":":
                return True
        else:
            return True
    return False


class LongList:
    """The part of a text that is a list of numbers, or of lists of them."""

    def __init__(self, text: bytes | bytearray, start: int, end: int) -> None:
        self._text, self._start, self._end = text, start, end

    def read(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], parse: Callable[[bytes], Array], seconds: float
    ) -> Array:
        """Return the array of a list that is flat, or nested as the shape says; a ValueError where it is neither.

        ``parse`` reads a list of numbers.
        """
        text, at, deadline = self._text, self._start, time.monotonic() + seconds
        nested = text[at + 1 : at + 1 + _APART].lstrip(_SPACE).startswith(b"[")
        count = math.prod(shape)
        if 2 * count > self._end - at:
            raise ValueError(f"too little data for its shape {list(shape)}")
        brackets = _brackets(shape, self._end - at) if nested else b""
        out = np.empty(count, dtype)
        filled = seen = 0
        while at < self._end:
            cut = text.find(b",", at + _SLICE, self._end) + 1 or self._end
            if cut - at > _SLICE + _APART:
                raise ValueError(f"more than {_APART} bytes from one of its values to the next")
            piece = bytes(text[at:cut])
            if nested:
                found = piece.translate(None, _VALUE + _SPACE)
                if not brackets.startswith(found, seen) or not _well_placed(piece):
                    raise ValueError(f"its data is not nested as its shape {list(shape)} says")
                seen, piece = seen + len(found), b"[" + piece.translate(_BLANK)
            elif at > self._start:
                piece = b"[" + piece
            values = parse(piece[:-1] + b"]" if cut < self._end or nested else piece)
            if len(values) > count - filled or not (nested or len(values)):
                raise ValueError(f"its data is not {count} values, as its shape {list(shape)} says")
            out[filled : filled + len(values)] = values
            filled, at = filled + len(values), cut
            if time.monotonic() > deadline:
                raise ValueError(f"its data was not read within {seconds:g} s")
        if seen != len(brackets) or filled != count:
            raise ValueError(f"{filled} values for a shape of {list(shape)}")
        return out.reshape(shape)


def is_long(text: bytes | bytearray, length: int) -> bool:
    """Return whether a JSON text of this length may take a parser more than a few milliseconds."""
    if length <= SHORT:
        return False
    if length > LONG:
        return True
    characters = np.frombuffer(text, np.uint8, length)  # several times as fast as to count them in the text
    return bool(np.count_nonzero(characters == ord("[")) + np.count_nonzero(characters == ord("{")) > _MANY)


def take_out(text: bytes | bytearray, length: int) -> tuple[bytes, dict[str, LongList]]:
    """Replace the long lists of a JSON text, which are values of "data", by words that no sender can know.

    Returns the rest of the text and the lists by those words; a ValueError where the rest is long itself.
    """
    rest: list[bytes] = []
    lists: dict[str, LongList] = {}
    size = begin = at = 0
    while (at := text.find(b'"data"', at, length)) >= 0 and size + at - begin <= SHORT:
        opening = _OPENING.match(text, at, length)
        at += 1
        if opening is None:
            continue
        start = opening.end()
        stop = text.find(b'"', start, length) % (length + 1)  # the end of the text where there is none
        brace = text.find(b"}", start, stop)
        end = text.rfind(b"]", start, stop if brace < 0 else brace) + 1
        if end - start > SHORT:
            word = secrets.token_hex(16)
            lists[word] = LongList(text, start, end)
            rest += bytes(text[begin:start]), b'"%b"' % word.encode()
            size += start - begin
            begin = at = end
    if size + length - begin > SHORT:
        raise ValueError(f"more than {SHORT} bytes beside the numbers of its tensors")
    rest.append(bytes(text[begin:length]))
    return b"".join(rest), lists


def _brackets(shape: tuple[int, ...], most: int) -> bytes:
    """The brackets and commas of nested lists; a ValueError where they are more than ``most`` bytes."""
    out = b""
    for size in reversed(shape):
        if size * (len(out) + 1) > most:
            raise ValueError(f"too little data for its shape {list(shape)}")
        out = b"[" + ((out + b",") * size)[:-1] + b"]"
    return out


def _well_placed(piece: bytes) -> bool:
    """Whether no value stands before an opening bracket or after a closing one."""
    piece = piece.translate(None, _SPACE)
    before, after = piece.split(b"[")[:-1], piece.split(b"]")[1:]
    return all(part[-1:] in b"," for part in before) and all(part[:1] in b"," for part in after)
