"""``--send answers``: one bit a training sample instead of the weights."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import pytest
import torch
from cli_runner import assert_schema, assert_told, call
from roles_maker import Program, assert_only_published_copies, events, history, link, steps_an_epoch, training_samples

import l2h
from l2h.models import build_scaled

#: Of one sync beside its body: the heads of a manifest's and of a body's request, the manifest, and some idle looks.
HEADS = 6_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, tuple[Path, Path]]:
    """Both ways of sending, server and client; the client of the answers stands still while its server trains."""
    out = {}
    for send in ("answers", "weights"):
        folder = tmp_path_factory.mktemp(send)
        short = ("--send", send, "--set", "server.epochs=8", "--set", "rejector.epochs=20")
        server = Program("server", folder / "server", data, *short, "--publish-every", 100, "--linger", 120)
        client = Program("client", folder / "client", data, *short, "--server-url", f"http://127.0.0.1:{server.port()}")
        try:
            if send == "answers":
                client.epochs(1)
                client.send(signal.SIGSTOP)
                server.trained()
                client.send(signal.SIGCONT)
            client.finish()
            server.trained()
        finally:
            server.end()
            client.end()
        out[send] = (server.out, client.out)
    return out


Runs = dict[str, tuple[Path, Path]]


@pytest.mark.slow
@pytest.mark.parametrize("send", ["answers", "weights"])
def test_both_sides_do_all_their_steps(runs: Runs, send: str) -> None:
    server, client = runs[send]
    for run, stage, role, epochs in ((server, "server", "server", 8), (client, "rejector", "client", 20)):
        rows = history(run, stage)
        assert [int(row["epoch"]) for row in rows] == list(range(1, epochs + 1))
        # The split is by class, and rounds in each.
        assert int(rows[-1]["steps"]) == pytest.approx(epochs * steps_an_epoch(role, training_samples()), abs=epochs)
    assert_only_published_copies(server, client)
    # The client ends with the last that was published.
    assert events(client, "used")[-1]["sha256"] == events(server, "published")[-1]["sha256"]


@pytest.mark.slow
def test_bytes_a_sync_are_those_of_the_bodies_and_little_more(runs: Runs) -> None:
    sizes = {}
    for send, (server, client) in runs.items():
        sizes[send] = {line["size"] for line in events(server, "published")}
        assert len(sizes[send]) == 1
        (size,) = sizes[send]
        assert size <= link(client)["bytes_per_sync"] <= size + HEADS
    (answers,), (weights,) = sizes["answers"], sizes["weights"]
    assert abs(answers - math.ceil(training_samples() / 8)) <= 1
    server = l2h.load(runs["weights"][1]).server
    parameters = sum(tensor.numel() * tensor.element_size() for tensor in server.state_dict().values())
    assert parameters < weights < parameters + 2_000, "safetensors adds a table of names"
    moved = {send: link(client)["bytes_per_sync"] for send, (_, client) in runs.items()}
    assert weights / (answers + HEADS) <= moved["weights"] / moved["answers"] <= (weights + HEADS) / answers


def test_alexnet_on_fifty_thousand_samples_sends_thousands_of_times_less() -> None:
    with torch.device("meta"):
        net = build_scaled("alexnet", (3, 32, 32), 10)
    weights = sum(tensor.numel() * 4 for tensor in net.state_dict().values())
    assert weights / (math.ceil(50_000 / 8) + HEADS) > 1000


@pytest.mark.slow
def test_the_client_has_no_server_and_is_judged_with_the_run_of_one(runs: Runs) -> None:
    server, client = runs["answers"]
    assert not (client / "checkpoints" / "server.safetensors").exists()
    told = call("evaluate", client)
    assert_told(told, [1], "was trained elsewhere", "--server-run RUN", "server_run=RUN")
    with pytest.raises(l2h.errors.RunError, match="server_run=RUN"):
        l2h.load(client)
    judged = call("evaluate", client, "--server-run", server, "--json")
    assert judged.status == 0, judged.err
    (report,) = judged.json()
    assert_schema(report)
    assert report["accuracy"]["server"] > report["accuracy"]["client"]
    assert report["risk"]["system"] < report["risk"]["all_local"]
    assert_told(call("evaluate", client, "--server-run", client), [1], "holds no server that was trained by itself")


@pytest.mark.slow
def test_answers_train_the_rejector_that_weights_train(runs: Runs) -> None:
    """Both know of every sample whether the server is right, so the rejectors end close to each other.

    Not equal: a copy arrives when it arrives. Their decisions on the 3000 test samples may differ by three standard
    errors of a difference of two rates, which is at most 3 * sqrt(0.5 / 3000) = 0.039.
    """
    reports = [
        call("evaluate", client, "--server-run", server, "--json").json()[0] for server, client in runs.values()
    ]
    rates = [report["reject_rate"] for report in reports]
    assert abs(rates[0] - rates[1]) < 3 * math.sqrt(0.5 / 3000)
