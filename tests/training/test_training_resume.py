"""Runs that are killed, interrupted or out of disk, in real processes, and end as if nothing had happened."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import call, environment, undrawn
from waiting import STUCK, stop_when

from l2h.training.checkpoint import load_checkpoint

STAGES = {
    "default": [
        "--set", "folds=2", "--set", "server.epochs=5", "--set", "rejector.epochs=14", "--set", "rejector.patience=13",
        "--set", "rejector.batch=64", "--set", "copies=1", "--option", "rejector.width=1",
    ],
    "paper": ["--set", "server.epochs=6", "--c-1", "0.5", "--c-e", "0.1", "--c-e", "0.3", "--rejector", "separate"],
}  # fmt: skip
RESULTS = ("client", "server", "rejector", "calibration")


COMMON = [
    "train", "--data", "digits", "--client", "mlp", "--client-share", "0.3", "--server", "lenet5", "--device", "cpu",
    "--seed", "2",
]  # fmt: skip
SMALL_DISK = """
import resource, sys
from l2h.cli import main
size = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
main()
"""


def arguments(recipe: str, out: Path) -> list[str]:
    return [*COMMON, "--recipe", recipe, *STAGES[recipe], "--out", str(out)]


def train(recipe: str, out: Path, *more: str) -> None:
    """``l2h train`` to its end, in this process: it has not seen the one that was killed."""
    with undrawn():
        result = call(*arguments(recipe, out), *more)
    assert result.status == 0, result.err


def start(recipe: str, out: Path, *more: str, file_size: int | None = None) -> subprocess.Popen[str]:
    """``l2h train`` in a process of its own, which may write no file larger than ``file_size`` bytes."""
    program = ["-m", "l2h"] if file_size is None else ["-c", SMALL_DISK, str(file_size)]
    return subprocess.Popen(
        [sys.executable, *program, *arguments(recipe, out), *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(NO_COLOR="1"),
        preexec_fn=listen_to_interrupts,  # noqa: PLW1509 - no threads here
    )


def listen_to_interrupts() -> None:
    """A shell that runs the tests in the background has its children ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def rows(out: Path) -> list[dict[str, str]]:
    try:
        return list(csv.DictReader((out / "history.csv").open()))
    except FileNotFoundError:
        return []


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=STUCK)
    return process.returncode, errors


def assert_same_run(one: Path, two: Path) -> None:
    for name in RESULTS:
        first, second = (load_checkpoint(run / "checkpoints" / f"{name}.safetensors").tensors for run in (one, two))
        assert first.keys() == second.keys()
        for key, tensor in first.items():
            assert torch.equal(tensor, second[key]), f"{name}: {key}"
    untimed = [[{k: v for k, v in row.items() if k != "seconds"} for row in rows(run)] for run in (one, two)]
    assert untimed[0] == untimed[1]
    assert json.loads((one / "metrics.json").read_text()) == json.loads((two / "metrics.json").read_text())
    for run in (one, two):
        assert not list((run / "checkpoints").glob("stage-*")), "checkpoints of stages are left over"
        assert not list(run.rglob(".*.tmp")), "temporary files are left over"


@pytest.mark.long
def test_default_recipe_goes_on_after_kill_and_interrupt(tmp_path: Path) -> None:
    """Killed while the client trains, killed while a fold trains, interrupted while the rejector trains."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train("default", whole)
    rng = np.random.default_rng(0)
    client_epochs = sum(row["stage"] == "client" for row in rows(whole))
    rejector_begins = next(i for i, row in enumerate(rows(whole)) if row["stage"] == "rejector")

    stage_file = broken / "checkpoints" / "stage-client.safetensors"
    assert stop_when(stage_file.exists, start("default", broken), signal.SIGKILL) == -signal.SIGKILL
    middle = int(rng.integers(client_epochs + 1, rejector_begins))
    process = start("default", broken, "--resume")
    assert stop_when(lambda: len(rows(broken)) >= middle, process, signal.SIGKILL) == -signal.SIGKILL
    late = int(rng.integers(rejector_begins + 1, rejector_begins + 5))
    process = start("default", broken, "--resume")
    assert stop_when(lambda: len(rows(broken)) >= late, process, signal.SIGINT) == 130
    assert "system" not in json.loads((broken / "config.json").read_text()), "it was finished before it was stopped"
    assert list((broken / "checkpoints").glob("stage-rejector*"))

    train("default", broken, "--resume")
    assert_same_run(whole, broken)


@pytest.mark.long
def test_paper_recipe_goes_on_after_kill_and_full_disk(tmp_path: Path) -> None:
    """Killed in Algorithm 1, then a disk that takes no checkpoint, then killed again."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train("paper", whole)
    client_epochs = sum(row["stage"] == "client" for row in rows(whole))

    process = start("paper", broken)
    assert stop_when(lambda: len(rows(broken)) > client_epochs, process, signal.SIGKILL) == -signal.SIGKILL
    for leftover in broken.rglob(".*.tmp"):
        leftover.unlink()
    stage = broken / "checkpoints" / "stage-server-and-rejector.safetensors"
    before = stage.read_bytes()
    status, errors = finish(start("paper", broken, "--resume", file_size=len(before) // 2))
    assert status == 1
    assert f"cannot write {stage}" in errors
    assert "File too large" in errors
    assert "the previous one is kept" in errors
    assert "Traceback" not in errors
    assert stage.read_bytes() == before
    assert not list(broken.rglob(".*.tmp"))

    process = start("paper", broken, "--resume")
    more = len(rows(broken)) + 2
    assert stop_when(lambda: len(rows(broken)) >= more, process, signal.SIGKILL) == -signal.SIGKILL
    assert "system" not in json.loads((broken / "config.json").read_text()), "it was finished before it was stopped"
    train("paper", broken, "--resume")
    assert_same_run(whole, broken)
