"""Answers take one bit per sample, and the number of samples is checked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2h.training.exchange import SnapshotError, pack_answers, unpack_answers


@given(st.lists(st.booleans(), max_size=300))
def test_answers_come_back_in_one_bit_each(answers):
    packed = pack_answers(np.array(answers, dtype=bool))
    assert len(packed) == -(-len(answers) // 8)
    assert unpack_answers(packed, len(answers)).tolist() == answers


@given(st.lists(st.booleans(), min_size=1, max_size=100), st.integers(0, 200))
def test_another_number_of_samples_never_passes_for_more(answers, n):
    packed = pack_answers(np.array([*answers[:-1], True]))
    if -(-n // 8) != len(packed) or n < len(answers):  # the last answer is a one: a shorter count would lose it
        with pytest.raises(SnapshotError, match=str(n)):
            unpack_answers(packed, n)
    else:
        assert unpack_answers(packed, n).sum() == sum(answers[:-1]) + 1


def test_fifty_thousand_samples_are_thousands_of_times_less_than_alexnet():
    alexnet_for_ten_classes = 57_044_810 * 4  # parameters, in float32
    assert alexnet_for_ten_classes / len(pack_answers(np.ones(50_000, dtype=bool))) > 5_000


@pytest.mark.parametrize("bad", [np.ones(3), np.ones((2, 2), dtype=bool), [1, 0]], ids=["float", "matrix", "int"])
def test_only_vectors_of_booleans_are_packed(bad):
    with pytest.raises(SnapshotError, match="booleans"):
        pack_answers(bad)
