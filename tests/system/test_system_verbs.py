"""``HelpSystem``: the verbs and their order, servers and rejectors of the user's own, prices, saving."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clouds import (
    CLASSES,
    FEATURES,
    X_TEST,
    Y_TEST,
    Counting,
    Net,
    NetWithFeatures,
    X,
    Y,
    exported_program,
    labels,
    make,
    onnx_file,
    samples,
    scores,
    settings,
    torch_script,
    tree,
)
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import l2h
from l2h import Costs, HelpSystem, StochasticClient
from l2h.decision import RejectorSpec
from l2h.errors import L2HWarning, ModelError, NotFittedError, RunError, SettingsError
from l2h.metrics import expected_calibration_error
from l2h.models.rejectors import client_view_size
from l2h.remote import RemoteError

CENTRES = np.random.default_rng(0).normal(size=(CLASSES, FEATURES)) * 1.5


def good_scores(inputs: np.ndarray) -> np.ndarray:
    """The posterior of the samples' clouds: the best server there can be."""
    z = -0.5 * ((inputs[:, None].astype(np.float64) - CENTRES) ** 2).sum(axis=2)
    z -= z.max(axis=1, keepdims=True)
    return np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)


def good_labels(inputs: np.ndarray) -> np.ndarray:
    return good_scores(inputs).argmax(axis=1)


# The order of the verbs.


@pytest.mark.parametrize("verb", ["calibrate", "predict", "evaluate", "judge", "save", "export"])
def test_a_verb_before_fit_says_so(verb: str, tmp_path: Path) -> None:
    arguments = {"predict": (X,), "judge": (X,), "save": (tmp_path / "run",), "export": (tmp_path / "run",)}.get(
        verb, (X, Y)
    )
    with pytest.raises(NotFittedError, match=r"call fit\(X, y\) first"):
        getattr(make(), verb)(*arguments)
    with pytest.raises(NotFittedError, match=r"call fit\(X, y\) first"):
        _ = make().specs
    assert not (tmp_path / "run").exists()


def test_the_verbs_chain_and_report_the_same_decisions() -> None:
    system = make(scores, good_scores, rejector_stage=l2h.StageSettings(epochs=8, batch=32, lr=3e-3))
    assert system.fit(X, Y) is system
    assert system.calibrate(*samples(100, 7)) is system
    costs = Costs(c_e=0.3, c_1=0.8)
    answers, report = system.predict(X_TEST, costs), system.evaluate(X_TEST, Y_TEST, costs)
    remote = answers.source == "remote"
    assert np.array_equal(remote, report.remote)
    assert 0 < remote.mean() < 1
    assert np.array_equal(answers.label, np.where(remote, report.server_label, report.client_label))
    assert np.array_equal(report.client_label, labels(X_TEST))
    assert np.array_equal(answers.cost, np.where(remote, 0.3, 0.0))
    loss = np.where(remote, 0.3 + 0.8 * (report.server_label != Y_TEST), (report.client_label != Y_TEST).astype(float))
    assert report.risk.system == pytest.approx(loss.mean())
    assert report.risk.confidence is not None


def test_without_held_out_samples_evaluate_warns_until_calibrated() -> None:
    system = make(recipe="paper", loss="shifted").fit(X, Y, costs=Costs(c_e=0.1))
    with pytest.warns(L2HWarning, match="calibrate"):
        report = system.evaluate(X_TEST, Y_TEST)
    assert report.risk.confidence is None
    report = system.calibrate(*samples(100, 7)).evaluate(X_TEST, Y_TEST)
    assert report.risk.confidence is not None


# Servers and rejectors of the user's own.


def plain_net(outputs: int) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(FEATURES, 12), nn.ReLU(), nn.Linear(12, outputs))


class Asks(nn.Module):
    """A rejector that reads the client's view."""

    uses_client = True

    def __init__(self, size: int = client_view_size(CLASSES)) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.net = nn.Linear(FEATURES + size, 2)

    def forward(self, x: Tensor, view: Tensor) -> Tensor:
        return self.net(torch.cat([x, view], dim=1))


def normed() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(FEATURES, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))


