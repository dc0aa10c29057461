"""Recalibration: what is true is found again, weights stay as they are, and nothing is written that is not better."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit_maker import SHARE, write_audits
from bundle_maker import copied, edit
from commands import call

import l2h
from l2h.audits import AuditError, read_audits
from l2h.bundle import DeviceBundle, Manifest, ServerBundle
from l2h.bundle.signing import make_key, read_verify_key
from l2h.metrics import expected_calibration_error, fit_platt
from l2h.recalibration import (
    AUDITS,
    PAIRS,
    RecalibrationError,
    agreement_probability,
    fit_heads,
    posterior_right,
    recalibrate,
)


def values_of(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return values


BUNDLE = Path(__file__).parents[1] / "compatibility/version_0_1/priced-bundle"
MANIFEST = Manifest.read(BUNDLE)
CLIENT, SERVER = MANIFEST.rejector.platt[0]
#: The client is right less often than its head says, and so is the server.
WORSE_CLIENT, WORSE_SERVER = (0.8 * CLIENT[0], CLIENT[1] - 1.5), (0.8 * SERVER[0], SERVER[1] - 1.5)


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pairs of a client that became worse, of a server that did with labels, and of neither."""
    worlds = {
        "client": {"client": WORSE_CLIENT, "server": SERVER},
        "server": {"client": CLIENT, "server": WORSE_SERVER, "labels": 0.5},
        "same": {"client": CLIENT, "server": SERVER},
    }
    out = {}
    for name, world in worlds.items():
        out[name] = tmp_path_factory.mktemp(name)
        write_audits(out[name], MANIFEST, 10_000, **world)
    return out


def test_the_chances_of_agreement_are_those_of_drawn_answers() -> None:
    rng = np.random.default_rng(0)
    n, classes, p, q = 400_000, 4, 0.7, 0.6
    right, helped = rng.random(n) < p, rng.random(n) < q
    mine = np.where(right, 0, rng.integers(1, classes, n))
    agree = mine == np.where(helped, 0, rng.integers(1, classes, n))
    ones = np.ones(2)
    assert agree.mean() == pytest.approx(agreement_probability(p * ones, q * ones, classes)[0], abs=0.004)
    expected = posterior_right(p * ones, q * ones, np.array([True, False]), classes)
    assert [right[agree].mean(), right[~agree].mean()] == pytest.approx(expected.tolist(), abs=0.005)


def test_a_weight_counts_as_so_many_samples_and_a_chance_as_parts_of_both() -> None:
    rng = np.random.default_rng(1)
    z, w = rng.normal(size=60), rng.integers(1, 5, 60)
    right = rng.random(60) < 0.7
    rows = np.repeat(np.arange(60), w)
    assert fit_platt(z, right, weights=w) == pytest.approx(fit_platt(z[rows], right[rows]), abs=1e-8)
    p = 1 / (1 + np.exp(-z))
    weighted = expected_calibration_error(p, right, weights=w)
    assert weighted == pytest.approx(expected_calibration_error(p[rows], right[rows]))
    chance = rng.random(60)
    both = fit_platt(np.r_[z, z], np.r_[np.ones(60, bool), np.zeros(60, bool)], weights=np.r_[chance, 1 - chance])
    assert fit_platt(z, chance) == pytest.approx(both, abs=1e-6)
    assert fit_platt(z[:2], right[:2], ridge=1e6, start=(0.5, 2.0)) == pytest.approx((0.5, 2.0), abs=1e-3)


def test_the_true_scale_and_shift_are_found_without_labels_as_with_them(tmp_path: Path) -> None:
    write_audits(tmp_path, MANIFEST, 60_000, client=WORSE_CLIENT, server=SERVER, share=0.3)
    pairs = read_audits(tmp_path)
    found = fit_heads(pairs, MANIFEST.rejector.platt[0], [])
    # Standard errors of these fits are 0.03 and 0.04.
    assert found[0] == pytest.approx(WORSE_CLIENT, abs=0.15)
    assert tuple(found[1]) == SERVER, "without labels nothing is said of the server"


