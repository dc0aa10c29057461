"""A comparison is fair: one bench, the same nets, samples and steps, and nothing carried from one to the next."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from methods_maker import CPU, clouds, clouds_plan, make, spots, spots_plan
from torch import Tensor

from l2h import methods
from l2h.costs import Costs
from l2h.data import Dataset
from l2h.errors import DataError, RunError, SettingsError
from l2h.experiments.carry_out import divide, make_client, make_system
from l2h.experiments.compare.seed import SeedResult, run_seed, take_classes
from l2h.experiments.plan import Plan
from l2h.methods import Bench, Choice, Inputs, Learned, Method, ReferenceRule, Rule
from l2h.methods.posthoc import POSTHOC
from l2h.training import Context, RejectorStage, repeatable
from l2h.training.together import run_together

pytestmark = pytest.mark.long

#: All forms of net and loss; of the methods on top of a finished client and server, which share one, two.
LEARNED = [
    method
    for method in methods.get(methods.known())
    if isinstance(method, Learned) and (type(method) not in POSTHOC or method.name in ("diff-01", "realizable-bayes"))
]

# The same for every learned method.


@dataclass(frozen=True)
class Begun:
    """A rejector stage as it was before its first step."""

    method: Learned
    stage: RejectorStage
    weights: dict[str, Tensor]

    @property
    def net(self) -> tuple[str, bool]:
        return self.method.net, self.method.student


@pytest.fixture(scope="module", params=["holdout", "crossfit"])
def begun(request: pytest.FixtureRequest) -> tuple[Bench, list[Begun]]:
    """Every learned method trained on one bench of images in two classes, its stage noted as it begins."""
    bench = make(spots_plan(rejector_epochs=2, honest=request.param, folds=2), spots(2, train=240))
    stages = [method.stage(bench) for method in LEARNED]
    weights = [{n: t.detach().clone() for n, t in stage.rejectors.state_dict().items()} for stage in stages]
    for stage in stages:
        run_together([stage], bench.context)
    return bench, [Begun(*one) for one in zip(LEARNED, stages, weights, strict=True)]


def test_all_learn_from_as_many_samples_and_stop_on_the_same(begun: tuple[Bench, list[Begun]]) -> None:
    bench, each = begun
    assert {len(one.stage.pool) for one in each} == {len(bench.soft)} == {len(bench.unseen)}
    assert all(one.stage.held_out is bench.pools.stopping for one in each)
    for one in each:
        assert one.stage.pool is (bench.soft if one.method.soft else bench.unseen)


def test_all_take_the_same_steps_at_most_in_the_same_order_with_the_same_settings(
    begun: tuple[Bench, list[Begun]],
) -> None:
    bench, each = begun
    settings = bench.context.settings.rejector
    assert settings is not None
    assert all(one.stage.settings == settings for one in each)
    assert len({one.stage.steps for one in each}) == 1
    # What an epoch draws depends on the seed, the epoch and this name alone.
    assert {one.stage.draws for one in each} == {"rejector"}
    rows = [row for row in bench.context.history if row["stage"] in methods.known()]
    assert {row["stage"] for row in rows} == {method.name for method in LEARNED}
    for row in rows:
        assert row["steps"] == row["epoch"] * each[0].stage.steps
        assert row["epoch"] <= settings.epochs


def test_nets_of_a_kind_are_equally_large_and_begin_with_the_same_weights(begun: tuple[Bench, list[Begun]]) -> None:
    _, each = begun
    kinds: dict[tuple[str, bool], dict[str, Tensor]] = {}
    for one in each:
        first = {name: tensor[0] for name, tensor in one.weights.items()}
        kind = kinds.setdefault(one.net, first)
        assert {name: tensor.shape for name, tensor in first.items()} == {n: t.shape for n, t in kind.items()}
        for name, tensor in one.weights.items():
            if name.startswith("view_") and one.method.soft:
                continue  # standardised on the samples it learns from, which are others
            assert all(torch.equal(own, kind[name]) for own in tensor), f"{one.method.name}: {name}"
    assert set(kinds) == {("separate", False), ("attached", False), ("attached", True)}
    # Of all kinds, the trunk is the same, to the bit.
    trunks = [{name: t for name, t in kind.items() if name.startswith("trunk.")} for kind in kinds.values()]
    assert trunks[0]
    for trunk in trunks[1:]:
        assert trunk.keys() == trunks[0].keys()
        assert all(torch.equal(trunk[name], trunks[0][name]) for name in trunk)


def test_a_method_for_prices_has_a_rejector_a_price_and_one_for_all_prices_has_one(
    begun: tuple[Bench, list[Begun]],
) -> None:
    bench, each = begun
    for one in each:
        assert one.stage.rejectors.size == (1 if one.method.any_price else len(bench.costs))


def test_outcomes_are_honest_and_what_was_fitted_speaks_only_in_soft_targets() -> None:
    """With a holdout more copies of the honest samples stand in for copies of what the server was fitted to."""
    bench = make(spots_plan(), spots(2, train=240))
    honest, soft = len(bench.pools.unseen), len(bench.soft)
    assert honest < soft == len(bench.unseen)
    assert bench.pools.fitted is not None
    for name in bench.soft.__dataclass_fields__:
        assert torch.equal(getattr(bench.soft, name)[:honest], getattr(bench.unseen, name)[:honest])
    more, fitted = bench.unseen.at(torch.arange(honest, soft)), bench.pools.fitted
    server_p = fitted.server_probability
    assert torch.allclose(fitted.server_target, server_p.amax(-1)), "no 0/1 outcome of a sample the server has seen"
    assert torch.equal(more.server_target, more.server_correct.float()), "outcomes alone"
    assert torch.equal(more.client_target, more.client_correct.float())
    assert torch.equal(more.server_correct, more.server_probability.argmax(-1) == more.y)


# The default is what `l2h train` makes.


def trained(plan: Plan, dataset: Dataset) -> Any:
    """A system as ``l2h train`` makes it, without its folder."""
    parts = divide(dataset, plan)
    with repeatable(plan.settings, CPU):
        client = make_client(plan, dataset, parts, Context(plan.settings, CPU))
    system = make_system(plan, dataset, client)
    system.fit(*parts.train, specs=plan.specs, held_out_rows=parts.held_out_rows)
    return system.calibrate(*parts.calibration)


@pytest.mark.parametrize(
    ("plan", "dataset"),
    [
        (clouds_plan(), clouds(3)),
        (clouds_plan(rejector_options={"width": 4.0}, seed=4), clouds(3)),
        (spots_plan(), spots(4)),
        (replace(spots_plan(), client_share=1.0), spots(4)),
    ],
    ids=["cross-fitted", "of the width of comparisons", "holdout and copies", "client kept from the holdout"],
)
def test_the_row_of_the_default_is_what_the_system_decides(plan: Plan, dataset: Dataset) -> None:
    """Bit for bit: the same seed on the same processor."""
    result = run_seed(plan, dataset, methods.get([methods.DEFAULT]))
    system = trained(plan, dataset)
    for c, costs in enumerate(plan.costs):
        sent = system.predict(dataset.X_test, costs=costs).source == "remote"
        assert np.array_equal(result.remote[0, c], sent)
        report = system.evaluate(dataset.X_test, dataset.y_test, costs)
        assert result.client_correct.mean() == report.accuracy["client"]
        assert result.server_correct.mean() == report.accuracy["server"]
        assert result.gain[0, c] == pytest.approx(report.gains["system"], abs=1e-12)
    assert 0 < result.remote.mean() < 1, "both decisions are made, or the test would say little"


# Nothing is carried over.


SEVERAL = (
    *("random", "confidence", "temperature", "lwa-separate"),
    *("softmax-l2d", "l2h-paper", "priced-attached", "oracle"),
)


@cache
def together() -> SeedResult:
    return run_seed(clouds_plan(), clouds(3), methods.get(SEVERAL))


def same(one: SeedResult, other: SeedResult) -> bool:
    def equal(a: Any, b: Any) -> bool:
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f") if isinstance(a, np.ndarray) else a == b

    return all(equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(SeedResult))


@pytest.mark.parametrize("name", SEVERAL)
def test_a_method_alone_decides_as_after_others(name: str) -> None:
    alone = run_seed(clouds_plan(), clouds(3), methods.get([name]))
    row = SEVERAL.index(name)
    everyone = together()
    for field in ("remote", "as_published", "gain", "curve", "has_published"):
        assert np.array_equal(getattr(alone, field)[0], getattr(everyone, field)[row]), field
    assert alone.facts[name] == everyone.facts[name]


def test_whatever_the_order() -> None:
    backwards = run_seed(clouds_plan(), clouds(3), methods.get(SEVERAL)[::-1])
    assert backwards.names == SEVERAL[::-1]
    assert np.array_equal(backwards.remote[::-1], together().remote)


def test_the_same_seed_gives_the_same_result_and_another_seed_another() -> None:
    again = run_seed(clouds_plan(), clouds(3), methods.get(SEVERAL))
    assert same(again, together())
    other = run_seed(clouds_plan(seed=1), clouds(3), methods.get(["priced-attached"]))
    assert not np.array_equal(other.remote[0], together().remote[SEVERAL.index("priced-attached")])


def test_a_rule_asked_again_in_another_order_of_prices_decides_the_same() -> None:
    bench = make(clouds_plan(), clouds(3))
    test = bench.outcomes(clouds(3).X_test, clouds(3).y_test)
    for name in ("margin", "softmax-l2d", "swapped-separate", "priced-separate"):
        rule = methods.get([name])[0].fit(bench)
        there = [rule.decide(test.inputs, costs) for costs in bench.costs]
        back = [rule.decide(Inputs(test.X, test.client), costs) for costs in bench.costs[::-1]][::-1]
        for one, other in zip(there, back, strict=True):
            assert np.array_equal(one.remote, other.remote)
            assert np.array_equal(one.score, other.score)


# What a rule is handed.


class _Noting(Rule):
    def __init__(self, handed: list[Any]) -> None:
        self.handed = handed

    def decide(self, inputs: Inputs, costs: Costs) -> Choice:
        self.handed.append(inputs)
        return Choice(np.zeros(len(inputs), dtype=bool), np.zeros(len(inputs)))


class Noting(Method):
    """A method whose rule keeps what it is handed."""

    name, title, family, equation = "noting", "Noting", "trivial", "LOCAL"

    def __init__(self) -> None:
        self.handed: list[Any] = []

    def fit(self, bench: Bench) -> Rule:
        return _Noting(self.handed)


def test_a_rule_is_handed_inputs_and_the_clients_answers_and_nothing_else() -> None:
    method, dataset = Noting(), clouds(3)
    run_seed(clouds_plan(), dataset, [method])
    assert len(method.handed) == 2
    for handed in method.handed:
        assert type(handed) is Inputs
        assert set(vars(handed)) == {field.name for field in fields(Inputs)} == {"X", "client"}
        assert handed.X is dataset.X_test
        answers = {field.name for field in fields(handed.client)}
        assert answers == {"label", "log_probability", "embedding", "has_scores"}


def test_only_the_references_know_more() -> None:
    bench = make(clouds_plan(rejector_epochs=1), clouds(2))
    for method in methods.get(methods.known()):
        assert isinstance(method.fit(bench), ReferenceRule) == (method.family == "reference"), method.name


def test_the_truth_of_the_test_set_moves_no_decision_but_a_references() -> None:
    dataset = clouds(3)
    wrong = replace(dataset, y_test=(dataset.y_test + 1) % 3)
    decided = run_seed(clouds_plan(), wrong, methods.get(SEVERAL)).remote
    for row, method in enumerate(methods.get(SEVERAL)):
        assert np.array_equal(decided[row], together().remote[row]) == (method.family != "reference"), method.name


# What a seed leaves on the disk.


def test_a_result_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "seeds" / "seed-0.npz"
    together().save(path)
    back = SeedResult.load(path)
    assert same(back, together())
    assert back.remote.dtype == back.as_published.dtype == back.client_correct.dtype == bool
    assert back.remote.shape == (len(SEVERAL), 2, 150)
    assert [child.name for child in path.parent.iterdir()] == ["seed-0.npz"], "nothing half written is left"


def without(name: str, content: bytes) -> bytes:
    """The same archive without one of its arrays."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(out, "w") as after:
        for entry in before.namelist():
            if entry != f"{name}.npy":
                after.writestr(entry, before.read(entry))
    return out.getvalue()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: b"",
        lambda content: b"not an archive at all",
        lambda content: content[:200] + bytes(40) + content[240:],
        lambda content: without("remote", content),
        lambda content: without("meta", content),
    ],
    ids=["cut in half", "one byte short", "empty", "text", "zeros inside", "an array missing", "no description"],
)
def test_a_damaged_result_is_told_with_its_file_and_what_to_do(damage: Any, tmp_path: Path) -> None:
    path = tmp_path / "seed-0.npz"
    together().save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RunError, match=r"seed-0\.npz is damaged: .*remove it") as caught:
        SeedResult.load(path)
    assert str(path) in str(caught.value)


