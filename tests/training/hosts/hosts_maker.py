"""Data, programs and what they leave behind, for the tests of the two roles."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from commands import call, environment
from waiting import STUCK, until

TOKEN = "a-token-of-both"
CLASSES, FEATURES = 3, 6
TRAIN, TEST = 1500, 3000
#: Batches differ, so that neither side's steps are the other's.
BATCH = {"server": 4, "client": 16}
EPOCHS = {"server": 36, "client": 44}
PUBLISH = ("--publish-every", 50)
SETTINGS = [
    *("--recipe", "paper", "--loss", "shifted", "--server", "mlp", "--client", "tree", "--client-share", "0.3"),
    *("--option", "client.max_depth=1", "--rejector", "attached", "--device", "cpu", "--c-e", "0.1"),
    *("--set", f"server.batch={BATCH['server']}", "--set", f"rejector.batch={BATCH['client']}"),
    *("--set", "rejector.lr=0.001"),
]


def save_data(path: Path, classes: int = CLASSES, features: int = FEATURES, seed: int = 0) -> Path:
    """Clouds that a tree of one cut tells apart badly and a network well."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(5).normal(size=(classes, features)) * 1.2
    y = rng.integers(0, classes, TRAIN + TEST)
    X = (centres[y] + rng.normal(size=(len(y), features))).astype(np.float32)
    np.savez(path, X_train=X[:TRAIN], y_train=y[:TRAIN], X_test=X[TRAIN:], y_test=y[TRAIN:])
    return path


class Program:
    """``l2h train --role ROLE`` as a real process; what it says goes to a file beside its run folder."""

    def __init__(self, role: str, out: Path, data: Path, *more: object) -> None:
        self.role, self.out = role, out
        self.said = out.with_name(f"{out.name}.said")
        self.log = self.said.open("a+")
        self.begun = self.said.stat().st_size
        stage = "server" if role == "server" else "rejector"
        arguments = ["train", "--role", role, "--data", data, *SETTINGS, "--out", out]
        if f"{stage}.epochs" not in " ".join(map(str, more)):
            arguments += ["--set", f"{stage}.epochs={EPOCHS[role]}"]
        if role == "server" and "--listen" not in more:
            arguments += ["--listen", "127.0.0.1:0"]
        arguments += ["--poll", "0.05"] if role == "client" else []
        script = Path(__file__).with_name("hosts_process.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(witness(out)), *map(str, [*arguments, *more])],
            stdout=subprocess.DEVNULL,
            stderr=self.log,
            env=environment(L2H_TOKEN=TOKEN, NO_COLOR="1"),
        )

    def port(self) -> int:
        """Where the server listens, once it says so."""
        return int(until(lambda: re.search(r"offering \w+ at http://[\d.]+:(\d+)", self.text()), alive=self.alive)[1])

    def text(self) -> str:
        """What this process has said so far."""
        return self.said.read_text()[self.begun :]

    def alive(self) -> None:
        assert self.process.poll() is None, f"the {self.role} ended too early: {self.text()}"

    def epochs(self, least: int) -> None:
        """Wait until so many epochs are over."""
        until(lambda: len(history(self.out)) >= least, alive=self.alive)

    def send(self, how: signal.Signals) -> None:
        self.process.send_signal(how)

    def kill(self) -> None:
        """``kill -9``, while it trains."""
        self.alive()
        self.send(signal.SIGKILL)
        assert self.process.wait(STUCK) == -signal.SIGKILL

    def finish(self) -> str:
        """Wait for a good end; what it said."""
        assert self.process.wait(STUCK) == 0, self.text()
        return self.text()

    def trained(self) -> None:
        """Wait until the server's training is over and its weights are in the run."""
        until(lambda: "server" in config(self.out), alive=self.alive)

    def end(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)  # a stopped process dies of nothing less
        self.process.wait()
        self.log.close()


@dataclass(frozen=True)
class Pair:
    """A server's and a client's run."""

    server: Path
    client: Path

    def report(self) -> dict[str, Any]:
        """``l2h evaluate`` of the rejector with the server that was trained."""
        result = call("evaluate", self.client, "--server-run", self.server, "--json")
        assert result.status == 0, result.err
        (report,) = result.json()
        return report


def witness(out: Path) -> Path:
    return out.with_name(f"{out.name}.witness")


def events(out: Path, event: str) -> list[dict[str, Any]]:
    """The lines of one kind that a program's witness wrote."""
    path = witness(out)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["event"] == event]


def history(out: Path, stage: str | None = None) -> list[dict[str, str]]:
    """Rows of the run's ``history.csv``, which is replaced in one move."""
    path = out / "history.csv"
    if not path.exists():
        return []
    return [row for row in csv.DictReader(path.read_text().splitlines()) if stage in (None, row["stage"])]


def config(out: Path) -> dict[str, Any]:
    path = out / "config.json"
    return json.loads(path.read_text()) if path.exists() else {}


def link(out: Path) -> dict[str, Any]:
    """How the link stood when the client had trained."""
    return json.loads((out / "link.json").read_text())


def steps_an_epoch(role: str, samples: int) -> int:
    return -(-samples // BATCH[role])


def training_samples() -> int:
    """What the plan leaves for server and rejector: 90% of the rows less the client's 30% of those."""
    return TRAIN - TRAIN // 10 - round(0.3 * (TRAIN - TRAIN // 10))


def assert_no_step_was_lost(role: str, out: Path) -> None:
    """Every epoch is there once, with all its steps."""
    stage = "server" if role == "server" else "rejector"
    rows = history(out, stage)
    each = int(rows[0]["steps"])
    assert abs(each - steps_an_epoch(role, training_samples())) <= 1  # the split is by class and rounds in each
    assert [int(row["epoch"]) for row in rows] == list(range(1, EPOCHS[role] + 1))
    assert [int(row["steps"]) for row in rows] == [each * int(row["epoch"]) for row in rows]


def assert_only_published_copies(server: Path, client: Path) -> None:
    """What was used had been published, bit for bit, and never gave way to an older one, across restarts as well."""
    published = {(line["step"], line["sha256"]) for line in events(server, "published")}
    used = events(client, "used")
    assert used
    assert {(line["step"], line["sha256"]) for line in used} <= published
    versions = [line["version"] for line in used]
    assert versions == sorted(versions)
    told = [int(row["copy_version"]) for row in history(client, "rejector") if row["copy_version"]]
    assert told == sorted(told)
    assert set(told) <= set(versions)
