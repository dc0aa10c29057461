"""Inputs that are read when they are needed: the same training to the last bit, also after a kill within an epoch."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, get_worker_info
from training_maker import CPU
from waiting import STUCK, until

import l2h
from l2h.data import Rows, StoredArray
from l2h.data.objects import DatasetRows, take_samples
from l2h.decision import RejectorSpec
from l2h.errors import CheckpointError, DataError, L2HWarning
from l2h.settings import Settings, StageSettings
from l2h.training import Context, Job, Trained
from l2h.training.checkpoint import Checkpoints, load_checkpoint
from l2h.training.streaming import RowReader, stream

STAGE = StageSettings(epochs=2, batch=32, patience=2)
FEW = 300


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    images, y = load_digits(return_X_y=True)
    return images[:FEW].astype(np.uint8).reshape(-1, 1, 8, 8), y[:FEW]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks of few rows, so that worker processes read small data as they would read large data."""
    monkeypatch.setattr("l2h.training.streaming.BLOCK", 2500)


def client(X: np.ndarray) -> np.ndarray:
    """A weak client that needs no training: the ten first pixels."""
    return X.reshape(len(X), -1)[:, 3:13].astype(np.float64) @ np.linspace(-1, 1, 100).reshape(10, 10)


def prepared(X: Any, y: np.ndarray | None, **settings: Any) -> tuple[l2h.HelpSystem, Job]:
    chosen = Settings(**{"seed": 4, "device": "cpu", "threads": 1, "server": STAGE, "rejector": STAGE, **settings})
    system = l2h.HelpSystem(
        l2h.as_client(client, output="logit"),
        "lenet5",
        "separate" if chosen.recipe == "paper" else None,
        settings=chosen,
    )
    specs = None
    if chosen.recipe == "paper":
        prices = l2h.Costs(c_e=0.1, c_1=0.5)
        specs = [RejectorSpec("paper", prices), RejectorSpec("paper", prices, seed=1, sync=3)]
    return system, system.prepare(X, y, specs=specs)


def outcome(system: l2h.HelpSystem, job: Job, workers: int) -> tuple[Trained, list[dict[str, Any]], Context]:
    context = Context(replace(system.settings, workers=workers), CPU)
    return system.method.train(job, context), context.history, context


