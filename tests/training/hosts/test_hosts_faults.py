"""Two programs over a link that does its worst, killed in turn: both finish as if nothing had happened."""

from __future__ import annotations

import logging
import math
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import assert_told, call
from fault_proxy import Fault, FaultProxy
from hosts_maker import (
    PUBLISH,
    SETTINGS,
    TEST,
    TOKEN,
    Pair,
    Program,
    assert_no_step_was_lost,
    assert_only_published_copies,
    config,
    events,
    history,
    link,
)
from waiting import free_port, until

from l2h.training.checkpoint import load_checkpoint
from l2h.training.exchange import SnapshotStore
from l2h.training.hosts import HostLink, publishing

#: Each in the middle of a snapshot of a few hundred kB: reset, late, ended early, one byte changed.
CUT, DELAY = Fault("cut", after=100_000), Fault("delay", seconds=0.2)
TRUNCATE, CORRUPT = Fault("truncate", after=50_000), Fault("corrupt", after=120_000)
#: More bytes than one snapshot of these runs has.
SNAPSHOT = 400_000
NOWHERE = "http://127.0.0.1:9"


def tolerance(risk: float, c_e: float = 0.1) -> float:
    """Three standard errors of the difference of two risks on this test set.

    A loss lies in [0, 1 + c_e], so its variance is at most ``risk * (1 + c_e - risk)``. The two risks are taken for
    independent, which errs on the wide side: they are measured on the same samples.
    """
    return 3 * math.sqrt(2 * risk * (1 + c_e - risk) / TEST)


def same_tensors(one: Path, two: Path, name: str) -> bool:
    first, second = (load_checkpoint(run / "checkpoints" / f"{name}.safetensors").tensors for run in (one, two))
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def suffer(proxy: FaultProxy, fault: Fault, client: Program, alive: Callable[[], Any]) -> None:
    """The link under this fault until it has struck inside a snapshot and the client has trained on meanwhile.

    A changed byte is noticed when the snapshot is whole, so another snapshot's worth must have come after it.
    """
    proxy.use(fault)
    moved, epochs = proxy.down, len(history(client.out))
    enough = moved + fault.after + (SNAPSHOT if fault.kind == "corrupt" else 0)
    until(lambda: proxy.down > enough and len(history(client.out)) > epochs, alive=alive)


@pytest.mark.long
@pytest.mark.alone
def test_faults_and_kills_cost_freshness_alone(start: Callable[..., Program], tmp_path: Path, unbroken: Pair) -> None:
    pair = Pair(tmp_path / "server", tmp_path / "client")
    proxy = FaultProxy(9)
    client = start("client", pair.client, "--server-url", proxy.url)
    server = start("server", pair.server, *PUBLISH, "--linger", 120)
    proxy.target = server.port()

    def alive() -> None:
        server.alive()
        client.alive()

    suffer(proxy, CUT, client, alive)
    suffer(proxy, DELAY, client, alive)
    server.kill()
    assert "server" not in config(pair.server), "it had finished before it was killed"
    alone = len(history(pair.client))
    until(lambda: len(history(pair.client)) > alone, alive=client.alive)  # the client trains on by itself
    client.send(signal.SIGSTOP)  # so that it has something left to train, however long the other takes to start

    server = start("server", pair.server, *PUBLISH, "--linger", 120, "--resume")
    proxy.target = server.port()
    client.send(signal.SIGCONT)
    suffer(proxy, TRUNCATE, client, alive)
    client.kill()
    assert "system" not in config(pair.client), "it had finished before it was killed"
    alone = len(history(pair.server))
    until(lambda: len(history(pair.server)) > alone, alive=server.alive)  # and so does the server
    server.send(signal.SIGSTOP)

    client = start("client", pair.client, "--server-url", proxy.url, "--resume")
    until(lambda: "resumed after epoch" in client.text(), alive=client.alive)
    server.send(signal.SIGCONT)
    suffer(proxy, CORRUPT, client, alive)
    suffer(proxy, CUT, client, alive)
    proxy.use(Fault())
    client.finish()
    server.trained()
    proxy.close()

    assert_no_step_was_lost("server", pair.server)
    assert_no_step_was_lost("client", pair.client)
    assert_only_published_copies(pair.server, pair.client)
    failures = link(pair.client)["failures"]
    assert failures["damaged"] >= 1
    assert failures["cut"] >= 1
    # The server draws from its seed alone, so nothing that happened can show in it.
    assert same_tensors(pair.server, unbroken.server, "server")
    whole, broken = unbroken.report()["risk"], pair.report()["risk"]
    assert whole["system"] < whole["all_local"] - 2 * tolerance(whole["system"]), "asking pays, or nothing is shown"
    assert broken["system"] < whole["system"] + tolerance(whole["system"]), "what was missed cost more than freshness"


