"""Texts as sparse rows of numbers: hashed n-grams of words and of characters, computed with numpy alone.

Training and the device call the same code, and integer arithmetic modulo 2**64 is the same everywhere, so that a text
has the same features wherever it is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from l2h.costs import FloatArray
from l2h.errors import SettingsError

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

#: Characters of a text that are read, and the largest ``bits``.
LONGEST, MOST_BITS = 20_000, 20
#: Odd multipliers of the polynomial hash and of its finisher (that of SplitMix64).
_BASE = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
#: Bytes that belong to a word: letters and digits of ASCII, and all of every other script.
_WORD = np.array([chr(i).isalnum() if i < 128 else True for i in range(256)])


class SparseRows(NamedTuple):
    """Rows of a sparse matrix, one after the other; the columns of a row increase."""

    row: Places  # (m,), not decreasing
    column: Places  # (m,)
    value: FloatArray  # (m,)


@dataclass(frozen=True)
class NGrams:
    """Which n-grams of a text are counted, and into how many columns they are hashed.

    The columns of words come before those of characters. Characters are the bytes of lower-case UTF-8; of a longer text
    the first ``LONGEST`` are read.
    """

    words: tuple[int, int] = (1, 2)  # shortest and longest run of words
    characters: tuple[int, int] = (2, 5)  # shortest and longest run of characters
    bits: int = 17  # there are 2**bits columns for words, and as many for characters

    def __post_init__(self) -> None:
        for name in ("words", "characters"):
            low, high = getattr(self, name)
            if not 1 <= low <= high <= 8:
                raise SettingsError(f"{name}=({low}, {high}) must be a shortest and a longest run within 1 to 8")
        if not 8 <= self.bits <= MOST_BITS:
            raise SettingsError(f"bits={self.bits} is not within 8 to {MOST_BITS}")

    @property
    def columns(self) -> int:
        return 2 << self.bits

    def count(self, texts: Sequence[str]) -> SparseRows:
        """Return how often each n-gram occurs in each text."""
        data, owner = _joined(texts)
        mask, keys = np.uint64((1 << self.bits) - 1), []
        for offset, found in (
            (0, _word_ngrams(data, owner, *self.words)),
            (1 << self.bits, _character_ngrams(data, owner, *self.characters)),
        ):
            for hashes, owners in found:
                keys.append(owners * self.columns + offset + (_finished(hashes) & mask).astype(np.int64))
        key = np.sort(np.concatenate(keys))
        first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
        row, column = key[first] >> (self.bits + 1), key[first] & (self.columns - 1)
        return SparseRows(row, column, np.diff(np.append(first, len(key))).astype(np.float64))


def weigh(counts: SparseRows, ngrams: NGrams, idf: npt.NDArray[np.float32], rows: int) -> SparseRows:
    """Return the idf of what a text has, however often; in every row words and characters each have length 1."""
    value = idf[counts.column].astype(np.float64)
    part = 2 * counts.row + (counts.column >> ngrams.bits)
    length = np.sqrt(np.bincount(part, weights=value * value, minlength=2 * rows))
    return counts._replace(value=value / np.maximum(length, 1e-12)[part])


def inverse_document_frequency(counts: SparseRows, columns: int, rows: int, rarest: int) -> FloatArray:
    """Return (columns,) ``1 + log((1 + n) / (1 + texts with it))``; 0 for what is in fewer than ``rarest`` texts."""
    documents = np.bincount(counts.column, minlength=columns)
    return np.where(documents >= rarest, 1.0 + np.log((1 + rows) / (1 + documents)), 0.0)


def _joined(texts: Sequence[str]) -> tuple[npt.NDArray[np.uint8], Places]:
    """All texts as one array of bytes, each with a space before and after, and the text that each byte is of."""
    encoded = [b" " + text[:LONGEST].lower().encode("utf-8", errors="replace") + b" " for text in texts]
    data = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    return data, np.repeat(np.arange(len(encoded)), [len(one) for one in encoded])


def _word_ngrams(
    data: npt.NDArray[np.uint8], owner: Places, shortest: int, longest: int
) -> Iterator[tuple[Hashes, Places]]:
    inside = _WORD[data]
    place = np.flatnonzero(inside)
    if not len(place):
        return
    # Every text begins and ends with a space, so that a word is of one text.
    first = np.flatnonzero(~inside[place - 1])
    length = np.diff(np.append(first, len(place)))
    within = np.arange(len(place)) - np.repeat(first, length)
    powers = np.cumprod(np.full(int(length.max()), _BASE), dtype=np.uint64)
    word = _finished(np.add.reduceat(data[place].astype(np.uint64) * powers[within], first))
    of, run = owner[place[first]], word
    for n in range(1, min(longest, len(word)) + 1):
        if n > 1:
            run = run[:-1] * _BASE + word[n - 1 :]
        if n >= shortest:
            whole = of[: len(run)] == of[n - 1 :]
            yield run[whole], of[: len(run)][whole]


def _character_ngrams(
    data: npt.NDArray[np.uint8], owner: Places, shortest: int, longest: int
) -> Iterator[tuple[Hashes, Places]]:
    run = letter = data.astype(np.uint64)
    for n in range(1, min(longest, len(data)) + 1):
        if n > 1:
            run = run[:-1] * _BASE + letter[n - 1 :]
        if n >= shortest:
            whole = owner[: len(run)] == owner[n - 1 :]
            yield run[whole] + np.uint64(n), owner[: len(run)][whole]


def _finished(hashes: Hashes) -> Hashes:
    """Mix the bits, so that the lowest depend on all of them."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * _MIX_1
    hashes = (hashes ^ (hashes >> np.uint64(27))) * _MIX_2
    return np.asarray(hashes ^ (hashes >> np.uint64(31)))
