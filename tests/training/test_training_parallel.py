"""A server trained by several processes, against the same training in one; what the processes say and write."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import parallel_trainings
import psutil
import pytest
from commands import DIGITS, QUICK, call, environment, files_of
from torch import distributed, nn
from waiting import STUCK, until

from l2h.errors import L2HWarning, ModelError, SettingsError
from l2h.training import data_parallel
from l2h.training.parallel import Group, SharedModel

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    out = tmp_path_factory.mktemp("parallel") / "found"
    subprocess.run([*TORCHRUN, parallel_trainings.__file__, out], env=environment(), check=True, timeout=STUCK)
    history = Path(f"{out}.run/history.csv").read_text()
    return [{**json.loads(Path(f"{out}.{rank}").read_text()), "history": history} for rank in (0, 1)]


@pytest.mark.long
@pytest.mark.parametrize("name", parallel_trainings.CASES)
def test_two_processes_train_what_one_does(shared: list[dict[str, Any]], name: str) -> None:
    """Up to roundings of float32, which grow over 28 steps; the parts of the last batches are 0 and 1 samples."""
    alone, together = parallel_trainings.train(name), shared[0]["cases"][name]
    assert shared[0]["size"] == 2
    assert together["curves"] == [pytest.approx(losses, rel=2e-5) for losses in alone["curves"]]
    for key, weights in alone["weights"].items():
        assert together["weights"][key] == pytest.approx(weights, rel=1e-3, abs=2e-5), key


@pytest.mark.long
def test_both_processes_have_the_same_bits(shared: list[dict[str, Any]]) -> None:
    assert shared[0] == shared[1]


@pytest.mark.long
def test_every_process_gets_the_fitted_system_and_the_first_writes_its_folder(shared: list[dict[str, Any]]) -> None:
    """The samples are few and the answers discrete: a rounding may turn one of them."""
    alone = parallel_trainings.fit(None)
    together = shared[0]["fitted"]
    assert sum(a != b for a, b in zip(alone["label"], together["label"], strict=True)) <= 2
    assert set(together["source"]) == {"local", "remote"}, "some are asked about"
    rows = list(csv.DictReader(io.StringIO(shared[0]["history"])))
    assert [row["stage"] for row in rows].count("rejector") == 3, "no epoch twice"


@pytest.mark.long
@pytest.mark.parametrize("part", ["settings", "samples", "network"])
def test_a_process_that_would_train_something_else_is_named(shared: list[dict[str, Any]], part: str) -> None:
    said = shared[0]["refused"][part]
    assert said.startswith(f"process 2 of 2 differs from the first in its {part}: start all with the same command")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' of the environment is no number"),
        ({"RANK": "-1"}, "RANK='-1' of the environment is no number"),
        ({"RANK": "2"}, "RANK=2 of the environment is not below WORLD_SIZE=2"),
        ({"MASTER_PORT": ""}, "MASTER_PORT='' of the environment is no number"),
        ({"MASTER_ADDR": ""}, "RANK and WORLD_SIZE=2 are set, but no MASTER_ADDR"),
        ({"TORCHELASTIC_RESTART_COUNT": "x"}, "TORCHELASTIC_RESTART_COUNT='x' of the environment is no number"),
    ],
)
def test_half_an_environment_of_torchrun_is_refused(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], said: str
) -> None:
    whole = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in {**whole, **changed}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=said), data_parallel("cpu"):
        pass


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Group]:
    """Says that it is the first of two; torch's own group has this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield Group(0, 2)
    distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (nn.TransformerEncoderLayer(8, 2, 8, dropout=0.1), "MultiheadAttention"),
        (nn.GRU(8, 8, 2, dropout=0.1), "GRU"),
        (nn.BatchNorm2d(8, track_running_stats=False), "BatchNorm2d"),
        (nn.InstanceNorm2d(8, affine=True, track_running_stats=True), "InstanceNorm2d"),
        (nn.Sequential(nn.RReLU(), nn.Linear(2, 2)), "RReLU"),
    ],
)
def test_layers_that_draw_for_each_process_are_warned_of(peers: Group, layer: nn.Module, kind: str) -> None:
    with pytest.warns(
        L2HWarning, match=f"^{kind} of the server: 2 processes train a similar server, but not that of one"
    ):
        SharedModel(layer, peers)


