"""A bundle takes over while the client runs: no answer is lost or mixed, strangers are refused, drift undoes it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_maker import copied, edit
from clouds import samples
from commands import call
from edge_maker import ALL, NONE, X_TEST, scores_of
from rough_server import RoughServer
from waiting import until

from l2h import AsyncEdgeClient, Costs, EdgeClient, RateLimit
from l2h.bundle import BundleError, DeviceBundle, Manifest
from l2h.bundle.signing import SIGNATURE, make_key
from l2h.bundle.writing import put_in_place, sign_bundle
from l2h.edge import EdgeError, EdgeSettingsError
from l2h.errors import MissingExtraError, SettingsError
from l2h.fleet import HEADER, DeviceReport

LIKE_TEST, _ = samples(4000, 9)


@pytest.fixture(scope="module")
def eager(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same models, with a calibration by which everything is worth asking about."""
    return recalibrated(folder, tmp_path_factory.mktemp("eager") / "bundle", -50.0)


def recalibrated(folder: Path, to: Path, shift: float) -> Path:
    copied(folder, to)

    def change(values: dict[str, Any]) -> None:
        (pairs,) = values["rejector"]["platt"]
        pairs[0][1] += shift
        values["version"] = f"{abs(hash(shift)):012x}"[:12]

    edit(to, change)
    return to


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """A private key and its public one."""
    return tmp_path / "key", make_key(tmp_path / "key")


def test_reports_name_the_bundle_in_service(folder: Path, eager: Path, server: RoughServer) -> None:
    def told() -> str:
        edge.predict(X_TEST[:1], costs=ALL)
        sent = [asked.headers[HEADER.lower()] for asked in list(server.asked) if HEADER.lower() in asked.headers]
        return DeviceReport.decode(sent[-1].encode()).version if sent else ""

    with EdgeClient(folder, server.url, deadline=5.0, report=0.9, device="cam-7") as edge:
        before = edge.bundle.manifest.version
        until(lambda: told() == before)
        edge.reload(eager)
        until(lambda: told() == edge.bundle.manifest.version != before)


def test_every_answer_under_threads_is_one_of_the_old_or_of_the_new_bundle(folder: Path, eager: Path, server) -> None:
    """Each call shows by its reasons which bundle decided it, for all of its inputs."""
    X, stop, failed, seen = X_TEST[:20], threading.Event(), [], []
    with EdgeClient(folder, server.url, deadline=5.0, costs=Costs(c_e=0.1)) as edge:
        before = edge.predict(X).source.tolist()
        assert "local" in before

        def work() -> None:
            while not stop.is_set():
                source = edge.predict(X).source.tolist()
                seen.append(source)
                if source not in (before, ["remote"] * len(X)):
                    failed.append(source)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for turn in range(8):
            edge.reload(eager if turn % 2 == 0 else folder)
            count = len(seen)
            until(lambda count=count: len(seen) > count + 8)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failed
        assert before in seen
        assert ["remote"] * len(X) in seen
        assert edge.stats().reloads == 8
        assert edge.stats().bundle == Manifest.read(folder).version


def test_a_call_under_way_finishes_on_the_old_bundle(folder: Path, eager: Path) -> None:
    entered, release = threading.Event(), threading.Event()
    run = scores_of(folder)

    def slow(X: Any) -> Any:
        entered.set()
        release.wait(10)
        return run(X)

    with EdgeClient(eager, slow, deadline=20.0) as edge, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(edge.predict, X_TEST[:3])
        entered.wait(10)
        edge.reload(folder)
        edge.costs = NONE
        assert edge.predict(X_TEST[0])[0].source == "local", "the next call is decided by the new one"
        release.set()
        answers = answer.result(20)
    assert answers.source.tolist() == ["remote"] * 3
    assert answers.label.tolist() == run(X_TEST[:3]).argmax(axis=1).tolist()
    assert answers.cost == pytest.approx([0.1] * 3), "at the prices that it began with"


def test_what_a_limit_has_given_stays_spent_and_its_threshold_is_the_new_bundles(folder: Path, eager: Path) -> None:
    with EdgeClient(folder, scores_of(folder), deadline=5.0, limit=RateLimit(fraction=0.2, window=50)) as edge:
        sent: list[bool] = []
        for start in range(0, 150, 10):
            sent += (edge.predict(X_TEST[start : start + 10]).source == "remote").tolist()
            edge.reload(eager if start % 20 else folder)
        assert sum(sent) > 10
        assert max(sum(sent[i : i + 50]) for i in range(100)) <= 10
    with EdgeClient(folder, scores_of(folder), deadline=5.0, limit="20%") as edge:
        new = DeviceBundle(eager)
        edge.reload(eager)
        with EdgeClient(new, scores_of(folder), deadline=5.0, limit="20%") as fresh:
            np.testing.assert_array_equal(edge.predict(X_TEST).source, fresh.predict(X_TEST).source)