def test_a_result_without_its_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"seed-7\.npz"):
        SeedResult.load(tmp_path / "seed-7.npz")


def test_facts_are_those_of_one_rejector() -> None:
    facts = together().facts
    assert {name for name, known in facts.items() if known} == {
        "lwa-separate",
        "softmax-l2d",
        "l2h-paper",
        "priced-attached",
    }
    assert json.loads(json.dumps(facts)) == facts
    bench = make(clouds_plan(), clouds(3))
    for name, known in facts.items():
        if known:
            (method,) = methods.get([name])
            module = method.fit(bench).rejectors.module(0)
            assert known["parameters"] == sum(parameter.numel() for parameter in module.parameters())
            assert known["multiply_adds"] > 0
            assert known["steps"] > 0
            assert ("student" in known) == method.student


def test_a_rejector_without_a_trunk_has_no_student_to_tell_of() -> None:
    plan = clouds_plan(rejector_options={"width": 0})
    result = run_seed(plan, clouds(3), methods.get(["softmax-l2d", "shifted-attached", "priced-attached"]))
    assert all(set(known) == {"parameters", "multiply_adds", "steps"} for known in result.facts.values())


# Refusals.


def test_a_method_for_another_number_of_classes_is_refused_before_anything_is_trained() -> None:
    stages: list[str] = []
    with pytest.raises(SettingsError, match="binary-l2h"):
        run_seed(clouds_plan(), clouds(3), methods.get(["all-local", "binary-l2h"]), done=stages.append)
    assert stages == []


