"""The readers of what comes from outside, under inputs that coverage found: one target for each reader."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.py"))
#: Inputs of the short form: one to two seconds each on a quiet core.
RUNS = {"audits": 1000, "manifest": 1000, "npz": 500, "onnx": 4000, "snapshot": 500, "wire": 2500}


@pytest.mark.parametrize("target", TARGETS)
def test_every_kept_input_is_read_or_refused(target: str) -> None:
    check = importlib.import_module(f"fuzz_{target}").check
    inputs = sorted((HERE / "corpus" / target).iterdir())
    assert inputs
    for path in inputs:
        check(path.read_bytes())


def fuzz(target: str, folder: Path, *more: str) -> None:
    pytest.importorskip("atheris")
    command = [sys.executable, str(HERE / "__main__.py"), target, *more]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done " in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_thousands_of_changed_inputs_are_read_or_refused(target: str, tmp_path: Path) -> None:
    fuzz(target, tmp_path, "--runs", str(RUNS[target]))


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_a_minute_of_changed_inputs_is_read_or_refused(target: str, tmp_path: Path) -> None:
    fuzz(target, tmp_path, "--seconds", "60")
