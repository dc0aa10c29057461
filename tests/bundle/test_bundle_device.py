"""What a device is promised: no torch, a quick start, little beside the models themselves."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from bundle_maker import digits, inputs_of
from scripts import HEAVY, python

from l2h.bundle import DeviceBundle, ServerBundle

Bundles = Callable[[str], Path]


@pytest.mark.parametrize("kind", ["fused", "sklearn", "callable"])
def test_a_machine_without_torch_answers_the_same(kind: str, bundles: Bundles, tmp_path: Path) -> None:
    X = inputs_of(kind)[:50]
    np.savez(tmp_path / "given.npz", X=X, weights=np.eye(4, 3, dtype=np.float32))
    script = """
import sys
import numpy as np
import l2h
folder, given, found = sys.argv[1:]
arrays = np.load(given)
client = (lambda X: X @ arrays["weights"]) if folder.endswith("callable") else None
device, server = l2h.bundle.DeviceBundle(folder, client=client), l2h.bundle.ServerBundle(folder)
label, judgement = device.judge(arrays["X"])
remote = judgement.remote(l2h.Costs(c_e=0.1))
np.savez(found, label=label, scores=judgement.scores, remote=remote, server=server.run(arrays["X"]))
assert not {"torch", "onnx", "sklearn", "typer"} & set(sys.modules)
"""
    done = python(script, bundles(kind), tmp_path / "given.npz", tmp_path / "found.npz", blocked=HEAVY)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "found.npz")
    device = DeviceBundle(bundles(kind), client=(lambda X: X @ np.eye(4, 3)) if kind == "callable" else None)
    label, judgement = device.judge(X)
    np.testing.assert_array_equal(found["label"], label)
    np.testing.assert_allclose(found["scores"], judgement.scores, atol=1e-6)
    np.testing.assert_allclose(found["server"], ServerBundle(bundles(kind)).run(X), atol=1e-5)
    assert found["remote"].dtype == bool


def test_importing_is_quick_and_light() -> None:
    script = """
import time
begun = time.process_time()  # the processor's time, so that other processes do not count
import numpy
between = time.process_time()
import l2h.bundle
print((time.process_time() - between) / (between - begun))
assert not {"torch", "onnxruntime", "httpx"} & set(sys.modules)
"""
    ratios = []
    for _ in range(5):
        done = python(script, blocked=HEAVY)
        assert done.returncode == 0, done.stderr
        ratios.append(float(done.stdout))
    assert min(ratios) < 2  # of numpy's own import; that of torch is ten times as much and more


def median_ratio(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """Median time of one in units of the other's, run in turn so that both meet the same load."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(1500):
        for side, run in enumerate((one, other)):
            begun = time.perf_counter()
            run()
            times[side].append(time.perf_counter() - begun)
    return statistics.median(times[0]) / statistics.median(times[1])


def test_judging_one_sample_costs_little_beside_the_model(bundles: Bundles) -> None:
    folder = bundles("fused")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(folder / "rejector.onnx", options, providers=["CPUExecutionProvider"])
    device, x = DeviceBundle(folder), digits()[2][0][:1]
    assert median_ratio(lambda: device.judge(x), lambda: session.run(["log_probability", "scores"], {"x": x})) <= 1.5


def test_threads_may_share_a_bundle(bundles: Bundles) -> None:
    device, X = DeviceBundle(bundles("fused")), digits()[2][0][:64]
    expected, wrong = device.judge(X)[0], []

    def work(start: int) -> None:
        for i in range(start, len(X), 4):
            if device.judge(X[i])[0] != expected[i]:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
