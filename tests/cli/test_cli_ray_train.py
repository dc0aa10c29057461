"""``l2h train --on ray``: one server trained by processes of a real Ray cluster of two nodes."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from commands import DIGITS, QUICK, assert_told, call, execute, start
from ray_nodes import ray_nodes
from waiting import STUCK, until

pytestmark = pytest.mark.long
LONGER = [*DIGITS, *QUICK, "--set", "server.epochs=8", "--set", "server.batch=8", "--set", "server.lr=1e-4"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with ray_nodes(2, cpus=1):
        yield


def curves(folder: Path) -> list[list[float]]:
    with (folder / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [[float(row[key]) for key in ("epoch", "train_loss", "held_out_loss") if row[key]] for row in rows]


@pytest.mark.usefixtures("cluster")
def test_a_process_per_node_trains_what_one_does_and_goes_on_after_one_is_killed(tmp_path: Path) -> None:
    assert call("train", *LONGER, "--out", tmp_path / "alone").status == 0
    folder = tmp_path / "ray"
    with start("train", *LONGER, "--json", "--on", "ray", "--out", folder) as process:
        until(lambda: (folder / "history.csv").exists() and len(curves(folder)) > 3)
        workers = [one for one in psutil.process_iter(["cmdline"]) if "RayTrainWorker" in " ".join(_words(one))]
        assert len(workers) == 2, "the default is a process for each CPU"
        os.kill(workers[0].pid, signal.SIGKILL)
        out, err = process.communicate(timeout=STUCK)
    assert process.returncode == 0, err
    assert "2 processes train the server" in err
    assert err.count("resumed after epoch") >= 1
    assert json.loads(out)[0]["dataset"] == "digits"
    assert curves(folder) == [pytest.approx(row, rel=5e-3) for row in curves(tmp_path / "alone")]
    assert (folder / "report.html").exists()


@pytest.mark.usefixtures("cluster")
def test_what_the_cluster_cannot_do_is_one_line(tmp_path: Path) -> None:
    many = execute("train", *DIGITS, *QUICK, "--on", "ray", "--processes", 5, "--out", tmp_path / "many")
    assert_told(many, 2, "--processes 5: the cluster has room for 2")
    assert not (tmp_path / "many").exists()


def test_flags_that_do_not_go_together(tmp_path: Path) -> None:
    assert_told(call("train", *DIGITS, "--processes", 2, "--out", tmp_path / "run"), 2, "torchrun --nproc-per-node")
    both = call("train", *DIGITS, "--on", "ray", "--role", "server", "--recipe", "paper", "--out", tmp_path / "run")
    assert_told(both, 2, "--role is one side")
    tree = [*DIGITS[:-1], "sklearn:DecisionTreeClassifier"]
    for other in (["train", *tree], ["train", *DIGITS, "--recipe", "paper"]):
        assert_told(call(*other, "--on", "ray", "--out", tmp_path / "run"), 2, "train a network of a name together")
    assert not (tmp_path / "run").exists()


def _words(process: psutil.Process) -> list[str]:
    return process.info["cmdline"] or []
