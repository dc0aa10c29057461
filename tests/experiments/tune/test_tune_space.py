"""What a search draws, and the risk by which it compares trainings that are not finished."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2h.errors import SettingsError
from l2h.experiments.overrides import as_texts, read_values
from l2h.experiments.tune.space import TriedSetting, draw_trials, parse_tried
from l2h.experiments.tune.trial import best_cut


def test_draws_stay_in_their_ranges_and_spread_over_decades() -> None:
    tried = parse_tried(
        ["server.lr=0.0001..0.1", "rejector.epochs=5..20", "distill=0..1", "server.optimizer=sgd,adamw"]
    )
    trials = draw_trials(tried, 200, seed=3)
    assert trials[0] == {}, "the first is the plan as it is"
    rates = np.array([trial["server.lr"] for trial in trials[1:]])
    assert ((rates >= 1e-4) & (rates <= 0.1)).all()
    decades = np.histogram(np.log10(rates), [-4, -3, -2, -1])[0]
    assert decades.min() > 0.8 * 199 / 3 - 3 * math.sqrt(199 * 2 / 9), "a third in each, within three deviations"
    assert {type(trial["rejector.epochs"]) for trial in trials[1:]} == {int}
    assert {trial["rejector.epochs"] for trial in trials[1:]} == set(range(5, 21))
    assert {trial["server.optimizer"] for trial in trials[1:]} == {"sgd", "adamw"}
    assert not any(one.by_logarithm for one in tried[1:])


def test_more_trials_begin_with_the_same_ones_and_none_comes_twice() -> None:
    tried = parse_tried(["server.lr=0.0001..0.1", "copies=0,1,2"])
    few, many = draw_trials(tried, 5, seed=0), draw_trials(tried, 12, seed=0)
    assert many[:5] == few
    assert draw_trials(tried, 5, seed=1)[1:] != few[1:]
    grid = draw_trials(parse_tried(["copies=0,1,2", "honest=holdout,none"]), 100, seed=0)
    assert len(grid) == 1 + 6
    assert all(grid.count(trial) == 1 for trial in grid)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server.lr", "write NAME=LOW..HIGH"),
        ("server.lr=", "write NAME=LOW..HIGH"),
        ("server.lr=0.1..0.01", "the lower one first"),
        ("server.lr=a..b", "two numbers"),
        ("server.lr=0.1", "two values or more"),
        ("copies=1,1", "each once"),
        ("seed=1,2", "known are"),
        ("device=cpu,cuda", "known are"),
        ("nothing=1,2", "known are"),
        ("client.max_depth=2,4", "cannot change"),
    ],
)
def test_what_cannot_be_tried_is_refused(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        TriedSetting.parse(text)


def test_a_name_is_tried_once() -> None:
    with pytest.raises(SettingsError, match="given twice"):
        parse_tried(["copies=1,2", "copies=3,4"])
    with pytest.raises(SettingsError, match="--try"):
        parse_tried([])


@pytest.mark.parametrize("text", ["rejector.patience=none,8", "server.lr=1e-05..0.01", "box.dropout=true,false"])
def test_what_is_tried_is_written_as_it_is_given(text: str) -> None:
    assert str(TriedSetting.parse(text)) == text


def test_values_are_settings_or_options_of_models() -> None:
    values = {"server.lr": 1e-05, "server.width": 2, "rejector.patience": None, "copies": 3, "box.width": 4}
    sets, options = as_texts(values)
    assert sets == ["server.lr=1e-05", "rejector.patience=none", "copies=3"]
    assert options == ["server.width=2", "box.width=4"]


def test_all_combinations_of_a_small_range_are_drawn_and_no_time_is_spent_on_more() -> None:
    assert len(draw_trials(parse_tried(["rejector.epochs=10..40"]), 2000, seed=0)) == 1 + 31


@pytest.mark.parametrize(
    "content",
    [
        *("", "[1]", '{"server": {"lr": 1}}', '{"server.lr": NaN}', '{"server.lr": "fast"}', '{"": 1}'),
        *('{"server.lr=3": 1}', '{"server": "alexnet"}', '{"seed": 1}'),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(tmp_path, content: str) -> None:
    path = tmp_path / "best.json"
    path.write_text(content)
    with pytest.raises(SettingsError, match=r"--settings .*best\.json"):
        read_values(path)


def test_a_file_may_hold_settings_of_the_papers_recipe(tmp_path) -> None:
    path = tmp_path / "best.json"
    path.write_text('{"dropout": true, "start": 2, "augment": null}')
    assert read_values(path) == {"dropout": True, "start": 2, "augment": None}


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_the_best_cut_is_the_best_of_all_cuts(samples: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    score, local, remote = rng.permutation(samples).astype(float), rng.random(samples), rng.random(samples)
    every = [np.where(score >= cut, remote, local).mean() for cut in range(samples + 1)]
    assert best_cut(score, local, remote) == pytest.approx(min(every))