def test_other_layers_are_not_warned_of(peers: Group) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SharedModel(nn.Sequential(parallel_trainings.drawn_net(), parallel_trainings.normed_net()), peers)
        SharedModel(nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0), peers)
    with pytest.raises(ModelError, match="use BatchNorm"):
        SharedModel(nn.SyncBatchNorm(4), peers)


@pytest.mark.long
def test_nothing_of_the_group_is_left_after_the_block(shared: list[dict[str, Any]]) -> None:
    """A thread of gloo that still runs when its process exits may abort it."""
    for process in shared:
        assert process["threads"]
        assert not [name for name in process["threads"] if "gloo" in name or "store" in name]


def test_a_process_that_was_started_alone_is_a_group_of_one() -> None:
    with data_parallel() as group:
        assert (group.rank, group.size, group.first) == (0, 1, True)


def start(*arguments: object, more: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = [*TORCHRUN, *more, "-m", "l2h", "train", *map(str, arguments)]
    return subprocess.Popen(words, env=environment(), **pipes)  # type: ignore[call-overload, no-any-return]


def curves(folder: Path) -> list[list[float]]:
    with (folder / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [[float(row[key]) for key in ("epoch", "train_loss", "held_out_loss") if row[key]] for row in rows]


@pytest.mark.long
def test_train_under_torchrun_writes_the_run_that_train_alone_writes(tmp_path: Path) -> None:
    alone = call("train", *DIGITS, *QUICK, "--json", "--out", tmp_path / "alone")
    with start(*DIGITS, *QUICK, "--json", "--out", tmp_path / "two") as process:
        out, err = process.communicate(timeout=STUCK)
    assert process.returncode == 0, err
    assert json.loads(out)[0]["risk"] == pytest.approx(alone.json()[0]["risk"], abs=0.02)
    assert files_of(tmp_path / "two").keys() == files_of(tmp_path / "alone").keys()
    assert curves(tmp_path / "two") == [pytest.approx(row, rel=1e-4) for row in curves(tmp_path / "alone")]
    for line in ("server: 2 epochs", "rejector: 2 epochs"):
        assert len(re.findall(f" {line}", err)) == 1, "the first process alone speaks"


@pytest.mark.long
def test_a_killed_process_costs_no_more_than_an_epoch(tmp_path: Path) -> None:
    """torchrun starts both again, which go on by themselves from the last checkpoint to the end that others reach."""
    longer = [
        *DIGITS,
        *QUICK,
        "--set",
        "server.epochs=10",
        "--set",
        "server.batch=8",
        "--set",
        "server.lr=1e-4",
        "--set",
        "server.patience=none",
    ]
    assert call("train", *longer, "--json", "--out", tmp_path / "alone").status == 0
    folder = tmp_path / "two"
    with start(*longer, "--json", "--out", folder, more=("--max-restarts", "1")) as process:
        until(lambda: (folder / "history.csv").exists() and len(curves(folder)) > 4)
        ranks = psutil.Process(process.pid).children()
        os.kill(ranks[-1].pid, signal.SIGKILL)
        _, err = process.communicate(timeout=STUCK)
    assert process.returncode == 0, err
    assert "resumed after epoch" in err
    assert curves(folder) == [pytest.approx(row, rel=5e-3) for row in curves(tmp_path / "alone")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--recipe", "paper"], "recipe 'paper' trains server and rejector in turn, in one process"),
        (["--device", "cuda:1"], "each process takes a GPU of its own"),
    ],
)
@pytest.mark.long
def test_what_several_processes_cannot_do_is_said(tmp_path: Path, arguments: list[str], said: str) -> None:
    with start(*DIGITS, *QUICK[:-2], *arguments, "--out", tmp_path / "run") as process:
        _, err = process.communicate(timeout=STUCK)
    assert process.returncode != 0
    told = [line for line in err.splitlines() if line.startswith("error: ") and said in line]
    assert told
    assert "l2h/cli" not in err, "torchrun has a traceback of its own"