@pytest.mark.parametrize("recipe", ["default", "paper"])
@pytest.mark.parametrize("rejector", [lambda: plain_net(2), Asks, normed], ids=["plain", "uses client", "batch norm"])
def test_modules_of_the_user_are_trained_as_copies(rejector: Any, recipe: str) -> None:
    """The given modules stay as they are; what the system holds has moved away from them, statistics included."""
    given_server, given_rejector = plain_net(CLASSES), rejector()
    before = [{k: v.clone() for k, v in net.state_dict().items()} for net in (given_server, given_rejector)]
    more = {"recipe": "paper", "loss": "shifted"} if recipe == "paper" else {}
    system = make(scores, given_server, given_rejector, **more).fit(X, Y, costs=Costs(c_e=0.1))
    for net, state in zip((given_server, given_rejector), before, strict=True):
        assert all(torch.equal(state[name], tensor) for name, tensor in net.state_dict().items())
    assert not torch.equal(system.fitted.servers[0].network.state_dict()["net.0.weight"], before[0]["0.weight"])
    trained = system.fitted.rejectors.module(0).net
    moved = [not torch.equal(before[1][name], tensor) for name, tensor in trained.state_dict().items()]
    assert all(moved)
    # The decision is the module's own output, in evaluation mode.
    x = torch.from_numpy(X_TEST)
    answers = system.client.answers(X_TEST, CLASSES)
    view = l2h.models.rejectors.client_view(torch.from_numpy(answers.log_probability))
    with torch.no_grad():
        expected = trained.eval()(x, view) if getattr(trained, "uses_client", False) else trained.eval()(x)
    assert np.allclose(system.judge(X_TEST, Costs(c_e=0.1)).scores, expected.numpy(), atol=1e-5)


def test_a_trained_server_answers_where_it_is_asked() -> None:
    system = make(scores, plain_net(CLASSES)).fit(X, Y)
    answers = system.predict(X_TEST, Costs(c_e=0))
    remote = answers.source == "remote"
    with torch.no_grad():
        expected = system.fitted.servers[0].network(torch.from_numpy(X_TEST)).argmax(1).numpy()
    assert remote.any()
    assert np.array_equal(answers.label[remote], expected[remote])


def test_batch_norm_rejectors_trained_at_once_keep_their_own_statistics() -> None:
    """Each judges as it does when trained alone. 1e-3: see the batches under AdamW in the tests of training."""
    prices = [Costs(c_e=0.1), Costs(c_e=0.4, c_1=0.5)]
    together = make(scores, "mlp", normed(), loss="shifted").fit(X, Y, costs=prices)
    for costs in prices:
        alone = make(scores, "mlp", normed(), loss="shifted").fit(X, Y, costs=costs)
        assert np.allclose(together.judge(X_TEST, costs).scores, alone.judge(X_TEST, costs).scores, atol=1e-3)