def test_the_server_is_fitted_on_labels(tmp_path: Path) -> None:
    write_audits(tmp_path, MANIFEST, 30_000, client=WORSE_CLIENT, server=WORSE_SERVER, share=0.3, labels=0.5)
    found = fit_heads(read_audits(tmp_path), MANIFEST.rejector.platt[0], [1])
    assert found[0] == pytest.approx(WORSE_CLIENT, abs=0.2)
    assert found[1] == pytest.approx(WORSE_SERVER, abs=0.3)


@pytest.mark.parametrize("world", ["client", "server"])
def test_a_new_bundle_has_the_same_models_and_states_what_is_true(
    audits: dict[str, Path], world: str, tmp_path: Path
) -> None:
    found = recalibrate(BUNDLE, audits[world])
    assert found.refusal is None
    assert found.by_labels == (world == "server")
    assert found.changes["log_loss"].after < found.changes["log_loss"].before
    assert found.changes["log_loss"].interval.below
    manifest = found.write(tmp_path / "new")
    assert manifest == Manifest.read(tmp_path / "new")
    assert manifest.version != MANIFEST.version
    for name in MANIFEST.files:
        same = (tmp_path / "new" / name).read_bytes() == (BUNDLE / name).read_bytes()
        assert same == (name != "calibration.npz"), name
    device, old = DeviceBundle(tmp_path / "new"), DeviceBundle(BUNDLE)
    X = np.random.default_rng(0).integers(0, 17, (50, *device.input_shape)).astype(device.input_dtype)
    (label, new), (before, judged) = device.judge(X), old.judge(X)
    np.testing.assert_array_equal(label, before)
    np.testing.assert_array_equal(new.scores, judged.scores)
    z = new.scores * np.array(found.platt)[:, 0] + np.array(found.platt)[:, 1]
    np.testing.assert_allclose(new.probability, 1 / (1 + np.exp(-z)), rtol=1e-5)
    ServerBundle(tmp_path / "new")
    true = WORSE_CLIENT if world == "client" else CLIENT
    assert abs(found.platt[0][1] - true[1]) < abs(WORSE_CLIENT[1] - CLIENT[1]) / 3


def test_the_samples_of_thresholds_are_those_of_the_inputs(tmp_path: Path) -> None:
    """Asked inputs are ten times as often among the pairs, and no more often among the samples."""
    write_audits(tmp_path, MANIFEST, 40_000, client=WORSE_CLIENT, server=SERVER, share=SHARE)
    manifest = recalibrate(BUNDLE, tmp_path).write(tmp_path / "new")
    held = DeviceBundle(tmp_path / "new").held_out()
    assert held is not None
    assert manifest.calibration is not None
    assert manifest.calibration.n == len(held) > 1500
    # As write_audits draws them; 5 standard errors.
    assert held.scores.mean(axis=0) == pytest.approx([1.5, 2.5], abs=5 * 2.0 / len(held) ** 0.5)


