"""A checkpoint that cannot be written leaves the old one; a run folder is replaced only where that is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_maker import (
    client_log_probability,
    context,
    named_rejector,
    pool,
    samples,
    small_rejector,
    small_server,
)

from l2h.cli.app import run as run_command
from l2h.costs import Costs
from l2h.decision import RejectorSpec
from l2h.errors import CheckpointError, ResumeError, RunError
from l2h.experiments.carry_out import load_data, train_run
from l2h.experiments.plan import Plan
from l2h.experiments.runs import RunTarget, read_config
from l2h.models.rejectors import client_view
from l2h.settings import StageSettings
from l2h.training import BatchLoss, RejectorBatch, RejectorStage
from l2h.training.alternating import AlternatingStage
from l2h.training.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from l2h.training.loop import Context, run_stage
from l2h.training.progress import Progress
from l2h.training.server import ServerStage

OLD = {"weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(7)}
NEW = {"weight": torch.randn(200, 200, generator=torch.Generator().manual_seed(0))}


def assert_old_is_intact(path: Path, data: bytes) -> None:
    assert path.read_bytes() == data
    loaded = load_checkpoint(path)
    assert loaded.meta == {"epoch": 3}
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in OLD.items())
    assert [p.name for p in path.parent.iterdir()] == [path.name], "a temporary file is left"


def test_tensors_and_values_come_back_as_they_were(tmp_path: Path) -> None:
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
    tensors = {str(kind): torch.tensor([[0, 1], [1, 0]]).to(kind) for kind in kinds} | {"empty": torch.zeros(0, 3)}
    meta = {"epoch": 2, "history": [{"train_loss": 0.1, "held_out_loss": None}]}
    save_checkpoint(tmp_path / "a.safetensors", tensors, meta)
    loaded = load_checkpoint(tmp_path / "a.safetensors")
    assert loaded.meta == meta
    assert loaded.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors[name], tensor)


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    """A child process under a limit on the size of a file: the write really fails, part of it written."""
    path = tmp_path / "stage-server.safetensors"
    save_checkpoint(path, OLD, {"epoch": 3})
    data = path.read_bytes()
    script = """
import resource, sys, torch
from pathlib import Path
from l2h.costs import Costs
from l2h.errors import CheckpointError
from l2h.training.alternating import AlternatingStage
from l2h.training.checkpoint import save_checkpoint
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
try:
    save_checkpoint(Path(sys.argv[1]), {"weight": torch.randn(200, 200)}, {"epoch": 4})
except CheckpointError as error:
    sys.exit(f"refused: {error}")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.stderr.strip() == f"refused: cannot write {path} (File too large); the previous one is kept"
    assert_old_is_intact(path, data)


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_failure_at_any_step_leaves_the_previous_checkpoint(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stage-server.safetensors"
    save_checkpoint(path, OLD, {"epoch": 3})
    data = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(CheckpointError, match=r"No space left on device.*previous one is kept"):
        save_checkpoint(path, NEW, {"epoch": 4})
    monkeypatch.undo()
    assert_old_is_intact(path, data)


def test_an_interrupt_while_writing_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stage-server.safetensors"
    save_checkpoint(path, OLD, {"epoch": 3})
    data = path.read_bytes()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(path, NEW, {"epoch": 4})
    monkeypatch.undo()
    assert_old_is_intact(path, data)


def test_a_first_checkpoint_that_fails_says_there_was_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(CheckpointError, match=r"Permission denied.*there was none before"):
        save_checkpoint(tmp_path / "a.safetensors", OLD, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep", [0, 5, 60, -1])
def test_a_damaged_checkpoint_is_named(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, OLD, {"epoch": 3})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"a\.safetensors is damaged"):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "b.safetensors")


class StoppedError(Exception):
    """Stands for whatever ends a training between two epochs."""


def _server_stage(shared: Context) -> ServerStage:
    x, y = samples(64)
    settings = StageSettings(epochs=6, batch=16, patience=5)
    return ServerStage("server", small_server(), x, y, settings, shared, samples(32, seed=9))


def _rejector_stage(shared: Context) -> RejectorStage:
    samples_ = pool(64, 1)
    rejectors = RejectorBatch([named_rejector("attached", s, samples_.view) for s in (0, 1)], shared.device)
    settings = StageSettings(epochs=6, batch=16, patience=5)
    loss = BatchLoss([RejectorSpec(), RejectorSpec()], shared.device).on_pool
    return RejectorStage("rejector", rejectors, loss, samples_, settings, shared, pool(32, 2))


