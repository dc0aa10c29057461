"""Peers that are not to be believed: nothing of them is used, the client trains to its end, and says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import assert_told, call
from hosts_maker import SETTINGS, TOKEN, history, link
from safetensors.torch import save
from waiting import until

from l2h import Settings
from l2h.data import Dataset
from l2h.experiments import two_hosts
from l2h.experiments.carry_out import divide, load_data
from l2h.experiments.plan import Plan
from l2h.experiments.runs import RunTarget
from l2h.experiments.two_hosts import train_client_side, train_server_side
from l2h.models import InputScale, build_scaled
from l2h.rows import digest
from l2h.settings import PAPER_REJECTOR, PAPER_SERVER
from l2h.system import HelpSystem
from l2h.training import Silent, hosts
from l2h.training.checkpoint import load_checkpoint
from l2h.training.exchange import ExchangeError, PublisherServer, SnapshotStore, pack_answers
from l2h.training.hosts import HostLink
from l2h.training.loop import run_stage

pytestmark = pytest.mark.long

EPOCHS = 2


@pytest.fixture(scope="module")
def plan(data: Path) -> Plan:
    settings = Settings(
        recipe="paper", loss="shifted", device="cpu",
        server=replace(PAPER_SERVER, epochs=1), rejector=replace(PAPER_REJECTOR, epochs=EPOCHS),
    )  # fmt: skip
    return Plan(
        str(data), client="tree", client_share=0.3, client_options={"max_depth": 1}, server="mlp", settings=settings
    )


@pytest.fixture(scope="module")
def dataset(plan: Plan) -> Dataset:
    return load_data(plan)


@pytest.fixture(scope="module")
def identity(plan: Plan, dataset: Dataset) -> dict[str, Any]:
    """What both sides of this plan state of themselves."""
    return {
        "classes": ["0", "1", "2"],
        "input_shape": [6],
        "server": ["mlp", {}],
        "data": digest(*divide(dataset, plan).train),
    }


@pytest.fixture(scope="module")
def network(plan: Plan, dataset: Dataset) -> torch.nn.Module:
    torch.manual_seed(3)
    return build_scaled("mlp", (6,), 3, InputScale.standardise(divide(dataset, plan).train[0])).eval()


@pytest.fixture(scope="module")
def bodies(plan: Plan, dataset: Dataset, network: torch.nn.Module) -> dict[str, bytes]:
    """One network's weights, and its answers to the training samples."""
    X, y = divide(dataset, plan).train
    with torch.no_grad():
        right = network(torch.from_numpy(X)).argmax(-1).numpy() == y
    assert 0 < right.mean() < 1
    return {"weights": save(network.state_dict()), "answers": pack_answers(right)}


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training begins when something has come of the link, be it a copy or a failure."""

    def later(stage: Any, context: Any) -> None:
        fetcher = stage.copy.fetcher
        until(lambda: fetcher.latest() is not None or fetcher.status().failures)
        run_stage(stage, context)

    monkeypatch.setattr(hosts, "run_stage", later)


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Callable[..., PublisherServer]]:
    """Offer one snapshot under an identity."""
    running: list[PublisherServer] = []

    def offer(stated: dict[str, Any], body: bytes, kind: str = "weights", token: str = TOKEN) -> PublisherServer:
        store = SnapshotStore(tmp_path / f"store-{len(running)}")
        store.publish(kind, body, 7, {})
        running.append(PublisherServer(store, {**stated, "kinds": [kind]}, token))
        running[-1].start()
        return running[-1]

    yield offer
    for server in running:
        server.stop()


@pytest.fixture
def follow(plan: Plan, dataset: Dataset, tmp_path: Path, heard: None) -> Callable[..., HelpSystem | None]:
    """The client's side against a publisher, into ``tmp_path / "client"``."""

    def train(server: PublisherServer, send: str = "weights", **run: Any) -> HelpSystem | None:
        a_link = HostLink(TOKEN, send, url=server.url, interval=0.05)
        return train_client_side(plan, dataset, RunTarget(tmp_path / "client", **run), a_link, Silent())

    return train


def rows(out: Path) -> list[dict[str, str]]:
    found = history(out, "rejector")
    assert [row["epoch"] for row in found] == [str(epoch + 1) for epoch in range(EPOCHS)], "it trained to its end"
    return found