def test_a_limiter_compares_with_the_new_calibration_and_with_the_old_one_again(folder: Path, tmp_path: Path) -> None:
    strange = with_held_out(folder, tmp_path / "strange", 40.0)
    with EdgeClient(folder, scores_of(folder), deadline=5.0, limit="20%/100") as edge:
        edge.predict(X_TEST[:100])
        edge.reload(strange)
        assert edge.stats().rolled_back is None
        for start in range(0, 1000, 100):
            edge.predict(LIKE_TEST[start : start + 100])
        assert edge.stats().rolled_back is not None
        assert edge.stats().limit["drift"] is None, "by the old calibration the traffic is as it was"


def with_held_out(folder: Path, to: Path, shift: float) -> Path:
    """A bundle whose calibration samples are of inputs that look harder for the client than those in the field."""
    old = Manifest.read(folder)
    scores = np.load(folder / "calibration.npz")["scores"].copy()
    scores[..., 0] -= shift
    files = {name: (folder / name).read_bytes() for name in old.files}
    saved = io.BytesIO()
    np.savez(saved, scores=scores)
    files["calibration.npz"] = data = saved.getvalue()
    part = replace(old.files["calibration.npz"], sha256=sha256(data).hexdigest(), bytes=len(data))
    manifest = replace(old, version=f"{int(shift):012d}", files={**old.files, "calibration.npz": part})
    put_in_place(files, manifest, to, force=True)
    return to


def test_a_bundle_that_drifts_from_its_calibration_is_taken_back(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = copied(folder, tmp_path / "place")
    with EdgeClient(place, scores_of(folder), deadline=5.0, costs=Costs(c_e=0.1)) as edge:
        with_held_out(folder, place, 40.0)
        assert edge.reload()
        strange = edge.stats().bundle
        with caplog.at_level(logging.WARNING, "l2h"):
            for x in LIKE_TEST[:1000]:
                edge.predict(x)
        stats = edge.stats()
        assert stats.bundle == Manifest.read(folder).version
        assert stats.rolled_back == strange
        assert [record for record in caplog.records if "is taken back" in record.message]
        assert not edge.reload(), "it is still in the folder, and is not taken again by itself"
        assert edge.reload(place), "unless somebody asks for it by name"


def test_one_that_fits_the_field_better_than_the_old_one_stays(folder: Path, tmp_path: Path) -> None:
    """The traffic is what the new bundle was calibrated on, and not what the old one was."""
    old = with_held_out(folder, tmp_path / "old", 40.0)
    with EdgeClient(old, scores_of(folder), deadline=5.0, costs=Costs(c_e=0.1)) as edge:
        edge.reload(folder)
        for start in range(0, 6000, 500):
            edge.predict(LIKE_TEST[np.arange(start, start + 500) % len(LIKE_TEST)])
        assert edge.stats().bundle == Manifest.read(folder).version
        assert edge.stats().rolled_back is None


def test_without_drift_hardly_any_bundle_is_taken_back(folder: Path, eager: Path) -> None:
    """Each trial is one of the same traffic; by the monitor's promise at most one in twenty is wrong."""
    taken_back = 0
    for trial in range(20):
        inputs, _ = samples(5000, 100 + trial)
        with EdgeClient(folder, None) as edge:
            edge.reload(DeviceBundle(eager))
            edge.reload(folder)
            for start in range(0, 5000, 1000):
                edge.predict(inputs[start : start + 1000])
            taken_back += edge.stats().rolled_back is not None
    assert taken_back <= 3


def test_a_damaged_bundle_or_one_of_another_system_leaves_the_old_one_in_service(
    folder: Path, eager: Path, tmp_path: Path
) -> None:
    other = copied(folder, tmp_path / "other")
    edit(other, lambda values: values["classes"].reverse())
    cut = copied(eager, tmp_path / "cut")
    (cut / "rejector.onnx").write_bytes((cut / "rejector.onnx").read_bytes()[:-1])
    named = copied(folder, tmp_path / "named")
    edit(named, lambda values: values.update(name="another"))
    with EdgeClient(folder, None) as edge:
        expected = edge.predict(X_TEST)
        for bad, words in ((other, "classes"), (cut, "damaged"), (named, "name"), (tmp_path / "none", "no bundle")):
            with pytest.raises(BundleError, match=words):
                edge.reload(bad)
        assert not edge.reload(), "the folder holds what is in service"
        np.testing.assert_array_equal(edge.predict(X_TEST).label, expected.label)
        assert edge.stats().reloads == 0
    with pytest.raises(EdgeError, match="closed"):
        edge.reload(eager)


def test_with_a_key_only_what_it_signed_is_taken(folder: Path, eager: Path, tmp_path: Path, keys) -> None:
    private, public = keys
    good, new = copied(folder, tmp_path / "good"), copied(eager, tmp_path / "new")
    with pytest.raises(BundleError, match="not signed"):
        EdgeClient(good, verify_key=public)
    sign_bundle(good, private)
    with EdgeClient(good, verify_key=public) as edge:
        version = edge.stats().bundle
        with pytest.raises(BundleError, match="not signed"):
            edge.reload(new)
        shutil.copy(good / SIGNATURE, new)
        with pytest.raises(BundleError, match="does not fit"):
            edge.reload(new)
        make_key(tmp_path / "stranger")
        sign_bundle(new, tmp_path / "stranger")
        with pytest.raises(BundleError, match="does not fit"):
            edge.reload(new)
        with pytest.raises(BundleError, match="without the key"):
            edge.reload(DeviceBundle(new))
        (new / SIGNATURE).write_bytes(b"\xff not base64 \x00")
        with pytest.raises(BundleError, match="does not fit"):
            edge.reload(new)
        (new / SIGNATURE).unlink()
        (new / SIGNATURE).mkdir()
        with pytest.raises(BundleError, match="cannot read"):
            edge.reload(new)
        (new / SIGNATURE).rmdir()
        assert edge.stats().bundle == version
        sign_bundle(new, private)
        assert edge.reload(new)
        edit(new, lambda values: values.update(created="later"))
        with pytest.raises(BundleError, match="does not fit"):
            edge.reload()
    with pytest.raises(EdgeSettingsError, match="DeviceBundle"):
        EdgeClient(DeviceBundle(good), verify_key=public)
    assert DeviceBundle(good, verify_key=public.read_bytes()).verify_key is not None


@pytest.mark.parametrize("content", [b"", b"no key", None])
def test_what_is_no_key_is_refused(folder: Path, tmp_path: Path, keys, content: bytes | None) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match="key"):
        DeviceBundle(folder, verify_key=file)
    with pytest.raises(SettingsError, match="key"):
        sign_bundle(folder, file)
    with pytest.raises(SettingsError, match="private key"):
        DeviceBundle(folder, verify_key=keys[0])
    with pytest.raises(SettingsError, match="verify_key=5 is no key"):
        DeviceBundle(folder, verify_key=5)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="there already"):
        make_key(keys[0])


