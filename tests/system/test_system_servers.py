"""Several servers and a second opinion: who is trained on what, who answers, what is kept, what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from clouds import CLASSES, FEATURES, WEIGHTS, X_TEST, Y_TEST, Counting, X, Y, make, samples, scores, tree
from onnx import TensorProto, helper, numpy_helper
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from torch import nn

import l2h
from l2h import Costs, HelpSystem
from l2h.errors import CostError, L2HError, RunError, SettingsError
from l2h.fitted import FittedSystem
from l2h.training import Context, Progress
from l2h.training.targets import make_pools, train_server

PRICES = {"box": Costs(c_e=0.02), "cloud": Costs(c_e=0.06, c_1=0.7)}
X_CAL, Y_CAL = samples(250, 7)
LONGER = l2h.StageSettings(epochs=12, batch=32, lr=3e-3)


def cloud(inputs: np.ndarray) -> np.ndarray:
    """The posterior of the clouds: the best server there is."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES)) * 1.5
    z = -0.5 * ((inputs[:, None].astype(np.float64) - centres) ** 2).sum(axis=2)
    return np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)


def two(box: Any = "mlp", other: Any = cloud, *, stage: l2h.StageSettings = LONGER, **more: Any) -> HelpSystem:
    given = {"servers": {"box": box, "cloud": other}, **more.pop("given", {})}
    return make(tree(), None, rejector_stage=stage, given=given, **more)