def test_where_nothing_changed_it_is_refused_and_nothing_is_written(audits: dict[str, Path], tmp_path: Path) -> None:
    found = recalibrate(BUNDLE, audits["same"])
    assert found.refusal is not None
    assert "not clearly better" in found.refusal
    with pytest.raises(RecalibrationError, match="not clearly better"):
        found.write(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_head_is_not_turned_around(tmp_path: Path) -> None:
    write_audits(tmp_path, MANIFEST, 10_000, client=(-CLIENT[0], 1.0), server=SERVER)
    found = recalibrate(BUNDLE, tmp_path)
    assert found.changes["log_loss"].interval.below
    assert found.platt[0][0] < 0
    with pytest.raises(RecalibrationError, match=r"client would be right the less often, the surer the head is"):
        found.write(tmp_path / "new")


@pytest.mark.parametrize(("inputs", "share"), [(300, SHARE), (6000, 0.002)])
def test_too_few_pairs_are_refused_and_it_says_how_many_are_needed(tmp_path: Path, inputs: int, share: float) -> None:
    write_audits(tmp_path, MANIFEST, inputs, client=WORSE_CLIENT, server=SERVER, share=share)
    with pytest.raises(RecalibrationError, match=f"{PAIRS} are needed, {AUDITS} of them audits.*more inputs"):
        recalibrate(BUNDLE, tmp_path)


def test_pairs_of_another_bundle_and_old_ones_are_not_used(audits: dict[str, Path], tmp_path: Path) -> None:
    other = copied(BUNDLE, tmp_path / "other")
    edit(other, lambda values: values.update(version="0123456789ab"))
    with pytest.raises(AuditError, match=MANIFEST.version):
        recalibrate(other, audits["client"])
    times = read_audits(audits["client"]).time
    found = recalibrate(BUNDLE, [audits["client"]], since=float(np.median(times)))
    assert found.pairs < 0.6 * recalibrate(BUNDLE, audits["client"]).pairs


def test_rejectors_without_probabilities_are_refused(tmp_path: Path) -> None:
    price = {"loss": "shifted", "costs": {"c_e": 0.1, "c_1": 1.0}, "seed": 0, "sync": 1}
    folder = copied(BUNDLE, tmp_path / "bundle")
    edit(folder, lambda values: values["rejector"].update(specs=[price]))
    with pytest.raises(RecalibrationError, match="one price"):
        recalibrate(folder, tmp_path)
    platt = values_of(folder)["rejector"]["platt"]
    edit(folder, lambda values: values["rejector"].update(specs=[price, price], platt=platt * 2))
    with pytest.raises(RecalibrationError, match="2 rejectors"):
        recalibrate(folder, tmp_path)


def test_several_servers_and_a_student_are_each_fitted_on_their_own_answers(tmp_path: Path) -> None:
    (price,), (part,) = MANIFEST.prices.values(), MANIFEST.servers.values()
    several = replace(
        MANIFEST,
        servers={"box": part, "cloud": part},
        prices={"box": price, "cloud": price},
        second_opinion=True,
        rejector=replace(MANIFEST.rejector, platt=((CLIENT, (1.0, 0.0), SERVER, SERVER),)),
    )
    several.write(tmp_path)
    worse = (1.0, -1.0)
    write_audits(tmp_path, several, 10_000, client=worse, server=SERVER, labels=0.5, share=0.5)
    found = recalibrate(tmp_path, tmp_path)
    assert found.refitted == ("client", "student", "box", "cloud")
    for fitted, true in zip(found.platt, [worse, worse, SERVER, SERVER], strict=True):
        assert fitted == pytest.approx(true, abs=0.5)  # standard errors are up to 0.17
    assert found.refusal is None


def test_the_command_shows_before_and_after_and_signs(audits: dict[str, Path], tmp_path: Path) -> None:
    bundle, out = copied(BUNDLE, tmp_path / "bundle"), tmp_path / "new"
    make_key(tmp_path / "key")
    key = tmp_path / "key.pub"
    assert call("sign", "bundle", bundle, "--key", tmp_path / "key").status == 0
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text('{"kind": "audit", "id": "1"}\nnothing\n')
    plain = call("recalibrate", bundle, "-f", audits["server"], "-f", foreign, "--out", tmp_path / "plain")
    assert plain.status == 0, plain.err
    shown = ("log-loss", "calibration error", "risk", "before", "after", "left out", "is not yet: l2h sign bundle")
    for words in shown:
        assert words in plain.out
    said = call("recalibrate", bundle, "-f", audits["client"], "-o", out, "-k", tmp_path / "key", "--json").json()
    assert said["judged_by"] == "agreement"
    assert said["changes"]["log_loss"]["high"] < 0
    assert call("sign", "check", out, "--key", key).status == 0
    DeviceBundle(out, verify_key=read_verify_key(key))
    again = call("recalibrate", bundle, "--from", audits["client"], "--out", out)
    assert again.status == 1
    assert "--force" in again.err
    refused = call("recalibrate", bundle, "--from", audits["same"], "--out", tmp_path / "same")
    assert refused.status == 1
    assert "not clearly better" in refused.err
    assert "log-loss" in refused.out, "what was measured is shown all the same"
    assert not (tmp_path / "same").exists()
    dry = call("recalibrate", bundle, "--from", audits["client"], "--out", tmp_path / "dry", "--dry-run", "--json")
    assert json.loads(dry.out)["out"] is None
    assert not (tmp_path / "dry").exists()
    bad = call("recalibrate", bundle, "--from", audits["client"], "--out", tmp_path / "dry", "--since", "soon")
    assert bad.status == 2


def test_a_device_half_alone_can_be_recalibrated(audits: dict[str, Path], tmp_path: Path) -> None:
    device = copied(BUNDLE, tmp_path / "device")
    (device / "server.onnx").unlink()
    recalibrate(device, audits["client"]).write(tmp_path / "new")
    assert not (tmp_path / "new" / "server.onnx").exists()
    DeviceBundle(tmp_path / "new")
    shutil.copy(BUNDLE / "server.onnx", tmp_path / "new")
    ServerBundle(tmp_path / "new")


def test_the_figures_are_those_of_a_second_computation(tmp_path: Path) -> None:
    write_audits(tmp_path, MANIFEST, 3000, client=WORSE_CLIENT, server=WORSE_SERVER, labels=1.0, share=0.3)
    pairs, changes = read_audits(tmp_path), recalibrate(BUNDLE, tmp_path).changes
    right = np.stack([pairs.client == pairs.label, pairs.server == pairs.label], axis=1)
    loss = -np.log(np.where(right, pairs.stated, 1 - pairs.stated)).mean(axis=1)
    assert changes["log_loss"].before == pytest.approx(np.average(loss, weights=pairs.weight))
    errors = [expected_calibration_error(pairs.stated[:, j], right[:, j], weights=pairs.weight) for j in (0, 1)]
    assert changes["calibration_error"].before == pytest.approx(np.mean(errors))
    # The device decided so itself, at these prices.
    paid = np.where(pairs.asked, 0.1 + ~right[:, 1], ~right[:, 0])
    assert changes["risk"].before == pytest.approx(np.average(paid, weights=pairs.weight))
    difference = changes["log_loss"].interval
    assert difference.low < difference.difference < difference.high < 0


def test_the_whole_loop_with_a_real_client(tmp_path: Path) -> None:
    """Noise is nothing that the bundle was calibrated on: audits show it, and the new bundle knows."""
    run, rng = ServerBundle(BUNDLE).run, np.random.default_rng(0)
    X = rng.integers(0, 256, (4000, *MANIFEST.input.shape)).astype(MANIFEST.input.dtype)
    truth = run(X).argmax(axis=1)
    with l2h.EdgeClient(BUNDLE, run, deadline=30.0, max_batch=4096, audit=0.2, audits=tmp_path / "audits") as edge:
        first = edge.predict(X)
        for i in np.flatnonzero(first.id != "")[::2]:
            edge.feedback(first.id[i], int(truth[i]))
        manifest = recalibrate(BUNDLE, tmp_path / "audits").write(tmp_path / "new")
        assert edge.reload(tmp_path / "new")
        second = edge.predict(X)
        risks = [float((each.cost + (each.label != truth)).mean()) for each in (first, second)]
        assert risks[1] < risks[0]
        again = recalibrate(tmp_path / "new", tmp_path / "audits")
    assert again.manifest == manifest, "the pairs of the new bundle are told from those of the old one"
    assert again.labelled == 0
    assert again.changes["log_loss"].before < recalibrate(BUNDLE, tmp_path / "audits").changes["log_loss"].before