def _alternating_stage(shared: Context) -> AlternatingStage:
    """Links that are down at the end of an epoch, so that what they go on with is a copy."""
    x, y = samples(72)
    log_p = client_log_probability(x)
    links = (1, 3, 4, "epoch", "onoff:2:4")
    specs = [RejectorSpec("shifted", Costs(c_e=0.3), seed=i, sync=link) for i, link in enumerate(links)]
    rejectors = RejectorBatch([small_rejector(spec.seed) for spec in specs], shared.device)
    settings = StageSettings(epochs=6, batch=16, optimizer="sgd", lr=0.05, schedule="constant", patience=None)
    return AlternatingStage(
        "both",
        small_server(),
        rejectors,
        specs,
        x,
        y,
        client_view(log_p),
        log_p.argmax(1) == y,
        settings,
        settings,
        shared,
    )


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("make", [_server_stage, _rejector_stage, _alternating_stage])
def test_a_stage_stopped_after_any_epoch_goes_on_as_if_never_stopped(make: Any, every: int, tmp_path: Path) -> None:
    """Weights, optimizer, best weights and history, bit for bit, wherever it stopped and however often it saved."""
    plain = make(context())
    run_stage(plain, plain.context)
    for stop in range(1, 6):
        folder = tmp_path / f"{every}-{stop}"

        class StopAfter(Progress):
            def __init__(self, epochs: int) -> None:
                self.left = epochs

            def epoch(self, *_: Any) -> None:
                self.left -= 1
                if self.left == 0:
                    raise StoppedError

        shared = context()
        shared.checkpoints, shared.progress = Checkpoints(folder, every=every), StopAfter(stop)
        with pytest.raises(StoppedError):
            run_stage(make(shared), shared)
        again = context()
        again.checkpoints = Checkpoints(folder, resume=True, every=every)
        stage = make(again)
        run_stage(stage, again)
        assert stage.tensors().keys() == plain.tensors().keys()
        for name, tensor in stage.tensors().items():
            assert torch.equal(tensor, plain.tensors()[name]), (stop, name)
        for row, expected in zip(again.history, plain.context.history, strict=True):
            assert {**row, "seconds": 0} == {**expected, "seconds": 0}


def test_clearing_takes_the_stages_and_what_a_killed_writer_left(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save("server", OLD, {})
    (tmp_path / ".stage-server.safetensors.4711.tmp").write_bytes(b"half")
    (tmp_path / "server.safetensors").write_bytes(b"the result")
    checkpoints.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["server.safetensors"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    RunTarget(folder).prepare({"seed": 1, "c_e": (0.1, 0.2), "settings": {"loss": "priced", "server": {"lr": 0.1}}})
    (folder / "history.csv").write_text("stage\n")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "server.safetensors").write_bytes(b"weights")
    return folder


def test_a_resume_names_every_setting_that_differs(run_folder: Path) -> None:
    before = contents(run_folder)
    now = {"seed": 2, "c_e": (0.1, 0.2), "settings": {"loss": "priced", "server": {"lr": 0.2}}, "limit": 5}
    with pytest.raises(ResumeError) as error:
        RunTarget(run_folder, resume=True).prepare(now)
    message = str(error.value)
    assert "seed was 1, is 2" in message
    assert "settings.server.lr was 0.1, is 0.2" in message
    assert "limit was None, is 5" in message
    assert "c_e" not in message
    assert "loss" not in message
    assert contents(run_folder) == before


def test_a_run_is_replaced_only_by_force(run_folder: Path) -> None:
    before = contents(run_folder)
    with pytest.raises(RunError, match=r"already holds a run: --resume .*--force"):
        RunTarget(run_folder).prepare({"seed": 2})
    assert contents(run_folder) == before
    RunTarget(run_folder, force=True).prepare({"seed": 2})
    assert contents(run_folder).keys() == {"config.json"}
    assert read_config(run_folder)["training"] == {"seed": 2}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["thesis.txt", "config.json", "checkpoints/model.bin"])
def test_a_folder_with_something_else_is_never_touched(name: str, force: bool, tmp_path: Path) -> None:
    """Also where the something else has a ``config.json``, as many projects do."""
    folder = tmp_path / "work"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "plots").mkdir()
    (folder / "plots" / "mine.png").write_bytes(b"png")
    (folder / name).write_text(json.dumps({"model_type": "bert"}))
    before = contents(folder)
    with pytest.raises(RunError, match="holds no run"):
        RunTarget(folder, force=force).prepare({"seed": 2})
    assert contents(folder) == before


def test_force_keeps_files_that_are_not_of_the_run(run_folder: Path) -> None:
    (run_folder / "notes.md").write_text("mine")
    RunTarget(run_folder, force=True).prepare({"seed": 2})
    assert contents(run_folder)["notes.md"] == b"mine"


def test_resuming_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match=r"nothing to resume in .*start without --resume"):
        RunTarget(tmp_path / "none", resume=True).prepare({"seed": 1})
    assert not (tmp_path / "none").exists()


def test_the_command_refuses_with_one_line_and_changes_nothing(
    run_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """``l2h train`` into a folder with a run, into one with foreign files, and resuming nothing or something else."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    train = ["train", "--data", "digits", "--client", "tree", "--server", "lenet5", "--limit", "60", "--out"]
    for folder, flags, told in (
        (run_folder, [], "already holds a run"),
        (run_folder, ["--resume"], "settings differ"),
        (foreign, ["--force"], "holds no run"),
        (tmp_path / "none", ["--resume"], "nothing to resume"),
    ):
        before = contents(folder)
        assert run_command([*train, str(folder), *flags]) == 1
        errors = " ".join(capfd.readouterr().err.split())
        assert told in errors
        assert "Traceback" not in errors
        assert contents(folder) == before


def test_changed_samples_are_refused_while_the_client_itself_is_trained(tmp_path: Path) -> None:
    class StopAtOnce(Progress):
        def epoch(self, *_: Any) -> None:
            raise StoppedError

    plan = Plan("digits", client="lenet5", limit=300)
    dataset = load_data(plan)
    with pytest.raises(StoppedError):
        train_run(plan, dataset, RunTarget(tmp_path), StopAtOnce())
    assert (tmp_path / "checkpoints" / "stage-client.safetensors").exists()
    other = replace(dataset, y_train=np.roll(dataset.y_train, 1))
    with pytest.raises(ResumeError, match="client_data"):
        train_run(plan, other, RunTarget(tmp_path, resume=True), StopAtOnce())
    with pytest.raises(StoppedError):
        train_run(plan, dataset, RunTarget(tmp_path, resume=True), StopAtOnce())