@pytest.mark.long
@pytest.mark.alone
def test_an_unbroken_link_brings_copies_of_growing_age_and_version(unbroken: Pair) -> None:
    assert_no_step_was_lost("server", unbroken.server)
    assert_no_step_was_lost("client", unbroken.client)
    assert_only_published_copies(unbroken.server, unbroken.client)
    rows = [row for row in history(unbroken.client, "rejector") if row["copy_version"]]
    assert len({row["copy_version"] for row in rows}) > 5
    last = int(history(unbroken.server)[-1]["steps"])
    # A copy that a newer one replaced while it was fetched makes the link faulty for a moment.
    allowed = {"ok", "faulty"} if "gone" in link(unbroken.client)["failures"] else {"ok"}
    for row in rows:
        assert int(row["copy_step"]) in {*range(0, last, PUBLISH[1]), last}
        assert int(row["copy_age_steps"]) >= 0
        assert float(row["copy_age_seconds"]) >= 0
        assert row["link"] in allowed
    # Nothing but tries before the server was there, and copies that a newer one replaced while they were fetched.
    assert link(unbroken.client)["failures"].keys() <= {"connect", "gone"}


def test_a_link_that_is_down_all_the_time_costs_neither_a_step(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both train to their end; but a rejector that never met a server is no result, and that is said."""
    monkeypatch.setenv("L2H_TOKEN", TOKEN)
    server, client = tmp_path / "server", tmp_path / "client"
    both = ["train", "--data", data, *SETTINGS, "--set", "server.epochs=3", "--set", "rejector.epochs=10"]
    offer = ["--role", "server", "--listen", "127.0.0.1:0", "--linger", 0, *PUBLISH]
    assert call(*both, *offer, "--out", server).status == 0
    told = call(*both, "--role", "client", "--server-url", NOWHERE, "--out", client)
    assert_told(told, [1], "no copy of the server ever arrived", "cannot connect", "--server-url")
    assert [row["epoch"] for row in history(server, "server")] == [str(i + 1) for i in range(3)]
    rows = history(client, "rejector")
    assert [row["epoch"] for row in rows] == [str(i + 1) for i in range(10)]
    assert {row["link"] for row in rows} <= {"connecting", "unreachable"}
    assert {row["copy_version"] for row in rows} == {""}
    found = link(client)
    assert (found["syncs"], found["version"]) == (0, None)
    assert found["failures"]["connect"] > 0
    assert "system" not in config(client)


def test_a_snapshot_that_cannot_be_written_costs_no_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system gives no descriptor: that is said, and the next snapshot is published."""
    monkeypatch.setattr(logging.getLogger("l2h"), "propagate", True)  # a command in this process turns it off
    stage: Any = SimpleNamespace(steps=1, weights=lambda: b"weights")
    identity = {"classes": ["0"], "input_shape": [1]}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with publishing(stage, HostLink(TOKEN, listen="127.0.0.1:0"), identity, tmp_path):
        stage.publish(1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            stage.publish(2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        stage.publish(3)
    assert "snapshot of step 2 was not published" in caplog.text
    newest = SnapshotStore(tmp_path).latest("weights")
    assert newest is not None
    assert newest.step == 3


@pytest.mark.long
def test_a_server_that_stands_still_does_not_stop_the_client(start: Callable[..., Program], tmp_path: Path) -> None:
    """Stopped by a signal in the middle of its training, with connections open; then it goes on."""
    epochs = 60
    port, short = free_port(), ("--set", f"server.epochs={epochs}", "--set", f"rejector.epochs={epochs}")
    server = start("server", tmp_path / "server", *PUBLISH, "--linger", 0, "--listen", f"127.0.0.1:{port}", *short)
    client = start("client", tmp_path / "client", "--server-url", f"http://127.0.0.1:{port}", *short)
    server.port()
    server.send(signal.SIGSTOP)  # so that it trains while the client does, however long that takes to start
    until(lambda: "rejector:" in client.text(), alive=client.alive)
    server.send(signal.SIGCONT)
    until(lambda: events(client.out, "used"), alive=client.alive)
    server.send(signal.SIGSTOP)
    assert "server" not in config(server.out), "it had trained before it was stopped"
    assert len(history(client.out)) < epochs, "the client had trained before its peer was stopped"
    client.finish()
    assert [row["epoch"] for row in history(client.out, "rejector")] == [str(i + 1) for i in range(epochs)]
    assert_only_published_copies(server.out, client.out)
    server.send(signal.SIGCONT)
    server.finish()
    assert [row["epoch"] for row in history(server.out, "server")] == [str(i + 1) for i in range(epochs)]