@pytest.fixture(scope="module")
def pair() -> HelpSystem:
    """A trained server and one that is asked, and a student that may answer."""
    system = two(given={"second_opinion": True, "rejector_options": {"width": 1}})
    return system.fit(X, Y).calibrate(X_CAL, Y_CAL)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file that tells three classes apart as the client of the clouds does."""
    inputs, outputs = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", FEATURES), ("scores", CLASSES))
    )
    nodes = [helper.make_node("MatMul", ["x", "weights"], ["scores"])]
    graph = helper.make_graph(nodes, "linear", [inputs], [outputs], [numpy_helper.from_array(WEIGHTS, "weights")])
    path = tmp_path_factory.mktemp("onnx") / "server.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def tensors(fitted: FittedSystem) -> dict[str, torch.Tensor]:
    servers = {f"{s.name}/{n}": t for s in fitted.servers if s.network for n, t in s.network.state_dict().items()}
    assert fitted.calibration is not None
    platt = {"platt": torch.from_numpy(fitted.calibration.platt)}
    return {**fitted.rejectors.state_dict(), **servers, **platt}


def assert_equal(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, two[name]), name


# Who answers.


def test_the_cheapest_answerer_answers_and_is_named(pair: HelpSystem) -> None:
    stated, answers = pair.judge(X_TEST).probability, pair.predict(X_TEST, PRICES)
    assert stated is not None
    prices = [(0.0, 1.0), (0.0, 1.0), (0.02, 1.0), (0.06, 0.7)]
    expected = np.array([[p + w * (1 - q) for (p, w), q in zip(prices, row, strict=True)] for row in stated])
    names = np.array(["client", "student", "box", "cloud"])
    assert answers.by.tolist() == names[expected.argmin(axis=1)].tolist()
    assert set(answers.by) == set(names)
    fitted = pair.require_fitted()
    given = fitted.client.answers(X_TEST, CLASSES)
    _, student = fitted.opinions(X_TEST, given)
    assert student is not None
    network = fitted.servers[0].network
    assert network is not None
    own = {
        "client": given.label,
        "student": student.label[0],
        "box": network(torch.from_numpy(X_TEST)).argmax(1).numpy(),
        "cloud": cloud(X_TEST).argmax(axis=1),
    }
    paid = {"client": 0.0, "student": 0.0, "box": 0.02, "cloud": 0.06}
    for name, label in own.items():
        mine = answers.by == name
        assert np.array_equal(answers.label[mine], label[mine])
        assert (answers.cost[mine] == paid[name]).all()
    assert np.array_equal(answers.source == "remote", np.isin(answers.by, ["box", "cloud"]))


def test_the_report_pays_what_each_answer_costs(pair: HelpSystem) -> None:
    answers, report = pair.predict(X_TEST, PRICES), pair.evaluate(X_TEST, Y_TEST, PRICES)
    wrong = answers.label != Y_TEST
    weight = np.where(answers.by == "cloud", 0.7, 1.0)
    assert report.risk.system == pytest.approx((answers.cost + weight * wrong).mean())
    assert report.accuracy["system"] == pytest.approx(np.mean(~wrong))
    assert report.risk.system < min(report.risk.all_local, report.risk.all_remote)


def test_a_limit_of_one_server_leaves_the_others_free(pair: HelpSystem) -> None:
    free, limited = pair.predict(X_CAL, PRICES), pair.predict(X_CAL, PRICES, limit={"cloud": "2%"})
    assert np.mean(free.by == "cloud") > 0.02 >= np.mean(limited.by == "cloud")
    assert np.mean(limited.by == "box") >= np.mean(free.by == "box")
    nobody = pair.predict(X_TEST, PRICES, limit="0%")
    stated = pair.judge(X_TEST).probability
    assert stated is not None
    assert nobody.by.tolist() == np.where(stated[:, 0] >= stated[:, 1], "client", "student").tolist()


# What they are trained on.


class Remembering(ClassifierMixin, BaseEstimator):
    """A classifier that remembers what it was fitted to."""

    def __init__(self, depth: int = 1) -> None:
        self.depth = depth

    def fit(self, X: np.ndarray, y: np.ndarray) -> Remembering:
        self.seen_ = {row.tobytes() for row in X.astype(np.float32)}
        self.inner_ = LogisticRegression(C=10.0**-self.depth).fit(X, y)
        self.classes_ = self.inner_.classes_
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.inner_.predict_proba(X))


@pytest.mark.filterwarnings("ignore:the server can be trained")
@pytest.mark.parametrize("honest", ["holdout", "crossfit"])
def test_what_is_unseen_by_one_server_is_unseen_by_all(honest: str) -> None:
    asked = Counting(cloud)
    given = {"servers": {"weak": Remembering(4), "cloud": asked, "box": Remembering(1)}}
    system = make(scores, None, given=given, honest=honest)
    job, context = system.prepare(X, Y), Context(system.settings, system.device)
    outcome = train_server(job, context)
    rows = np.concatenate([teachers[0].index for teachers in outcome.teachers])
    assert len(np.unique(rows)) == len(rows)
    for teachers in outcome.teachers:
        assert teachers[1].model is None
        for teacher in (teachers[0], teachers[2]):
            assert np.array_equal(teacher.index, teachers[1].index)
            assert teacher.model is not None
            seen = teacher.model.estimator.seen_
            assert not seen & {X[i].tobytes() for i in teacher.index}
            assert seen | {X[i].tobytes() for i in teacher.index} == {row.tobytes() for row in X}
    assert asked.count == len(rows), "somebody's API is not paid for answers that nobody learns from"
    assert len(rows) == len(X) or honest == "holdout"
    pool = make_pools(job, context, outcome).unseen
    assert outcome.best == 1, "the student is taught by the server that is right most often"
    taught = torch.from_numpy(cloud(pool.x.numpy()).argmax(axis=1))
    assert torch.equal(pool.server_probability.argmax(-1), taught)
    assert torch.equal(pool.server_correct[:, 1], taught == pool.y)


@pytest.mark.parametrize("fixed", [False, True], ids=["all trained", "one fixed"])
def test_changed_copies_of_images_are_learned_from_where_every_server_can_answer_them(fixed: bool) -> None:
    rng = np.random.default_rng(0)
    images, y = rng.integers(0, 256, (90, 1, 8, 8), dtype=np.uint8), rng.integers(0, 2, 90)

    def bright(inputs: np.ndarray) -> np.ndarray:
        return (inputs.mean(axis=(1, 2, 3)) > 127).astype(np.int64)

    servers = {"box": "lenet5", "cloud": bright if fixed else "lenet5"}
    system = make(bright, None, given={"servers": servers}, honest="holdout", augment="shift", copies=2)
    job, context = system.prepare(images, y), Context(system.settings, system.device)
    pools = make_pools(job, context, train_server(job, context))
    if fixed:
        assert pools.fitted is None
        return
    assert pools.fitted is not None
    target, best = pools.fitted.server_target, pools.fitted.server_probability.amax(-1)
    assert target.shape == (2 * (90 - len(pools.stopping) - len(pools.unseen) // 3), 2)
    assert (target >= 0.5).all(), "of two classes the likelier one"
    assert torch.equal(target[:, 0], best) or torch.equal(target[:, 1], best)


def test_the_only_server_needs_no_name() -> None:
    one, named = make(server="mlp").fit(X, Y), make(server=None, given={"servers": {"server": "mlp"}}).fit(X, Y)
    assert_equal(tensors(one.require_fitted()), tensors(named.require_fitted()))
    assert one.require_fitted().history[0]["stage"] == named.require_fitted().history[0]["stage"] == "server fold 1"


def test_a_second_opinion_changes_nothing_but_who_may_answer(pair: HelpSystem) -> None:
    without = two(given={"rejector_options": {"width": 1}}).fit(X, Y).calibrate(X_CAL, Y_CAL)
    fitted, plain = pair.require_fitted(), without.require_fitted()
    assert_equal(tensors(fitted), tensors(plain))
    three, both = pair.judge(X_TEST).probability, without.judge(X_TEST).probability
    assert three is not None
    assert both is not None
    assert np.allclose(three[:, [0, 2, 3]], both, atol=1e-12)
    without.fitted = replace(plain, second_opinion=True)
    assert np.array_equal(without.predict(X_TEST, PRICES).by, pair.predict(X_TEST, PRICES).by)


def test_the_student_states_how_likely_it_is_right(pair: HelpSystem) -> None:
    """It is what another program's minimiser of the penalised log-loss finds on the same features."""
    fitted = pair.require_fitted()
    assert fitted.calibration is not None
    held, platt = fitted.calibration.held_out, fitted.calibration.platt[0]
    assert held.student_features is not None
    assert held.student_correct is not None
    logits = held.scores[0] * platt[:, 0] + platt[:, 1]
    features = np.concatenate([held.student_features[0], logits], axis=1)
    right = held.student_correct[0]

    def penalised(weights: np.ndarray) -> float:
        margin = np.where(right, 1, -1) * (weights[0] + features @ weights[1:])
        return float(np.logaddexp(0, -margin).sum() + 0.1 * (weights**2).sum())

    weights = minimize(penalised, np.zeros(1 + features.shape[1]), tol=1e-8).x
    stated = fitted.held_out_judgement(0).stated["student"]
    assert np.allclose(stated, expit(weights[0] + features @ weights[1:]), atol=1e-3)
    assert stated.mean() == pytest.approx(right.mean(), abs=0.01)
    assert log_loss(right, stated) < log_loss(right, np.full(len(right), right.mean()))