@pytest.mark.parametrize("samples", [9, 14])
def test_too_few_samples_for_the_folds(samples: int) -> None:
    dataset = clouds(3)
    few = replace(dataset, X_train=dataset.X_train[:samples], y_train=dataset.y_train[:samples])
    with pytest.raises(DataError, match="too few"):
        run_seed(clouds_plan(folds=5), few, methods.get(["all-local"]))


# Some classes of many.


@pytest.mark.parametrize("names", [("spot 3", "spot 0"), ("spot 1", "spot 2"), ("spot 2", "spot 0", "spot 3")])
def test_the_samples_of_some_classes_are_taken_as_they_are_and_counted_from_0(names: tuple[str, ...]) -> None:
    dataset = spots(4)
    taken = take_classes(dataset, names)
    assert taken.class_names == names
    assert (taken.augment, taken.input_shape) == (dataset.augment, dataset.input_shape)
    for part in ("train", "test"):
        X, y = getattr(dataset, f"X_{part}"), getattr(dataset, f"y_{part}")
        kept = [i for i in range(len(y)) if dataset.class_names[y[i]] in names]
        assert np.array_equal(getattr(taken, f"X_{part}"), X[kept])
        labels = getattr(taken, f"y_{part}")
        assert [taken.class_names[k] for k in labels] == [dataset.class_names[k] for k in y[kept]]
        assert labels.dtype == np.int64
    assert all(name in taken.name for name in names)
    assert dataset.class_names == ("spot 0", "spot 1", "spot 2", "spot 3"), "the whole is left as it was"


def test_all_classes_in_their_order_are_the_data_themselves() -> None:
    dataset = spots(4)
    taken = take_classes(dataset, dataset.class_names)
    for field in ("X_train", "y_train", "X_test", "y_test"):
        assert np.array_equal(getattr(taken, field), getattr(dataset, field))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("spot 0",), "name two or more"),
        ((), "name two or more"),
        (("spot 1", "spot 1"), "each once"),
        (("spot 0", "spot 9"), "no class 'spot 9'; it has: spot 0, spot 1, spot 2, spot 3"),
        (("0", "1"), "no class '0'"),
    ],
)
def test_classes_that_cannot_be_taken(names: tuple[str, ...], told: str) -> None:
    with pytest.raises(DataError, match=told):
        take_classes(spots(4), names)
