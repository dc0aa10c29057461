"""Features of a text: counted as by hand, the same alone and in a batch, and whatever the text."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from l2h.errors import SettingsError
from l2h.ngrams import NGrams, inverse_document_frequency, weigh

TEXTS = ["The cat and the cat sat.", "x", "Größe: 5 µm — naïve?", "a" * 3000, "...", "word " * 50]


def ngrams_by_hand(text: str) -> list[Counter[bytes]]:
    """Count runs of 1 and 2 words, and of 2 to 5 bytes, with Python's own tools."""
    data = b" " + text.lower().encode() + b" "
    words = re.findall(rb"[a-z0-9\x80-\xff]+", data)
    runs = [(b"\0".join(words[i : i + n])) for n in (1, 2) for i in range(len(words) - n + 1)]
    characters = [data[i : i + n] for n in (2, 3, 4, 5) for i in range(len(data) - n + 1)]
    return [Counter(runs), Counter(characters)]


@pytest.mark.parametrize("text", TEXTS)
def test_the_counts_are_those_of_counting_by_hand(text: str) -> None:
    grams = NGrams(bits=20)  # so wide that no two n-grams of these texts meet
    counts = grams.count([text])
    for k, expected in enumerate(ngrams_by_hand(text)):
        found = counts.value[(counts.column >> grams.bits) == k]
        assert sorted(found.tolist()) == sorted(expected.values())


def test_the_same_ngram_has_the_same_column_in_every_text() -> None:
    grams = NGrams()
    columns = [set(grams.count([text]).column.tolist()) for text in ("red house", "a red boat", "blue moon")]
    shared = columns[0] & columns[1]
    assert len(shared) >= 1 + len("red ")
    assert len(shared - columns[2]) >= 4


def test_a_text_has_the_same_features_alone_and_among_others() -> None:
    grams = NGrams()
    idf = np.random.default_rng(0).uniform(1, 5, grams.columns).astype(np.float32)
    together = weigh(grams.count(TEXTS), grams, idf, len(TEXTS))
    for i, text in enumerate(TEXTS):
        alone = weigh(grams.count([text]), grams, idf, 1)
        here = together.row == i
        np.testing.assert_array_equal(alone.column, together.column[here])
        np.testing.assert_allclose(alone.value, together.value[here], rtol=1e-12)  # sums in another order


def test_words_and_characters_have_length_1_each() -> None:
    grams = NGrams()
    rows = weigh(grams.count(TEXTS[:1]), grams, np.ones(grams.columns, dtype=np.float32), 1)
    for k in (0, 1):
        assert np.sum(rows.value[(rows.column >> grams.bits) == k] ** 2) == pytest.approx(1.0)


def test_a_rare_ngram_counts_more_and_the_rarest_nothing() -> None:
    grams = NGrams(characters=(5, 5))
    texts = ["often often"] * 8 + ["seldom often"] * 2 + ["once often"]
    counts = grams.count(texts)
    idf = inverse_document_frequency(counts, grams.columns, len(texts), rarest=2)

    def of(word: str) -> float:
        return float(idf[NGrams(words=(1, 1), characters=(5, 5)).count([word]).column[0]])

    assert of("seldom") == pytest.approx(1 + np.log(12 / 3))
    assert of("often") == pytest.approx(1 + np.log(12 / 12))
    assert of("once") == 0.0


@pytest.mark.parametrize("wrong", [{"words": (2, 1)}, {"characters": (0, 3)}, {"bits": 40}])
def test_ngrams_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        NGrams(**wrong)  # type: ignore[arg-type]