# What is kept.


def test_every_kind_of_server_comes_back(file: Path, tmp_path: Path) -> None:
    given = {
        "servers": {"net": "mlp", "file": file, "trees": LogisticRegression(), "api": cloud},
        "second_opinion": True,
        "server_options": {"net": {"hidden": (8,)}},
    }
    system = make(scores, None, given=given).fit(X, Y)
    folder = system.save(tmp_path / "run")
    assert json.loads((folder / "config.json").read_text())["schema"] == 2
    with pytest.raises(RunError, match=r"'nobody'.*net, file, trees, api"):
        l2h.load(folder, client=scores, servers={"nobody": cloud})
    with pytest.raises(L2HError, match=r"^server api: .*never asked.*servers=\{'NAME': \.\.\.\}"):
        l2h.load(folder, client=scores).evaluate(*samples(7, 50))
    again = l2h.load(folder, client=scores, servers={"api": cloud})
    assert [answerer.name for answerer in again.require_fitted().answerers] == [
        *("client", "student", "net", "file", "trees", "api")
    ]
    assert np.array_equal(again.judge(X_TEST).probability, system.judge(X_TEST).probability)
    for number in range(4):
        ours, theirs = (one.require_fitted().server_log_probability(X_TEST, number) for one in (again, system))
        assert np.allclose(ours, theirs, atol=1e-4)
    limit = {"net": "20%", "all": "30%"}
    assert np.array_equal(again.predict(X_TEST, limit=limit).by, system.predict(X_TEST, limit=limit).by)
    make().fit(X, Y).save(folder)
    assert {path.name for path in (folder / "checkpoints").glob("server*")} == {"server.safetensors"}


def test_two_functions_of_one_name_do_not_share_their_answers(tmp_path: Path) -> None:
    functions = [lambda inputs, of=of: of(inputs) for of in (scores, cloud)]
    system = two(*functions).fit(X, Y, run=tmp_path)
    system.save(tmp_path)
    again = l2h.load(tmp_path).require_fitted()
    for number, function in enumerate((scores, cloud)):
        assert np.array_equal(again.server_log_probability(X, number).argmax(axis=1), function(X).argmax(axis=1))


