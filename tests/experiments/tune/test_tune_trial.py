"""One trial: what it tells while it trains, that it goes on from its checkpoint, and what it takes from others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from l2h.experiments.carry_out import load_data
from l2h.experiments.frontier.study import held_back
from l2h.experiments.plan import Plan, digits_plan
from l2h.experiments.runs import RunTarget
from l2h.experiments.tune.study import TrialBook, at_looks
from l2h.experiments.tune.trial import run_trial, server_key


def quick_plan() -> Plan:
    plan = replace(digits_plan(), limit=300)
    server, rejector = (replace(stage, epochs=3) for stage in (plan.settings.server, plan.settings.rejector))
    return replace(plan, settings=replace(plan.settings, server=server, rejector=rejector, folds=2, copies=0))


@pytest.mark.parametrize("reports", [3, 11])
def test_a_trial_that_is_broken_off_goes_on_to_the_same_end(tmp_path: Path, reports: int) -> None:
    """It ends in the first fold, and in the rejector: then the server is known from its checkpoint."""
    plan = quick_plan()
    dataset = held_back(load_data(plan))
    whole: list[tuple[float, float]] = []
    found = run_trial(plan, dataset, RunTarget(tmp_path / "whole"), lambda *told: whole.append(told))
    shares = [share for share, _ in whole]
    assert shares == [pytest.approx(min(99.9, 100 * k / 12)) for k in range(1, 13)], "three epochs of four stages"

    told: list[tuple[float, float]] = []

    def tell(share: float, risk: float) -> None:
        told.append((share, risk))
        if len(told) == reports:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trial(plan, dataset, RunTarget(tmp_path / "broken"), tell)
    again = run_trial(plan, dataset, RunTarget(tmp_path / "broken", resume=True), tell)
    assert again == found
    assert told == whole


def test_trials_that_differ_in_their_rejectors_train_one_client_and_one_server(tmp_path: Path) -> None:
    plan = replace(quick_plan(), client="lenet5")
    stage = replace(plan.settings.rejector, lr=0.01)
    other = replace(plan, settings=replace(plan.settings, rejector=stage, copies=1), rejector_options={"width": 2})
    dataset = held_back(load_data(plan))

    def run(one: Plan, name: str, shared: Path | None) -> tuple[dict, list]:
        told: list[tuple[float, float]] = []
        return run_trial(one, dataset, RunTarget(tmp_path / name), lambda *risk: told.append(risk), shared), told

    alone = run(other, "alone", None)
    run(plan, "first", tmp_path / "shared")
    assert run(other, "second", tmp_path / "shared") == alone, "as if it had trained everything by itself"
    stages = {path.stem for path in (tmp_path / "second" / "checkpoints").iterdir()}
    assert stages == {"stage-rejector"}, "nothing else was trained"

    assert server_key(other) == server_key(plan)
    for change in ({"server": stage}, {"honest": "holdout"}, {"seed": 1}, {"augment": "none"}, {"device": "cuda"}):
        assert server_key(replace(plan, settings=replace(plan.settings, **change))) != server_key(plan)
    assert server_key(replace(plan, server_options={"width": 2})) != server_key(plan)


def test_trials_are_compared_at_the_same_looks_however_seldom_they_tell() -> None:
    often = [(float(share), 1 - share / 200) for share in range(5, 100, 5)]
    assert at_looks(often) == [(12, pytest.approx(0.925)), (36, pytest.approx(0.8))]
    assert [at_looks(often[:n]) for n in (0, 2, 3)] == [[], [], [(12, pytest.approx(0.925))]]
    assert at_looks([(50.0, 0.3), (99.9, 0.2)]) == [(12, 0.3), (36, 0.3)]


def test_a_trial_that_begins_again_keeps_what_it_told(tmp_path: Path) -> None:
    """Its process is lost after 20%; it goes on from a checkpoint at 10%."""
    book = TrialBook(tmp_path, [{}])
    for share, risk in ((None, None), (10.0, 0.5), (20.0, 0.4), (None, None), (20.0, 0.4), (30.0, 0.3)):
        book.note(0, share, risk)
    book.note(0, None, {"state": "finished", "risk": 0.2})
    assert book.known[0]["curve"] == [(10.0, 0.5), (20.0, 0.4), (30.0, 0.3), (100.0, 0.2)]