def test_only_a_key_needs_the_package_of_signatures(folder: Path, keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with EdgeClient(folder, None) as edge:
        assert len(edge.predict(X_TEST[:2])) == 2
    with pytest.raises(MissingExtraError, match="signing"):
        EdgeClient(folder, verify_key=keys[1])


def test_the_commands_make_keys_sign_and_check(folder: Path, tmp_path: Path) -> None:
    bundle, key = copied(folder, tmp_path / "bundle"), tmp_path / "signing.key"
    assert call("sign", "key", key).status == 0
    assert key.stat().st_mode & 0o777 == 0o600
    public = f"{key}.pub"
    made = json.loads(call("sign", "key", tmp_path / "other.key", "--json").out)
    assert made["public"] == f"{tmp_path}/other.key.pub"
    np.save(tmp_path / "x.npy", X_TEST[:2])
    ask = ["ask", bundle, tmp_path / "x.npy", "--verify-key", public]
    assert "not signed" in call(*ask).err
    signed = call("sign", "bundle", bundle, "--key", key, "--json")
    assert json.loads(signed.out)["signature"] == str(bundle / SIGNATURE)
    assert call(*ask).status == 0
    assert call("sign", "check", bundle, "--key", public).status == 0
    checked = json.loads(call("sign", "check", bundle, "--key", public, "--json").out)
    assert checked["version"] == Manifest.read(bundle).version
    (bundle / "server.onnx").write_bytes(b"another")
    broken = call("sign", "check", bundle, "--key", public)
    assert broken.status == 1
    assert "damaged" in broken.err
    assert call("sign", "bundle", bundle, "--key", key).status == 1


def test_a_folder_is_watched(folder: Path, eager: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = copied(folder, tmp_path / "place")
    manifest = Manifest.read(eager)
    files = {name: (eager / name).read_bytes() for name in manifest.files}
    with EdgeClient(place, None, watch=0.02) as edge, caplog.at_level(logging.WARNING, "l2h.edge"):
        (place / "manifest.json").write_bytes((place / "manifest.json").read_bytes()[:-10])
        until(lambda: any("not taken over" in record.message for record in caplog.records))
        time.sleep(0.1)
        assert sum("not taken over" in record.message for record in caplog.records) == 1, "said once"
        assert edge.predict(X_TEST[:2]).source.tolist() is not None
        shutil.rmtree(place)
        put_in_place(files, manifest, place, force=True)
        until(lambda: edge.stats().bundle == manifest.version)
    until(lambda: not any(thread.name == "l2h-edge-watch" for thread in threading.enumerate()))
    with pytest.raises(EdgeSettingsError, match="watch"):
        EdgeClient(folder, watch=0)


def test_coroutines_reload_too(folder: Path, eager: Path) -> None:
    async def work() -> None:
        async with AsyncEdgeClient(folder, None) as edge:
            answers = asyncio.gather(*(edge.predict(X_TEST[:5]) for _ in range(20)))
            assert await edge.reload(eager)
            assert len(await answers) == 20
            assert edge.bundle.folder == eager

    asyncio.run(work())


def test_a_bundle_whose_client_is_given_keeps_it(bundles: Callable[[str], Path], tmp_path: Path) -> None:
    from clouds import scores

    folder = bundles("callable")
    with EdgeClient(folder, None, client=scores) as edge:
        assert edge.reload(copied(folder, tmp_path / "copy"))
        assert len(edge.predict(samples(5, 1)[0])) == 5