@pytest.mark.parametrize("send", ["weights", "answers"])
def test_the_right_peer_is_used(
    follow: Any, publisher: Any, identity: dict[str, Any], bodies: dict[str, bytes], tmp_path: Path, send: str
) -> None:
    """Nothing below is refused for another reason than the one it is about."""
    follow(publisher(identity, bodies[send], send), send)
    found = rows(tmp_path / "client")
    assert {(row["copy_version"], row["copy_step"], row["copy_age_steps"], row["link"]) for row in found} == {
        ("1", "7", "0", "ok")
    }
    ages = [float(row["copy_age_seconds"]) for row in found]
    assert ages == sorted(ages), "nothing newer came, so it grew older"
    assert link(tmp_path / "client")["syncs"] == 1


def test_weights_and_answers_of_one_server_train_the_same_rejector(
    follow: Any, publisher: Any, identity: dict[str, Any], bodies: dict[str, bytes], tmp_path: Path
) -> None:
    """L2 needs one bit per sample: bit for bit the same, given that copy from the first step on."""
    trained = {}
    for send, body in bodies.items():
        follow(publisher(identity, body, send), send, force=(tmp_path / "client").exists())
        trained[send] = load_checkpoint(tmp_path / "client" / "checkpoints" / "rejector.safetensors").tensors
    assert trained["weights"].keys() == trained["answers"].keys()
    assert all(torch.equal(trained["weights"][name], tensor) for name, tensor in trained["answers"].items())


@pytest.mark.parametrize(
    ("send", "changes", "named"),
    [
        ("weights", {"classes": ["0", "1", "2", "3"]}, "classes"),
        ("weights", {"classes": ["a", "b", "c"]}, "classes"),
        ("weights", {"input_shape": [7]}, "input_shape"),
        ("weights", {"server": ["lenet5", {}]}, "server"),
        ("weights", {"server": ["mlp", {"dropout": 0.1}]}, "server"),
        ("answers", {"data": "0" * 64}, "data"),
    ],
    ids=["more classes", "other classes", "input shape", "server model", "server option", "training samples"],
)
def test_a_peer_of_another_task_is_never_used(
    follow: Any, publisher: Any, identity: dict[str, Any], bodies: dict[str, bytes], tmp_path: Path,
    caplog: pytest.LogCaptureFixture, send: str, changes: dict[str, Any], named: str,
) -> None:  # fmt: skip
    with pytest.raises(ExchangeError, match=f"no copy of the server ever arrived .*{named}: ours"):
        follow(publisher({**identity, **changes}, bodies[send], send), send)
    found = rows(tmp_path / "client")
    assert {row["copy_version"] for row in found} == {""}
    assert found[-1]["link"] == "wrong_peer"
    state = link(tmp_path / "client")
    assert (state["state"], state["syncs"], state["version"]) == ("wrong_peer", 0, None)
    assert f"{named}: ours" in state["error"]
    assert f"{named}: ours" in caplog.text
    assert not list((tmp_path / "client" / "arrivals").glob("*.bin"))


def test_weights_need_not_be_of_the_same_samples(
    follow: Any, publisher: Any, identity: dict[str, Any], bodies: dict[str, bytes], tmp_path: Path
) -> None:
    follow(publisher({**identity, "data": "0" * 64}, bodies["weights"]))
    assert {row["copy_version"] for row in rows(tmp_path / "client")} == {"1"}


@pytest.mark.parametrize("kind", ["bytes of nothing", "another network", "one tensor short", "answers to fewer"])
def test_a_whole_snapshot_that_cannot_be_used_costs_freshness_alone(
    follow: Any, publisher: Any, identity: dict[str, Any], network: torch.nn.Module, bodies: dict[str, bytes],
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str,
) -> None:  # fmt: skip
    """Its hash is right and its publisher has the token, yet it is not what it should be: another version's, say."""
    send = "answers" if kind == "answers to fewer" else "weights"
    state = network.state_dict()
    body = {
        "bytes of nothing": b"x" * 5000,
        "another network": save({name: t[:1].clone() for name, t in state.items() if t.ndim}),
        "one tensor short": save(dict(list(state.items())[:-1])),
        "answers to fewer": bodies["answers"][:-1],
    }[kind]
    with pytest.raises(ExchangeError, match="arrived, but none could be used"):
        follow(publisher(identity, body, send), send)
    assert {row["copy_version"] for row in rows(tmp_path / "client")} == {""}
    assert "version 1 of the server is not used" in caplog.text
    assert link(tmp_path / "client")["syncs"] == 1, "it did arrive whole"


