"""A bundle answers and decides as the system that it was exported from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from bundle_maker import KINDS, PRICES, TABLE_TEST, TRAINED_FOR, assert_answers_as, client_of, digits, inputs_of
from clouds import CLASSES, scores

import l2h
from l2h import Costs, HelpSystem, RateLimit
from l2h.bundle import BundleError, DeviceBundle, Manifest, ServerBundle
from l2h.decision import Policy
from l2h.errors import SettingsError

Systems = Callable[[str], HelpSystem]
Bundles = Callable[[str], Path]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_answers_and_decides_as_its_system(kind: str, systems: Systems, bundles: Bundles) -> None:
    folder = bundles(kind)
    device, server = DeviceBundle(folder, client=client_of(kind)), ServerBundle(folder)
    remotes = []
    for costs in TRAINED_FOR if kind == "several" else PRICES:
        assert_answers_as(systems(kind), device, server, inputs_of(kind), costs)
        remotes.append(device.judge(inputs_of(kind), device.which(costs)[0])[1].remote(costs).mean())
    assert 0 < min(remotes) < max(remotes), "each decides either way, and the prices matter"


def test_scores_and_probabilities_are_the_systems(systems: Systems, bundles: Bundles) -> None:
    X = inputs_of("fused")
    ours, theirs = DeviceBundle(bundles("fused")).judge(X)[1], systems("fused").judge(X)
    np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-5 * np.abs(theirs.scores).max())
    for mine, other in zip(ours.probability.T, theirs.probability.T, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)


@pytest.mark.parametrize("kind", ["fused", "sklearn"])
def test_one_sample_is_answered_as_in_a_batch(kind: str, bundles: Bundles) -> None:
    device, server = DeviceBundle(bundles(kind)), ServerBundle(bundles(kind))
    X = inputs_of(kind)[:20]
    labels, judgement = device.judge(X)
    for i, x in enumerate(X):
        for one in (x, x[None]):
            label, alone = device.judge(one)
            assert label.tolist() == [labels[i]]
            assert label.dtype == np.int64
            np.testing.assert_allclose(alone.scores, judgement.scores[i : i + 1], atol=1e-5)
            np.testing.assert_allclose(alone.probability, judgement.probability[i : i + 1], atol=1e-6)
        np.testing.assert_allclose(server.run(x), server.run(X)[i : i + 1], atol=1e-5)


def test_many_samples_are_answered_as_few(bundles: Bundles) -> None:
    device = DeviceBundle(bundles("fused"))
    X = np.concatenate([inputs_of("fused")] * 4)
    label, judgement = device.judge(X)
    n = len(X) // 4
    for part in range(4):
        np.testing.assert_array_equal(label[part * n : (part + 1) * n], label[:n])
        np.testing.assert_allclose(judgement.scores[part * n : (part + 1) * n], judgement.scores[:n], atol=1e-5)


def test_a_fused_graph_runs_the_client_once(bundles: Bundles) -> None:
    folder = bundles("fused")
    assert Manifest.read(folder).rejector.fused

    def convolutions(name: str) -> int:
        return sum(node.op_type == "Conv" for node in onnx.load(folder / name).graph.node)

    assert convolutions("client.onnx") == 2, "scores and features come from one pass"
    assert convolutions("rejector.onnx") == 2 + 2, "the client's and the rejector's trunk"


def test_the_manifest_says_what_was_exported(systems: Systems, bundles: Bundles) -> None:
    said = {kind: Manifest.read(bundles(kind)) for kind in KINDS}
    fused = said["fused"]
    assert (fused.name, fused.input.shape, fused.input.dtype) == ("digits", (1, 8, 8), "uint8")
    assert fused.classes == tuple(str(k) for k in range(10))
    assert {kind: m.rejector.fused for kind, m in said.items()} == {k: k in ("fused", "several") for k in KINDS}
    assert {kind: m.client.kind for kind, m in said.items()} == {
        "fused": "torch module",
        "several": "torch module",
        "separate": "torch module",
        "sklearn": "scikit-learn estimator",
        "onnx": "ONNX model",
        "callable": "given",
    }
    assert [m.client.gives for m in said.values()].count("log_probability") == 3
    assert said["sklearn"].client.gives == said["onnx"].client.gives == "probability"
    assert said["callable"].client.file is None
    assert not (bundles("callable") / "client.onnx").exists()
    assert not said["separate"].rejector.uses_client
    for kind, manifest in said.items():
        assert max(manifest.agreement.values()) <= 1e-5
        assert all(part.bytes == (bundles(kind) / name).stat().st_size for name, part in manifest.files.items())
        assert "/" not in manifest.version
        assert len(manifest.version) == 12
        assert manifest.costs == (systems(kind).specs[0].costs or Costs(c_e=0.1))


def test_nothing_of_this_machine_is_in_the_files(bundles: Bundles) -> None:
    here = str(Path(l2h.__file__).parent).encode()
    for path in bundles("fused").iterdir():
        assert here not in path.read_bytes()
        assert b".py" not in path.read_bytes()


def test_an_onnx_client_is_copied_byte_for_byte(systems: Systems, bundles: Bundles) -> None:
    assert (bundles("onnx") / "client.onnx").read_bytes() == systems("onnx").client.weights()[0]


def test_rejectors_for_several_prices_answer_each_for_its_own(bundles: Bundles) -> None:
    device = DeviceBundle(bundles("several"))
    assert [device.which(costs) for costs in TRAINED_FOR] == list(enumerate(TRAINED_FOR))
    assert device.which(None) == (0, TRAINED_FOR[0])
    with pytest.raises(SettingsError, match=r"c_1=1, c_e=0.9.*there are: 0: shifted, c_1=1, c_e=0.05"):
        device.which(Costs(c_e=0.9))
    for which in (-1, 2):
        with pytest.raises(SettingsError, match=f"which={which}.*0 to 1"):
            device.judge(TABLE_TEST[0], which)
    assert device.judge(TABLE_TEST[0], 1)[1].probability is None, (
        "scores that were trained for a price are no probabilities"
    )


def test_a_priced_bundle_answers_for_every_price(bundles: Bundles) -> None:
    device = DeviceBundle(bundles("sklearn"))
    assert device.which(None) == (0, Costs(c_e=0.1))
    assert device.which(Costs(c_e=0.77, c_1=3)) == (0, Costs(c_e=0.77, c_1=3))


@pytest.mark.parametrize("kind", ["fused", "several"])
def test_bounds_on_asking_are_met_with_the_held_out_scores(kind: str, systems: Systems, bundles: Bundles) -> None:
    device, system, X = DeviceBundle(bundles(kind)), systems(kind), inputs_of(kind)
    which, costs = device.which(None)
    held, limit = device.held_out(which), RateLimit(fraction=0.25)
    theirs = system.fitted.held_out_judgement(which)
    np.testing.assert_array_equal(held.scores, theirs.scores)
    judgement = device.judge(X, which)[1]
    policy = Policy(device.which, kind == "fused", device.held_out, limit)
    remote = policy.permit(policy.propose(judgement, policy.terms(costs), 0), [len(X)])[0] >= 0
    asked = system.predict(X, costs, limit=limit, which=which).source == "remote"
    assert 0.1 < asked.mean() < 0.4
    assert (remote == asked).mean() > 0.99, "but for a score right at the cut"


def test_inputs_that_do_not_fit_are_refused_with_both_shapes_and_types(bundles: Bundles) -> None:
    images, table = DeviceBundle(bundles("fused")), DeviceBundle(bundles("sklearn"))
    X = digits()[2][0][:3]
    for wrong in (X[:, :, :7], X[:, 0], X[0, 0], np.zeros((2, 3, 8, 8), np.uint8), np.zeros(5, np.uint8)):
        with pytest.raises(BundleError, match=rf"shape \({wrong.shape[0]},.*expected \(n, 1, 8, 8\)"):
            images.judge(wrong)
    for dtype in (np.float32, np.int64, bool):
        with pytest.raises(BundleError, match=rf"{np.dtype(dtype)}, expected uint8"):
            images.judge(X.astype(dtype))
    with pytest.raises(BundleError, match="at least one sample"):
        images.judge(X[:0])
    with pytest.raises(BundleError, match="no array"):
        table.judge([[1.0, 2.0], [3.0]])
    with pytest.raises(BundleError, match="expected float32"):
        table.judge([["a", "b", "c", "d"]])
    for bad in (np.nan, np.inf, 1e300):
        rows = TABLE_TEST[0][:5].astype(np.float64)
        rows[3, 1] = bad
        with pytest.raises(BundleError, match="input 3"):
            table.judge(rows)
        with pytest.raises(BundleError, match="input 3"):
            ServerBundle(bundles("sklearn")).run(rows)


def test_numbers_of_other_types_become_float32_as_in_training(bundles: Bundles, systems: Systems) -> None:
    device = DeviceBundle(bundles("sklearn"))
    whole = np.round(TABLE_TEST[0][:50])
    expected = systems("sklearn").judge(whole).scores
    for X in (whole.astype(np.float64), whole.astype(np.int32), whole.tolist()):
        np.testing.assert_allclose(device.judge(X)[1].scores, expected, atol=1e-5)


def test_a_client_that_is_not_in_the_bundle_must_be_given(bundles: Bundles) -> None:
    with pytest.raises(BundleError, match="client="):
        DeviceBundle(bundles("callable"))
    with pytest.raises(BundleError, match="leave out client="):
        DeviceBundle(bundles("sklearn"), client=scores)
    calls = []

    def counted(X: np.ndarray) -> np.ndarray:
        calls.append(len(X))
        return scores(X)

    device = DeviceBundle(bundles("callable"), client=counted)
    label, _ = device.judge(TABLE_TEST[0])
    assert calls == [len(TABLE_TEST[0])], "it runs once"
    np.testing.assert_array_equal(label, scores(TABLE_TEST[0]).argmax(axis=1))
    with pytest.raises(l2h.errors.ClientError, match=f"{CLASSES} classes"):
        DeviceBundle(bundles("callable"), client=lambda X: np.zeros((len(X), 7))).judge(TABLE_TEST[0])
