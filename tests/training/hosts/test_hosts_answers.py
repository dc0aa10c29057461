"""``--send answers``: one bit per training sample instead of the weights."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import pytest
import torch
from commands import assert_schema, assert_told, call
from hosts_maker import (
    Pair,
    Program,
    assert_only_published_copies,
    events,
    history,
    link,
    steps_an_epoch,
    training_samples,
)
from waiting import free_port

import l2h
from l2h.models import build_scaled

#: Of one sync beside its body: the heads of a manifest's and of a body's request, the manifest, and some idle looks.
HEADS = 6_000


SERVER_EPOCHS, CLIENT_EPOCHS = 8, 15


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Pair:
    """Two programs that exchange answers; the client is stopped by a signal until its server has trained."""
    folder = tmp_path_factory.mktemp("answers")
    short = (
        "--send",
        "answers",
        "--set",
        f"server.epochs={SERVER_EPOCHS}",
        "--set",
        f"rejector.epochs={CLIENT_EPOCHS}",
    )
    port = free_port()
    offer = ("--publish-every", 100, "--linger", 120, "--listen", f"127.0.0.1:{port}")
    server = Program("server", folder / "server", data, *short, *offer)
    # Looks that bring nothing are bytes, too: one every half second, however slow the machine is.
    client = Program(
        "client", folder / "client", data, *short, "--server-url", f"http://127.0.0.1:{port}", "--poll", 0.5
    )
    try:
        client.epochs(1)
        client.send(signal.SIGSTOP)
        server.trained()
        client.send(signal.SIGCONT)
        client.finish()
    finally:
        server.end()
        client.end()
    return Pair(server.out, client.out)


@pytest.mark.long
def test_both_sides_do_all_their_steps_though_one_stood_still(pair: Pair) -> None:
    sides = (("server", pair.server, "server", SERVER_EPOCHS), ("client", pair.client, "rejector", CLIENT_EPOCHS))
    for role, run, stage, epochs in sides:
        rows = history(run, stage)
        assert [int(row["epoch"]) for row in rows] == list(range(1, epochs + 1))
        # The split is by class, and rounds in each.
        assert int(rows[-1]["steps"]) == pytest.approx(epochs * steps_an_epoch(role, training_samples()), abs=epochs)
    assert_only_published_copies(pair.server, pair.client)
    assert events(pair.client, "used")[-1]["sha256"] == events(pair.server, "published")[-1]["sha256"]


@pytest.mark.long
def test_bytes_a_sync_are_those_of_the_bodies_and_little_more(pair: Pair, unbroken: Pair) -> None:
    size, moved = {}, {}
    for send, runs in (("answers", pair), ("weights", unbroken)):
        (size[send],) = {line["size"] for line in events(runs.server, "published")}
        moved[send] = link(runs.client)["bytes_per_sync"]
        assert size[send] <= moved[send] <= size[send] + HEADS
    assert abs(size["answers"] - math.ceil(training_samples() / 8)) <= 1
    server = l2h.load(unbroken.client).fitted.servers[0].network
    parameters = sum(tensor.numel() * tensor.element_size() for tensor in server.state_dict().values())
    assert parameters < size["weights"] < parameters + 2_000, "safetensors adds a table of names"
    least, most = size["weights"] / (size["answers"] + HEADS), (size["weights"] + HEADS) / size["answers"]
    assert least <= moved["weights"] / moved["answers"] <= most
    assert least > 40, "or the bounds would say nothing"


def test_alexnet_on_fifty_thousand_samples_sends_thousands_of_times_less() -> None:
    with torch.device("meta"):
        net = build_scaled("alexnet", (3, 32, 32), 10)
    weights = sum(tensor.numel() * 4 for tensor in net.state_dict().values())
    assert weights / (math.ceil(50_000 / 8) + HEADS) > 1000


@pytest.mark.long
def test_the_client_has_no_server_and_is_judged_with_the_run_of_one(pair: Pair) -> None:
    assert not (pair.client / "checkpoints" / "server.safetensors").exists()
    assert_told(call("evaluate", pair.client), [1], "was trained elsewhere", "--server-run RUN", "server_run=RUN")
    with pytest.raises(l2h.errors.RunError, match="server_run=RUN"):
        l2h.load(pair.client)
    report = pair.report()
    assert_schema(report)
    assert report["accuracy"]["server"] > report["accuracy"]["client"]
    assert report["risk"]["system"] < report["risk"]["all_local"]
    told = call("evaluate", pair.client, "--server-run", pair.client)
    assert_told(told, [1], "holds no server that was trained by itself")