def assert_same(one: tuple[Trained, list[Any], Context], two: tuple[Trained, list[Any], Context]) -> None:
    for first, second in zip(one[0].servers, two[0].servers, strict=True):
        for name, tensor in first.state_dict().items():
            assert torch.equal(tensor, second.state_dict()[name]), name
    for name, tensor in one[0].rejectors.state_dict().items():
        assert torch.equal(tensor, two[0].rejectors.state_dict()[name]), name
    rows = [[{k: v for k, v in row.items() if k != "seconds"} for row in history] for _, history, _ in (one, two)]
    assert rows[0] == rows[1]
    if one[0].held_out is not None:
        assert two[0].held_out is not None
        assert np.array_equal(one[0].held_out.scores, two[0].held_out.scores)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "settings",
    [
        {"honest": "holdout", "augment": "flip+shift", "copies": 2},
        {"honest": "crossfit", "folds": 2, "augment": "shift", "copies": 1},
        {"recipe": "paper", "loss": "paper", "dropout": True},
    ],
    ids=["holdout", "crossfit", "paper"],
)
def test_a_stored_array_trains_the_same_as_one_in_memory(
    settings: dict[str, Any], digits: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    X, y = digits
    np.save(tmp_path / "x.npy", X)
    system, job = prepared(X, y, **settings)
    stored = replace(job, X=StoredArray(tmp_path / "x.npy"))
    expected = outcome(system, job, 0)
    assert not expected[2].readers
    for workers in (2, 0):
        found = outcome(system, stored, workers)
        assert_same(expected, found)
        assert found[2].readers, "nothing was streamed"
    backwards = np.flip(np.flip(X, 0).copy(), 0)  # the same rows with other strides, which torch does not take
    backwards.flags.writeable = False
    assert_same(expected, outcome(system, replace(job, X=backwards), 0))


def test_the_workers_of_one_source_end_when_another_is_read(
    digits: tuple[np.ndarray, np.ndarray], small_blocks: None
) -> None:
    context = Context(Settings(device="cpu", workers=2), CPU)
    gc.collect()  # what the tests before left
    children = len(multiprocessing.active_children())
    for source in (digits[0], digits[0].copy()):
        found = torch.cat(list(stream(source, context).split(10)))
        assert torch.equal(found, torch.from_numpy(source))
        assert len(multiprocessing.active_children()) == children + 2
    del context
    gc.collect()
    assert len(multiprocessing.active_children()) == children


LONG = {"honest": "holdout", "augment": "flip+shift", "copies": 1, "server": replace(STAGE, batch=2)}


def train_within(folder: str, resume: bool) -> tuple[Trained, list[dict[str, Any]], Context]:
    """Train the stored digits of a folder, with checkpoints within epochs of many small steps."""
    X = StoredArray(Path(folder) / "x.npy")
    system, job = prepared(X[:], np.load(Path(folder) / "y.npy"), **LONG)
    checkpoints = Checkpoints(Path(folder) / "checkpoints", resume, seconds=0.0)
    context = Context(replace(system.settings, workers=1), CPU, checkpoints)
    return system.method.train(replace(job, X=X), context), context.history, context


@pytest.mark.long
def test_a_training_killed_within_an_epoch_goes_on_there_and_ends_the_same(
    digits: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    """A real process, ended by SIGKILL between two steps; what it read with ends as well."""
    for name, array in zip("xy", digits, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    program = "import sys, test_training_streaming as t; t.train_within(sys.argv[1], False)"
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path], env=os.environ | {"PYTHONPATH": paths})
    saved = tmp_path / "checkpoints" / "stage-server.safetensors"

    def step() -> int:
        try:
            return int(load_checkpoint(saved).meta.get("step", 0))
        except CheckpointError:
            return 0

    def stands_within_an_epoch() -> bool:
        assert process.poll() is None
        process.send_signal(signal.SIGSTOP)
        if step():
            return True
        process.send_signal(signal.SIGCONT)
        return False

    until(lambda: step() and stands_within_an_epoch())
    process.kill()
    assert process.wait(STUCK) == -signal.SIGKILL

    system, job = prepared(*digits, **LONG)
    assert_same(outcome(system, job, 0), train_within(str(tmp_path), resume=True))


class Pictures(Dataset):
    """Digits one at a time; ``break_at`` does something in a worker process instead of giving a sample."""

    def __init__(self, X: np.ndarray, y: np.ndarray, at_random: bool = False, break_at: Any = None) -> None:
        self.X, self.y, self.at_random, self.break_at = X, y, at_random, break_at

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        if self.break_at is not None and get_worker_info() is not None:
            self.break_at()
        x = torch.from_numpy(self.X[row])
        return torch.randint_like(x, 9) if self.at_random else x, int(self.y[row])


@pytest.mark.usefixtures("small_blocks")
def test_a_torch_dataset_is_fitted_without_a_copy_and_as_its_array(digits: tuple[np.ndarray, np.ndarray]) -> None:
    settings = {"honest": "holdout", "augment": "shift", "copies": 1}
    system, job = prepared(*digits, **settings)
    other, streamed = prepared(Pictures(*digits), None, **settings)
    assert isinstance(streamed.X, DatasetRows)
    assert_same(outcome(system, job, 0), outcome(other, streamed, 1))
    expected = system.fit(*digits).calibrate(*digits).evaluate(*digits)
    found = other.fit(Pictures(*digits), calibration=0.2).fit(Pictures(*digits)).calibrate(Pictures(*digits))
    np.testing.assert_array_equal(found.evaluate(Pictures(*digits)).score, expected.score)
    np.testing.assert_array_equal(found.predict(DatasetRows(Pictures(*digits))).label, found.predict(digits[0]).label)
    with pytest.raises(DataError, match="X is a torch Pictures, which gives pairs"):
        found.predict(Pictures(*digits))


def test_a_dataset_that_changes_its_samples_is_copied_and_told(digits: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.warns(L2HWarning, match="gives other inputs when it is read again, so it is copied"):
        X, _ = take_samples(Pictures(*digits, at_random=True), None)
    assert isinstance(X, np.ndarray)


def lost_disk() -> None:
    raise OSError(5, "Input/output\n  error\n")


def no_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))


def ended() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("break_at", "message"),
    [
        (lost_disk, r"^sample \d+ of the dataset cannot be read: OSError: .*Input/output error$"),
        (no_room, r"^no room to hand over inputs that were read: .*File too large.*workers=0\)$"),
        (ended, r"^a process that reads inputs ended: .*fewer \(workers=1\), or none \(workers=0\), need less memory$"),
    ],
)
def test_what_fails_in_a_worker_process_is_one_line(
    break_at: Any, message: str, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    reader = RowReader(DatasetRows(Pictures(*digits, break_at=break_at)), CPU, 1)
    with pytest.raises(DataError, match=message):
        list(reader.batches(np.arange(FEW), 10))
    reader = RowReader(DatasetRows(Pictures(*digits, break_at=break_at)), CPU, 0)
    assert sum(map(len, reader.batches(np.arange(FEW), 10))) == FEW


class Unreadable(Rows):
    shape, dtype = (FEW, 1, 8, 8), np.dtype(np.uint8)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def read(self, rows: Any) -> Any:
        raise self.error


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("error", "said"),
    [(RuntimeError("no such\nbucket"), "RuntimeError: no such bucket"), (SystemExit(3), "SystemExit: 3")],
)
def test_an_error_of_a_users_rows_is_told_as_what_it_is(error: BaseException, said: str) -> None:
    with pytest.raises(DataError, match=rf"^inputs cannot be read: {said}; with workers=0 .*where$"):
        list(RowReader(Unreadable(error), CPU, 1).batches(np.arange(FEW), 10))


@pytest.mark.usefixtures("small_blocks")
def test_a_reader_that_has_workers_can_be_sent_to_another_process(
    digits: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    np.save(tmp_path / "X.npy", digits[0])
    reader = RowReader(StoredArray(tmp_path / "X.npy"), CPU, 1)
    first = torch.cat(list(reader.batches(np.arange(FEW), 10)))
    sent = pickle.loads(pickle.dumps(reader))
    assert torch.equal(first, torch.cat(list(sent.batches(np.arange(FEW), 10))))