@pytest.mark.parametrize(("send", "more"), [("weights", 1 << 17), ("answers", 1)])
def test_a_snapshot_larger_than_the_server_can_be_is_not_fetched(
    follow: Any, publisher: Any, identity: dict[str, Any], bodies: dict[str, bytes], tmp_path: Path,
    send: str, more: int,
) -> None:  # fmt: skip
    """The client knows the network that it will fill, and how many answers there are."""
    with pytest.raises(ExchangeError, match=r"no copy .* over the \d+ that are expected"):
        follow(publisher(identity, bodies[send] + bytes(more), send), send)
    rows(tmp_path / "client")
    assert link(tmp_path / "client")["failures"].keys() == {"too_large"}
    assert link(tmp_path / "client")["bytes_moved"] < 100_000
    assert not [path for path in (tmp_path / "client").rglob("*") if path.suffix in (".part", ".bin")]


def test_a_wrong_token_is_said_and_costs_no_step(
    publisher: Any, identity: dict[str, Any], bodies: dict[str, bytes], data: Path, tmp_path: Path, heard: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("L2H_TOKEN", "another-token")
    server, out = publisher(identity, bodies["weights"]), tmp_path / "client"
    result = call(
        "train", "--role", "client", "--server-url", server.url, "--data", data, *SETTINGS,
        "--set", f"rejector.epochs={EPOCHS}", "--poll", 0.05, "--out", out,
    )  # fmt: skip
    assert_told(result, [1], "no copy of the server ever arrived", "the publisher refused the token", "start anew")
    assert "fetching weights" in result.err, "said as soon as it was known"
    assert TOKEN not in result.err
    assert "another-token" not in result.err
    found = rows(out)
    assert {row["copy_version"] for row in found} == {""}
    assert found[-1]["link"] == "refused"
    assert link(out)["state"] == "refused"


def test_the_server_states_what_the_client_compares(
    plan: Plan, dataset: Dataset, identity: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated: list[dict[str, Any]] = []

    class Listening(PublisherServer):
        def __init__(self, store: Any, identity: Any, *more: Any) -> None:
            stated.append(dict(identity))
            super().__init__(store, identity, *more)

    monkeypatch.setattr(hosts, "PublisherServer", Listening)
    a_link = HostLink(TOKEN, listen="127.0.0.1:0", linger=0)
    train_server_side(plan, dataset, RunTarget(tmp_path / "server"), a_link, Silent())
    assert stated == [{**identity, "kinds": ["weights"]}]


def test_a_run_that_is_replaced_begins_without_the_copy_of_the_old_one(
    follow: Any, publisher: Any, identity: dict[str, Any], bodies: dict[str, bytes], tmp_path: Path
) -> None:
    follow(publisher(identity, bodies["weights"]))
    assert {row["copy_version"] for row in rows(tmp_path / "client")} == {"1"}
    with pytest.raises(ExchangeError, match="no copy of the server ever arrived"):
        follow(publisher({**identity, "input_shape": [7]}, bodies["weights"]), force=True)
    assert {row["copy_version"] for row in rows(tmp_path / "client")} == {""}


def test_a_server_that_is_replaced_offers_nothing_of_the_old_one(plan: Plan, dataset: Dataset, tmp_path: Path) -> None:
    out, a_link = tmp_path / "server", HostLink(TOKEN, listen="127.0.0.1:0", linger=0, publish_every=10)
    train_server_side(plan, dataset, RunTarget(out), a_link, Silent())
    before = SnapshotStore(out / "snapshots")
    train_server_side(
        replace(plan, settings=replace(plan.settings, seed=1)), dataset, RunTarget(out, force=True), a_link, Silent()
    )
    after = SnapshotStore(out / "snapshots")
    assert after.run != before.run
    newest = before.latest("weights"), after.latest("weights")
    assert newest[0].version == newest[1].version, "the same number of steps, counted anew"
    assert newest[0].sha256 != newest[1].sha256


def test_a_server_stopped_while_it_stays_is_resumed_without_new_training(
    plan: Plan, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, a_link = tmp_path / "server", HostLink(TOKEN, listen="127.0.0.1:0", linger=5.0, publish_every=10)

    def interrupt(seconds: float) -> None:
        assert seconds == 5.0
        raise KeyboardInterrupt

    monkeypatch.setattr(two_hosts, "time", SimpleNamespace(sleep=interrupt))
    with pytest.raises(KeyboardInterrupt):
        train_server_side(plan, dataset, RunTarget(out), a_link, Silent())
    monkeypatch.setattr(two_hosts, "time", SimpleNamespace(sleep=lambda seconds: None))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    steps: list[int] = []
    monkeypatch.setattr(Silent, "step", lambda self: steps.append(1))
    train_server_side(plan, dataset, RunTarget(out, resume=True), a_link, Silent())
    assert steps == []
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
