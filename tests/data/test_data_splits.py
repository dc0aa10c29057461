"""A split is disjoint, covers every row, keeps each class's share, and depends on the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from l2h.data import split
from l2h.data.dataset import subset
from l2h.errors import DataError

labels = st.lists(st.integers(0, 6), max_size=200).map(lambda values: np.array(values, np.int64))
weights = st.lists(st.integers(1, 20), min_size=1, max_size=4)
seeds = st.integers(0, 2**32 - 1)


@examples(100)
@given(y=labels, weight=weights, seed=seeds)
def test_parts_are_disjoint_cover_everything_and_repeat(y: np.ndarray, weight: list[int], seed: int) -> None:
    shares = [w / sum(weight) for w in weight]
    parts = split(y, shares, seed)
    assert len(parts) == len(shares)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
    assert all((np.diff(part) > 0).all() for part in parts)
    again = split(y, shares, seed)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


@examples(100)
@given(y=labels, weight=weights, seed=seeds)
def test_each_class_has_its_share_of_each_part(y: np.ndarray, weight: list[int], seed: int) -> None:
    shares = [w / sum(weight) for w in weight]
    # A part is off by less than one row, and by as much again for each part taken before it.
    for place, (share, part) in enumerate(zip(shares, split(y, shares, seed), strict=True)):
        slack = max(1, min(place + 1, len(shares) - 1))
        for label in np.unique(y):
            exact = share * (y == label).sum()
            assert abs((y[part] == label).sum() - exact) < slack + 1e-6


@examples(100)
@given(y=labels, test_percent=st.integers(1, 99), seed=seeds)
def test_the_size_of_a_part_is_its_share_rounded(y: np.ndarray, test_percent: int, seed: int) -> None:
    _, test = split(y, (1 - test_percent / 100, test_percent / 100), seed)
    assert abs(len(test) - len(y) * test_percent / 100) <= 0.5 + 1e-6


def test_another_seed_gives_another_split() -> None:
    y = np.arange(100) % 4
    assert not np.array_equal(split(y, (0.5, 0.5), 0)[0], split(y, (0.5, 0.5), 1)[0])


def test_every_row_is_as_likely_to_be_set_aside() -> None:
    y = np.array([0] * 30 + [1] * 10)
    counts = np.zeros(40)
    for seed in range(2000):
        counts[split(y, (0.8, 0.2), seed)[1]] += 1
    # Binomial with n=2000, p=0.2: its standard deviation is 18, and 5 of them are never met by chance.
    assert np.abs(counts - 400).max() < 5 * 18


@pytest.mark.parametrize("shares", [(), (0.5, 0.6), (1.0, 0.0), (1.5, -0.5), (float("nan"), 0.5), (0.2,)])
def test_shares_that_do_not_divide_the_whole_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(DataError, match="add up to 1"):
        split([0, 1, 0, 1], shares, 0)


def test_bad_labels_and_seeds_are_refused() -> None:
    with pytest.raises(DataError, match=r"shape \(2, 1\)"):
        split([[0], [1]], (0.5, 0.5), 0)
    with pytest.raises(DataError, match="seed=-1"):
        split([0, 1], (0.5, 0.5), -1)


def test_a_smaller_subset_lies_within_a_larger_one() -> None:
    small, large = subset(50, 10, seed=3), subset(50, 20, seed=3)
    assert small is not None
    assert large is not None
    assert len(set(small)) == 10
    assert set(small) < set(large) < set(range(50))
    assert subset(50, 50, seed=3) is None
    assert subset(50, None, seed=3) is None
