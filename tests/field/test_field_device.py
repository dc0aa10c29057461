"""A device with the base install alone: no torch, no commands, and it answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from l2h import Costs, EdgeClient

PROJECT = Path(__file__).parents[2]
SCRIPT = """
import importlib.util, json, sys, time
for heavy in ("torch", "sklearn", "typer", "starlette", "onnx"):
    assert importlib.util.find_spec(heavy) is None, heavy
begun = time.perf_counter()
import numpy as np
import l2h
edge = l2h.EdgeClient(sys.argv[1], deadline=1.0)
loaded = time.perf_counter() - begun
X = np.load(sys.argv[2])
answers = edge.predict(X)
free = edge.predict(X, costs=l2h.Costs(c_e=0.0, c_1=0.0))
print(json.dumps({"label": answers.label.tolist(), "reason": answers.reason.tolist(), "free": sorted(set(free.reason)),
                  "torch": "torch" in sys.modules, "seconds": loaded}))
"""


@pytest.mark.slow
def test_the_base_install_answers_with_a_bundle(field_bundle: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    python = tmp_path / "venv" / "bin" / "python"
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PROJECT]
    done = subprocess.run(install, env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    # The device's half alone.
    device = tmp_path / "device"
    device.mkdir()
    for file in field_bundle.iterdir():
        if file.name != "server.onnx":
            (device / file.name).write_bytes(file.read_bytes())
    with EdgeClient(field_bundle) as edge:
        X = np.random.default_rng(2).integers(0, 17, (40, *edge.bundle.input_shape)).astype(edge.bundle.input_dtype)
        expected = edge.predict(X)
        assert edge.predict(X, costs=Costs(c_e=0.0, c_1=0.0)).source.tolist() == ["local"] * 40
    np.save(tmp_path / "X.npy", X)
    command = [python, "-c", SCRIPT, device, tmp_path / "X.npy"]
    answered = subprocess.run(command, env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert answered.returncode == 0, answered.stderr
    found = json.loads(answered.stdout)
    assert found["label"] == expected.label.tolist()
    assert found["reason"] == expected.reason.tolist()
    assert found["free"] == ["no_server"]
    assert not found["torch"]