@pytest.mark.parametrize(
    ("server", "rejector", "told"),
    [
        (plain_net(CLASSES + 1), "attached", r"server gives \(2, 4\).*expected scores \(2, 3\)"),
        (nn.Linear(FEATURES + 1, CLASSES), "attached", "server failed on inputs of shape"),
        ("mlp", plain_net(3), r"rejector gives .*expected two numbers"),
    ],
    ids=["outputs", "inputs", "rejector"],
)
def test_modules_that_do_not_fit_their_place_are_refused(server: Any, rejector: Any, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        make(scores, server, rejector).fit(X, Y)


# A server that is somebody's API.


@pytest.mark.parametrize("function", [good_scores, good_labels], ids=["probabilities", "labels"])
def test_a_fixed_server_is_asked_once_for_each_training_sample(function: Any) -> None:
    server = Counting(function)
    system = make(scores, server).fit(X, Y)
    assert system.fitted.servers[0].network is None
    assert {row["stage"] for row in system.fitted.history} == {"rejector"}
    assert server.count == len(X)
    asked = np.concatenate(server.asked)
    assert np.array_equal(np.sort(asked, axis=0), np.sort(X, axis=0))
    report = system.evaluate(X_TEST, Y_TEST)
    assert report.accuracy["server"] == pytest.approx(np.mean(good_labels(X_TEST) == Y_TEST))


@pytest.mark.parametrize("costs", [Costs(c_e=0.02), Costs(c_e=0.15), Costs(c_e=5)], ids=str)
def test_predict_asks_a_fixed_server_only_for_what_it_sends(costs: Costs) -> None:
    server = Counting(good_scores)
    system = make(scores, server).fit(X, Y)
    server.asked.clear()
    server.calls = 0
    answers = system.predict(X_TEST, costs)
    remote = answers.source == "remote"
    sent = np.concatenate(server.asked) if server.asked else np.zeros((0, FEATURES), np.float32)
    assert np.array_equal(sent, X_TEST[remote])
    assert (server.calls > 0) == bool(remote.any())
    assert np.array_equal(answers.label[remote], good_labels(X_TEST)[remote])
    assert np.array_equal(answers.label[~remote], labels(X_TEST)[~remote])
    if costs.c_e > 1:
        assert not remote.any()


def test_a_fixed_onnx_or_torch_server_is_not_trained(tmp_path: Path) -> None:
    expected = Net().eval()(torch.from_numpy(X_TEST)).argmax(1).numpy()
    net = Net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    path = onnx_file(tmp_path)
    for server, given in ((path, {}), (str(path), {}), (net, {"train_server": False})):
        system = make(scores, server, given=given).fit(X, Y)
        assert system.fitted.servers[0].network is None
        assert {row["stage"] for row in system.fitted.history} == {"rejector"}
        assert np.array_equal(system.evaluate(X_TEST, Y_TEST).server_label, expected)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_a_function_cannot_be_asked_to_train() -> None:
    with pytest.raises(ModelError, match="cannot be trained"):
        make(scores, good_scores, given={"train_server": True})


# Prices.


def test_a_new_price_needs_no_new_training() -> None:
    """The priced decisions at any prices are the formula on q_m and q_e, and nothing of the system changes."""
    system = make().fit(X, Y)
    judged = system.judge(X_TEST)
    weights = {name: tensor.clone() for name, tensor in system.fitted.rejectors.state_dict().items()}
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(25):
        c_e, c_1 = rng.uniform(0, 0.6), rng.uniform(0, 2)
        remote = system.predict(X_TEST, Costs(c_e=c_e, c_1=c_1)).source == "remote"
        margin = (1 - judged.probability[:, 0]) - (c_e + c_1 * (1 - judged.probability[:, 1]))
        clear = np.abs(margin) > 1e-12  # a tie may round either way in another grouping
        assert np.array_equal(remote[clear], margin[clear] >= 0)
        rates.append(remote.mean())
    assert max(rates) - min(rates) > 0.3
    assert all(torch.equal(weights[name], tensor) for name, tensor in system.fitted.rejectors.state_dict().items())


def test_sending_falls_as_the_price_rises() -> None:
    system = make().fit(X, Y)
    answers = [system.predict(X_TEST, Costs(c_e=c_e)) for c_e in (0, 0.05, 0.1, 0.3, 1)]
    sent = [set(np.flatnonzero(a.source == "remote")) for a in answers]
    assert all(later <= earlier for earlier, later in pairwise(sent))
    assert len(sent[0]) > len(sent[-1])


def test_four_costs_are_priced_as_they_are() -> None:
    """Local right 1, local wrong 11, remote right 2, remote wrong 9: expected losses compared directly."""
    system = make().fit(X, Y)
    costs = Costs.from_outcomes(c_cc=1, c_ce=11, c_sc=2, c_se=9)
    judged = system.judge(X_TEST)
    local = 1 * judged.probability[:, 0] + 11 * (1 - judged.probability[:, 0])
    remote = 2 * judged.probability[:, 1] + 9 * (1 - judged.probability[:, 1])
    answers = system.predict(X_TEST, costs)
    assert np.array_equal(answers.source == "remote", remote <= local)
    assert set(answers.cost) <= {1.0, 2.0}
    report = system.evaluate(X_TEST, Y_TEST, costs)
    sent = report.remote
    paid = np.where(
        sent, np.where(report.server_label == Y_TEST, 2.0, 9.0), np.where(report.client_label == Y_TEST, 1.0, 11.0)
    )
    assert report.risk.system == pytest.approx(paid.mean())
    # The same prices in another currency decide the same.
    assert np.array_equal(system.predict(X_TEST, costs.scaled(3.7)).source, answers.source)


@pytest.mark.parametrize("loss", ["shifted", "swapped", "paper"])
def test_a_rejector_for_a_price_answers_for_that_price_only(loss: str) -> None:
    trained = [Costs(c_e=0.05), Costs(c_e=0.4, c_1=0.5), Costs.from_outcomes(0, 2, 1, 2)]
    system = make(loss=loss).fit(X, Y, costs=trained)
    for i, costs in enumerate(trained):
        judged = system.judge(X_TEST, costs)
        assert judged.probability is None
        expected = system.fitted.rejectors.scores(*_inputs(system), system.fitted.context)[i].numpy()
        assert np.array_equal(judged.scores, expected)
        remote = system.predict(X_TEST, costs).source == "remote"
        assert np.array_equal(remote, ~(expected[:, 0] > expected[:, 1]))
    for verb in (system.predict, system.judge):
        with pytest.raises(SettingsError, match=r"trained for c_1=1, c_e=0\.2; .*c_1=1, c_e=0\.05.*c_1=0\.5, c_e=0\.4"):
            verb(X_TEST, Costs(c_e=0.2))
    with pytest.raises(SettingsError, match="say which"):
        system.predict(X_TEST)
    with pytest.raises(SettingsError, match=r"trains for a price: fit\(X, y, costs="):
        make(loss=loss).fit(X, Y)


def _inputs(system: HelpSystem) -> tuple[Tensor, Tensor]:
    from l2h.training.job import view_tensor

    return torch.from_numpy(X_TEST), view_tensor(system.client.answers(X_TEST, CLASSES), torch.device("cpu"))


def test_one_price_trained_is_the_price_used() -> None:
    costs = Costs(c_e=0.25, c_1=0.5)
    system = make(loss="shifted").fit(X, Y, costs=costs)
    assert np.array_equal(system.predict(X_TEST).source, system.predict(X_TEST, costs).source)
    assert system.evaluate(X_TEST, Y_TEST).costs == costs


def test_a_price_learned_shows_in_the_decisions() -> None:
    """Free requests to a perfect server are nearly all worth it; at a price above 1 none is."""
    stage = l2h.StageSettings(epochs=15, batch=32, lr=5e-3)
    for loss in ("shifted", "swapped"):
        prices = [Costs(c_e=0.0), Costs(c_e=2.0)]
        system = make(scores, good_labels, loss=loss, rejector_stage=stage).fit(X, Y, costs=prices)
        free, dear = ((system.predict(X_TEST, costs).source == "remote").mean() for costs in prices)
        assert dear < 0.02
        assert free > 0.3


# Calibration.


@pytest.mark.parametrize("factor", [4.0, 0.2])
def test_calibration_cures_heads_that_say_too_much_or_too_little(factor: float) -> None:
    """The heads' last layers scaled by hand; calibrate() must bring the error on fresh samples back down."""
    stage = l2h.StageSettings(epochs=15, batch=32, lr=3e-3)
    system = make(scores, good_scores, rejector_stage=stage).fit(*samples(800, 11))
    X_fresh, y_fresh = samples(1500, 12)
    with torch.no_grad():
        for name, tensor in system.fitted.rejectors.params.items():
            if name.startswith(("head", "skip")):
                tensor.mul_(factor)
    client_right, server_right = labels(X_fresh) == y_fresh, good_labels(X_fresh) == y_fresh

    def errors() -> tuple[float, float]:
        judged = system.judge(X_fresh)
        return (
            expected_calibration_error(judged.probability[:, 0], client_right),
            expected_calibration_error(judged.probability[:, 1], server_right),
        )

    before = errors()
    after = system.calibrate(*samples(1000, 13)) and errors()
    # 1,500 fresh samples in 10 bins: an honest head shows an error of about 0.02 by chance alone.
    for head_before, head_after in zip(before, after, strict=True):
        assert head_after < head_before
        assert head_after < 0.05
    assert max(before) > 0.06


def test_calibration_keeps_the_order_of_a_head() -> None:
    """Scale and shift only: whoever was ranked higher still is, unless the head is worse than nothing."""
    system = make(scores, good_scores, rejector_stage=l2h.StageSettings(epochs=10, batch=32, lr=3e-3)).fit(X, Y)
    before = system.judge(X_TEST)
    after = system.calibrate(*samples(400, 13)).judge(X_TEST)
    assert np.array_equal(before.scores, after.scores)
    assert (system.fitted.calibration.platt[0, :, 0] > 0).all()
    assert np.array_equal(
        np.argsort(before.probability[:, 0], kind="stable"), np.argsort(after.probability[:, 0], kind="stable")
    )


# Saving and loading.


def assert_same_system(one: HelpSystem, two: HelpSystem) -> None:
    for costs in (Costs(c_e=0.03), Costs(c_e=0.2, c_1=0.7)):
        first, second = one.predict(X_TEST, costs), two.predict(X_TEST, costs)
        assert np.array_equal(first.source, second.source)
        assert np.array_equal(first.label, second.label)
    report, again = one.evaluate(X_TEST, Y_TEST), two.evaluate(X_TEST, Y_TEST)
    assert report.as_dict()["risk"] == again.as_dict()["risk"]


KEPT = {
    "torch": lambda folder: Net(),
    "torch with features": lambda folder: NetWithFeatures(),
    "ONNX": onnx_file,
    "scikit-learn": lambda folder: tree(),
    "logistic regression": lambda folder: LogisticRegression().fit(X[:60], Y[:60]),
    "some classes": lambda folder: LogisticRegression().fit(X[Y > 0], Y[Y > 0]),
    "named": lambda folder: l2h.models.registry.build_scaled("mlp", (FEATURES,), CLASSES),
}
GIVEN = {
    "callable": lambda folder: scores,
    "labels": lambda folder: labels,
    "stochastic": lambda folder: StochasticClient(lambda x, rng: scores(x) + rng.normal(size=(1, CLASSES)), seed=2),
    "TorchScript": lambda folder: torch_script(),
    "exported program": lambda folder: exported_program(),
}


@pytest.mark.parametrize("kind", KEPT)
def test_a_client_that_can_be_saved_comes_back(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    system = make(KEPT[kind](tmp_path)).fit(X, Y)
    folder = system.save(tmp_path / "run")
    assert not [path for path in folder.rglob("*") if path.suffix in (".pkl", ".pickle", ".pt", ".pth")]
    assert_same_system(system, l2h.load(folder))


@pytest.mark.parametrize("kind", GIVEN)
def test_a_client_whose_code_is_not_in_the_folder_must_be_given_again(kind: str, tmp_path: Path) -> None:
    client = GIVEN[kind](tmp_path)
    system = make(client).fit(X, Y)
    folder = system.save(tmp_path / "run")
    with pytest.raises(RunError, match=r"client of .* is not in it: give it with l2h\.load\(folder, client="):
        l2h.load(folder)
    assert_same_system(system, l2h.load(folder, client=client))


def test_servers_and_rejectors_of_the_user_must_be_given_again(tmp_path: Path) -> None:
    """Their trained weights are in the folder; only the code is not. What is given keeps its own weights."""
    system = make(tree(), plain_net(CLASSES), Asks()).fit(X, Y)
    folder = system.save(tmp_path / "run")
    with pytest.raises(RunError, match=r"server of .*l2h\.load\(folder, server="):
        l2h.load(folder)
    with pytest.raises(RunError, match=r"rejector of .*l2h\.load\(folder, rejector="):
        l2h.load(folder, server=plain_net(CLASSES))
    server, rejector = plain_net(CLASSES), Asks()
    before = server[0].weight.clone()
    assert_same_system(system, l2h.load(folder, server=server, rejector=rejector))
    assert torch.equal(server[0].weight, before)
    with pytest.raises(RunError, match="does not fit"):
        l2h.load(folder, server=plain_net(CLASSES), rejector=plain_net(2))


@pytest.mark.parametrize("kind", ["callable", "torch", "ONNX", "scikit-learn"])
def test_a_fixed_server_comes_back_and_stays_fixed(kind: str, tmp_path: Path) -> None:
    """From the folder where it could be written there, and wherever it is given again."""
    makers = {"callable": lambda: good_scores, "torch": Net, "ONNX": lambda: onnx_file(tmp_path), "scikit-learn": tree}
    server = makers[kind]()
    given = {"train_server": False} if kind == "torch" else {}
    system = make(tree(), server, given=given).fit(X, Y)
    folder = system.save(tmp_path / "run")
    if kind == "callable":
        with pytest.raises(RemoteError, match=r"l2h\.load\(folder, server="):
            l2h.load(folder).evaluate(*samples(5, 99))
    else:
        assert_same_system(system, l2h.load(folder))
    again = l2h.load(folder, server=server)
    assert again.fitted.servers[0].network is None
    assert_same_system(system, again)


@pytest.mark.parametrize("loss", ["priced", "shifted", "paper"])
@pytest.mark.parametrize("rejector", ["attached", "separate"])
def test_every_loss_and_rejector_comes_back(loss: str, rejector: str, tmp_path: Path) -> None:
    prices = [Costs(c_e=0.03), Costs(c_e=0.2, c_1=0.7)]
    torch.manual_seed(3)
    client = KEPT["named"](tmp_path)  # comes back bit for bit, so that all else must too
    given = {"rejector_options": {"width": 0.5}}
    system = make(client, "mlp", rejector, loss=loss, given=given).fit(X, Y, costs=prices)
    loaded = l2h.load(system.save(tmp_path / "run"))
    for costs in prices:
        assert np.array_equal(system.judge(X_TEST, costs).scores, loaded.judge(X_TEST, costs).scores)
        first, second = (s.evaluate(X_TEST, Y_TEST, costs).as_dict() for s in (system, loaded))
        assert first == second
    assert loaded.settings == system.settings
    assert loaded.specs == system.specs
    assert loaded.class_names == system.class_names


def test_saving_again_leaves_nothing_of_the_system_before(tmp_path: Path) -> None:
    """A system without calibration, saved where one with it was, has none after loading."""
    make(tree(), loss="shifted").fit(X, Y, costs=Costs(c_e=0.1)).save(tmp_path / "run")
    system = make(tree(), recipe="paper", loss="shifted").fit(X, Y, costs=Costs(c_e=0.1))
    assert system.fitted.calibration is None
    loaded = l2h.load(system.save(tmp_path / "run"))
    assert loaded.fitted.calibration is None
    assert np.allclose(loaded.judge(X_TEST).scores, system.judge(X_TEST).scores, atol=1e-5)


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        l2h.load(tmp_path / "none")
    folder = make(tree()).fit(X, Y).save(tmp_path / "run")
    weights = folder / "checkpoints" / "rejector.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[: len(data) // 2])
    with pytest.raises(RunError, match=r"rejector\.safetensors is damaged"):
        l2h.load(folder)
    weights.unlink()
    with pytest.raises(RunError, match=r"no checkpoint at .*rejector\.safetensors"):
        l2h.load(folder)
    config = folder / "config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps({**values, "schema": 99}))
    with pytest.raises(RunError, match="schema 99"):
        l2h.load(folder)
    config.write_text("{")
    with pytest.raises(RunError, match=r"config\.json is damaged"):
        l2h.load(folder)


def test_rejectors_of_one_price_are_told_apart_by_their_number() -> None:
    specs = [RejectorSpec("shifted", Costs(c_e=0.1), seed) for seed in (0, 1)]
    system = HelpSystem(scores, "mlp", settings=settings(loss="shifted")).fit(X, Y, specs=specs)
    heads = system.fitted.rejectors.state_dict()["head.weight"]
    assert heads.shape[0] == 2
    assert not torch.equal(heads[0], heads[1])
    with pytest.raises(SettingsError, match="which="):
        system.predict(X_TEST, Costs(c_e=0.1))
    with pytest.raises(SettingsError, match="rejectors 0 to 1"):
        system.predict(X_TEST, which=2)
    with pytest.raises(SettingsError, match="not for"):
        system.predict(X_TEST, Costs(c_e=0.3), which=1)
    expected = system.fitted.rejectors.scores(*_inputs(system), system.fitted.context).numpy()
    for which in (0, 1):
        assert np.array_equal(system.judge(X_TEST, which=which).scores, expected[which])
        report = system.evaluate(X_TEST, Y_TEST, which=which)
        assert np.array_equal(report.remote, expected[which][:, 0] <= expected[which][:, 1])