class Interrupt(Progress):
    """Ends a training after some epochs, as Ctrl-C does."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs
        self.stages: list[str] = []

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        self.stages.append(stage)

    def epoch(self, stage: str, row: Mapping[str, Any]) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_a_training_of_two_servers_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    stage = l2h.StageSettings(epochs=2, batch=64)
    listener = Interrupt(0)
    whole = two("mlp", "mlp", stage=stage).fit(X, Y, progress=listener)
    servers = [f"server {name}{part}" for name in ("box", "cloud") for part in (", fold 1", ", fold 2", "")]
    assert listener.stages == [*servers, "rejector"]
    epochs = len(whole.require_fitted().history)
    for stop in (*np.random.default_rng(0).integers(1, epochs, 3), epochs - 1):
        run = tmp_path / str(stop)
        with pytest.raises(KeyboardInterrupt):
            two("mlp", "mlp", stage=stage).fit(X, Y, run=run, progress=Interrupt(int(stop)))
        again = two("mlp", "mlp", stage=stage).fit(X, Y, run=run, resume=True)
        assert_equal(tensors(again.require_fitted()), tensors(whole.require_fitted()))
    with pytest.raises(L2HError, match="servers"):
        two("mlp", "lenet5", stage=stage).fit(X, Y, run=run, resume=True)
    other = make(tree(), None, rejector_stage=stage, given={"servers": {"cloud": "mlp", "box": "mlp"}})
    with pytest.raises(L2HError, match=r"order of servers was \['box', 'cloud'\], is \['cloud', 'box'\]"):
        other.fit(X, Y, run=run, resume=True)  # the heads of the checkpoint are in the other order


# What is refused.


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"server": "mlp", "servers": {"box": "mlp"}}, "give one server, .* or several"),
        ({}, "give one server, .* or several"),
        ({"servers": {}}, "names no server"),
        ({"servers": {"a box": "mlp"}}, "cannot be called 'a box'"),
        ({"servers": {"student": "mlp"}}, "cannot be called 'student'"),
        ({"servers": {"box": "mlp"}, "server_options": {"width": 2}}, "server_options=.* by name"),
        ({"servers": {"box": "mlp"}, "server_options": {"box": 2}}, "server_options=.* by name"),
        ({"server": "mlp", "train_server": {"box": False}}, "train_server=.* by name"),
        ({"server": {"box": "mlp"}}, "is several servers: give servers="),
        ({"servers": ["mlp", "lenet5"]}, "names no server"),
        ({"servers": {"Box": "mlp", "box": "mlp"}}, "'Box' and 'box' differ in case alone"),
        ({"server": "mlp", "second_opinion": "no"}, "second_opinion='no' must be True or False"),
        ({"servers": {"box": {"not": "a model"}}}, "server box: "),
        (
            {"servers": {"box": "mlp", "cloud": cloud}, "method": "shifted-attached"},
            "trains for one server; there are 2",
        ),
        ({"servers": {"box": "resnet"}}, "server box: unknown model 'resnet'"),
        ({"server": "mlp", "second_opinion": True, "rejector": "separate"}, "second_opinion=True .* 'separate'"),
        ({"server": "mlp", "second_opinion": True, "method": "swapped-attached"}, "second_opinion=True .* every price"),
        (
            {"server": "mlp", "second_opinion": True, "rejector": nn.Linear(4, 2)},
            "second_opinion=True .* 'of your own'",
        ),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_trained(given: dict[str, Any], told: str) -> None:
    with pytest.raises(L2HError, match=told):
        HelpSystem(scores, **given)


def test_a_budget_without_a_student_gives_no_second_opinion() -> None:
    def system(budget: Any) -> HelpSystem:
        return make(scores, "mlp", given={"budget": budget, "second_opinion": True})

    with pytest.raises(L2HError, match=r"needs a student: .* the smallest rejector with a student .* needs") as told:
        system(0).fit(X, Y)
    smallest = int(str(told.value).split()[-1].replace(",", "")) / 1000
    with pytest.raises(L2HError, match="needs a student"):
        system(f"{smallest - 0.001}k").prepare(X, Y)
    assert system(f"{smallest}k").prepare(X, Y).size.options["width"] > 0
    with pytest.raises(SettingsError, match="width 0 has none"):
        make(scores, "mlp", given={"rejector_options": {"width": 0}, "second_opinion": True}).fit(X, Y)


def test_a_server_of_other_classes_is_named(file: Path) -> None:
    with pytest.raises(L2HError, match=r"server cloud: .* 3 scores per sample, the labels have 2 classes"):
        make(lambda x: scores(x)[:, :2], None, given={"servers": {"box": "mlp", "cloud": file}}).fit(X, Y % 2)
    with pytest.raises(L2HError, match=r"server box: .* 5 scores per input"):
        two(lambda inputs: np.ones((len(inputs), 5))).fit(X, Y)
    with pytest.raises(L2HError, match=r"server box: .*expected scores"):
        two(nn.Linear(FEATURES, 7)).fit(X, Y)


def test_prices_fit_the_servers(pair: HelpSystem) -> None:
    for costs in ({"box": Costs(0.1)}, {**PRICES, "cluod": Costs(0.1)}):
        with pytest.raises(CostError, match="the servers are box, cloud"):
            pair.predict(X_TEST, costs)
