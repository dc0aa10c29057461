"""Several servers: the best is asked, then the next best where that one fails in time; each has its own books."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from clouds import CLASSES, FEATURES, samples
from edge_maker import pass_time
from rough_server import RoughServer
from two_servers import CLOUD_FIRST, PRICES, TEST, make
from waiting import Stopwatch, free_port

from l2h import AsyncEdgeClient, Costs, EdgeClient, Limiter, RateLimit
from l2h.bundle import DeviceBundle, ServerBundle
from l2h.edge import EdgeError, EdgeSettingsError
from l2h.errors import CostError
from l2h.limits import LimitError

X = TEST[0]
DEADLINE = 1.5
#: Only the cloud is worth asking about anything.
CLOUD_ONLY = {"box": Costs(c_e=5.0), "cloud": Costs(c_e=0.0, c_1=0.0)}


@pytest.fixture(scope="session")
def folder(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A bundle with a box, a cloud and a second opinion."""
    return once("two-opinion", lambda path: make(second_opinion=True).export(path, name="clouds", costs=PRICES))


@pytest.fixture(scope="session")
def device(folder: Path) -> DeviceBundle:
    return DeviceBundle(folder)


@pytest.fixture
def servers(folder: Path) -> Iterator[dict[str, RoughServer]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                RoughServer(
                    ServerBundle(folder, server=name).run,
                    name=f"clouds-{name}",
                    shape=(FEATURES,),
                    datatype="FP32",
                    classes=CLASSES,
                )
            )
            for name in ("box", "cloud")
        }


@pytest.fixture
def connect(device: DeviceBundle, servers: dict[str, RoughServer]) -> Iterator[Callable[..., EdgeClient]]:
    """Makes edge clients of both servers, and closes them."""
    with ExitStack() as stack:

        def connected(**options: Any) -> EdgeClient:
            given = {"server": urls(servers), "deadline": DEADLINE, "costs": CLOUD_FIRST} | options
            return stack.enter_context(EdgeClient(device, **given))

        yield connected


def urls(servers: dict[str, RoughServer]) -> dict[str, str]:
    return {name: server.url for name, server in servers.items()}


def labels(folder: Path, name: str) -> np.ndarray:
    return ServerBundle(folder, server=name).run(X).argmax(axis=1)


def local_choice(device: DeviceBundle) -> tuple[np.ndarray, np.ndarray]:
    """The labels and the names of whoever on the device is more likely right."""
    client, student, judgement = device.examine(X)
    first = judgement.probability[:, 0] >= judgement.probability[:, 1]
    return np.where(first, client, student), np.where(first, "client", "student")


FAULTS = {
    "reset": "server_unreachable",
    "close": "server_unreachable",
    "status:503": "server_busy",
    "status:429,30": "server_busy",
    "status:500": "server_error",
    "status:404": "refused",
    "status:401": "not_authorised",
    "wrong:nan": "bad_answer",
    "wrong:columns": "bad_answer",
    "wrong:model": "bad_answer",
    "garbage": "bad_answer",
    "silent": "deadline",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_where_the_best_fails_the_next_best_answers_within_the_deadline(fault, connect, servers, folder):
    edge = connect()
    assert edge.predict(X[0])[0].by == "cloud"
    servers["cloud"].mode = fault
    with Stopwatch() as watch:
        answers = edge.predict(X[:20])
    assert watch.seconds < DEADLINE + 0.1
    assert (set(answers.by), set(answers.reason), set(answers.source)) == ({"box"}, {"worth_asking"}, {"remote"})
    np.testing.assert_array_equal(answers.label, labels(folder, "box")[:20])
    np.testing.assert_array_equal(answers.cost, 1e-6)
    stats = edge.stats()
    assert stats.servers["cloud"].faults == {FAULTS[fault]: 20}
    assert (stats.servers["cloud"].answers, stats.servers["box"].answers) == (1, 20)
    assert stats.answerers == {"cloud": 1, "box": 20}
    assert stats.error.startswith(f"cloud: {FAULTS[fault]}")


def test_where_the_next_best_does_not_pay_the_better_local_answer_is_kept(connect, servers, device):
    edge = connect(costs=CLOUD_ONLY)
    servers["cloud"].mode = "status:500"
    answers = edge.predict(X)
    label, by = local_choice(device)
    np.testing.assert_array_equal(answers.by, by)
    np.testing.assert_array_equal(answers.label, label)
    assert set(by) == {"client", "student"}
    assert (set(answers.reason), set(answers.source), set(answers.cost)) == ({"server_error"}, {"local"}, {0.0})
    assert not servers["box"].asked


def test_where_all_fail_the_reason_is_that_of_the_last(connect, servers, device):
    edge = connect()
    servers["cloud"].mode, servers["box"].mode = "status:500", "wrong:nan"
    answers = edge.predict(X[:50])
    assert (set(answers.reason), set(answers.source)) == ({"bad_answer"}, {"local"})
    np.testing.assert_array_equal(answers.by, local_choice(device)[1][:50])


def test_offline_the_better_of_the_two_local_answers_is_given(connect, device):
    label, by = local_choice(device)
    answers = connect(server=None).predict(X)
    np.testing.assert_array_equal(answers.by, by)
    np.testing.assert_array_equal(answers.label, label)
    assert set(answers.reason) == {"no_server"}
    one = [connect(server=None).predict(x)[0].by for x in X[:20]]
    assert one == by[:20].tolist()


def test_a_slow_server_gets_all_the_time_but_what_the_next_best_needs(connect, servers):
    edge = connect(deadline=2.0)
    servers["cloud"].follow(["status:500"], then="slow:1")
    servers["box"].follow(["slow:0.2"])
    assert edge.predict(X[0])[0].by == "box", "which is now known to take 0.2 s, and gets twice that"
    assert edge.predict(X[1])[0].by == "cloud"
    servers["cloud"].mode = "silent"
    answer = edge.predict(X[2])[0]
    assert answer.by == "box"
    assert 1.0 < answer.latency < 2.0


def test_a_server_is_not_cut_short_for_the_next_best(connect, servers):
    """Its own answers take longer than what two of the other's would leave."""
    edge = connect(deadline=2.0, costs={"box": Costs(0.0, 0.0), "cloud": Costs(5.0)})
    servers["box"].mode, servers["cloud"].mode = "slow:0.45", "slow:1.2"
    assert edge.predict(X[0])[0].by == "box"
    assert edge.predict(X[1], costs={"box": Costs(5.0), "cloud": Costs(0.0, 0.0)})[0].by == "cloud"
    assert edge.predict(X[2], costs=CLOUD_FIRST)[0].by == "cloud"


def test_nothing_is_left_for_one_that_would_be_too_late(connect, servers):
    edge = connect(deadline=1.2, costs={"box": Costs(0.0, 0.0), "cloud": Costs(5.0)})
    servers["box"].mode = "slow:0.65"
    assert edge.predict(X[0])[0].by == "box", "which is now known to be slow"
    edge.costs = CLOUD_FIRST
    servers["cloud"].mode = "slow:0.65"
    assert edge.predict(X[1])[0].by == "cloud"


def test_each_server_has_a_circuit_of_its_own(connect, servers):
    edge = connect(failures=2, rest=60.0)
    servers["cloud"].mode = "status:500"
    assert [edge.predict(x)[0].by for x in X[:6]] == ["box"] * 6
    assert len(servers["cloud"].asked) == 2, "then it was left out"
    stats = edge.stats()
    assert (stats.servers["cloud"].breaker, stats.servers["box"].breaker, stats.breaker) == ("open", "closed", "open")
    assert set(edge.predict(X[:5], costs=CLOUD_ONLY).reason) == {"circuit_open"}
    servers["cloud"].mode = "answer"
    pass_time(edge, 60.0)
    assert edge.predict(X[0])[0].by == "cloud"
    assert edge.stats().breaker == "closed"


def test_the_limits_of_each_server_and_of_all_are_exact(connect, servers):
    limits = {name: Limiter(RateLimit(most, per="1h"), pacing=False, min_score=0)
              for name, most in {"cloud": 30, "all": 50}.items()}  # fmt: skip
    edge = connect(limit=limits)
    by = edge.predict(X[:100]).by.tolist()
    assert (by.count("cloud"), by.count("box")) == (30, 20)
    assert {name: status["used"] for name, status in edge.stats().limit.items()} == {"cloud": 30, "all": 50}
    sent = {name: sum(len(asked.inputs()) for asked in server.asked) for name, server in servers.items()}
    assert sent == {"cloud": 30, "box": 20}
    assert set(edge.predict(X[100:110]).reason) == {"over_limit"}


def test_a_permit_is_spent_for_what_is_sent_and_for_nothing_else(connect, servers):
    limits = {name: Limiter(RateLimit(40, per="1h"), pacing=False, min_score=0) for name in ("cloud", "box")}
    edge = connect(limit=limits, failures=1, rest=60.0)
    servers["cloud"].mode = "wrong:nan"
    for x in X[:10]:
        assert edge.predict(x)[0].by == "box"
    used = {name: status["used"] for name, status in edge.stats().limit.items()}
    assert used == {"cloud": 1, "box": 10}, "one request opened the circuit"
    servers["box"].mode = "status:500"
    assert edge.predict(X[10])[0].reason == "server_error"
    edge.predict(X[:20])
    used = {name: status["used"] for name, status in edge.stats().limit.items()}
    assert used == {"cloud": 1, "box": 11}, "nothing is spent while both circuits are open"


def test_a_server_without_an_address_is_left_out(connect, servers, device):
    edge = connect(server={"box": servers["box"].url}, costs=PRICES)
    answers = edge.predict(X)
    assert "cloud" not in set(answers.by)
    assert set(answers.reason) == {"worth_asking", "not_worth_asking"}
    expected = device.judge(X)[1].expected_costs(PRICES)[:, :3].argmin(axis=1)
    np.testing.assert_array_equal(answers.by, np.array(["client", "student", "box"])[expected])
    assert [edge.predict(x)[0].by for x in X[:30]] == answers.by[:30].tolist()


def test_the_limit_of_one_server_does_not_see_drift_where_the_other_is_missing(connect, folder):
    """Its limiter starts with what the calibration samples gain without the other server."""
    edge = connect(server={"box": ServerBundle(folder, server="box").run}, costs=CLOUD_FIRST, limit={"box": "50%/100"})
    for start in range(0, 1500, 100):
        edge.predict(samples(100, 100 + start)[0], deadline=5.0)
    status = edge.stats().limit["box"]
    assert status["drift"] is None
    assert abs(status["observed"] - status["expected"]) < 0.15


BAD: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "server= names the server 'moon'; the bundle has: box, cloud": (
        {"server": {"moon": "http://x"}},
        EdgeSettingsError,
    ),
    "give server={'box': ADDRESS, 'cloud': ADDRESS}": ({"server": "http://x"}, EdgeSettingsError),
    "key= names the server 'moon'": ({"key": {"moon": "k"}}, EdgeSettingsError),
    "server='ftp://x'": ({"server": {"box": "ftp://x"}}, EdgeSettingsError),
    "costs are given for box; the servers are box, cloud": ({"costs": {"box": Costs(0.1)}}, CostError),
    "limit names moon": ({"limit": {"moon": "10%"}}, LimitError),
    "retries": ({"retries": {"box": 1}}, EdgeSettingsError),
}


@pytest.mark.parametrize("words", BAD)
def test_what_does_not_fit_the_bundle_is_refused(words, connect):
    options, kind = BAD[words]
    with pytest.raises(kind) as refused:
        connect(**options)
    assert words in str(refused.value)


def test_options_by_the_names_of_servers(connect, servers, folder):
    keys = {"box": "key-of-the-box", "cloud": "key-of-the-cloud"}
    edge = connect(key=keys)
    servers["cloud"].follow(["status:500"])
    edge.predict(X[:2])
    for name, server in servers.items():
        assert {asked.headers["authorization"] for asked in server.asked} == {f"Bearer {keys[name]}"}
        assert all(asked.path == f"/v2/models/clouds-{name}/infer" for asked in server.asked)
    assert "key-of" not in repr(edge) + repr(edge.stats())
    # One key is for all addresses, and a function has its own.
    mixed = connect(server={"box": ServerBundle(folder, server="box").run, "cloud": servers["cloud"].url}, key="one")
    servers["cloud"].follow(["status:500"])
    assert mixed.predict(X[0])[0].by == "box"
    assert servers["cloud"].asked[-1].headers["authorization"] == "Bearer one"
    other = connect(server={"cloud": servers["box"].url}, model={"cloud": "clouds-box"})
    assert other.predict(X[0])[0].by == "cloud"


def test_functions_fall_back_to_each_other(connect, folder):
    def down(_: np.ndarray) -> np.ndarray:
        raise OSError("down")

    def late(x: np.ndarray) -> np.ndarray:
        time.sleep(2.0)
        return x

    box = ServerBundle(folder, server="box").run
    for cloud, fault in ((down, "server_unreachable"), (late, "deadline")):
        edge = connect(server={"box": box, "cloud": cloud}, deadline=1.0)
        answers = edge.predict(X[:5])
        assert set(answers.by) == {"box"}, edge.stats()
        assert answers.latency[0] < 1.1
        assert edge.stats().servers["cloud"].faults == {fault: 5}


def test_every_server_is_checked(connect, servers):
    edge = connect(key="k")
    edge.check()
    assert {name: len(versions) for name, versions in edge.server_versions.items()} == {"box": 1, "cloud": 1}
    assert set(edge.classes_compared) == {"box", "cloud"}
    servers["cloud"].metadata["name"] = "another"
    with pytest.raises(EdgeError, match=r"another.*clouds-cloud"):
        edge.check()
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(EdgeError, match=f"{address} is not ready"):
        connect(server={"box": address, "cloud": servers["cloud"].url}).check()


def test_an_asynchronous_client_asks_the_next_best_as_well(device, servers):
    servers["cloud"].mode = "silent"
    limits = {"box": Limiter(RateLimit(1000, per="1h"), pacing=False, min_score=0)}

    async def ask() -> tuple[list[Any], float, Any]:
        async with AsyncEdgeClient(
            device, urls(servers), deadline=DEADLINE, costs=CLOUD_FIRST, limit=limits, failures=100
        ) as edge:
            await edge.check()
            with Stopwatch() as watch:
                answers = await asyncio.gather(*(edge.predict(x) for x in X[:8]))
            left = asyncio.create_task(edge.predict(X[8], deadline=0.5))
            await asyncio.sleep(0.05)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            await asyncio.sleep(0.5)
            return [answer[0] for answer in answers], watch.seconds, edge.stats()

    answers, seconds, stats = asyncio.run(ask())
    assert {answer.by for answer in answers} == {"box"}
    assert seconds < DEADLINE + 0.15
    assert stats.calls == 8
    assert stats.limit["box"]["used"] == 8, "the call that was cancelled asked no second server"


@pytest.mark.long
@pytest.mark.alone
def test_an_asynchronous_call_does_not_wait_for_a_thread_beyond_its_deadline(folder, servers):
    """All threads compute for other calls when the server of this one fails."""
    servers["cloud"].mode = "silent"

    class Device(DeviceBundle):
        def examine(self, X: Any, which: int = 0) -> Any:
            time.sleep(0.0 if len(X) == 1 else 1.0)
            return super().examine(X, which)

    async def ask() -> tuple[Any, float]:
        async with AsyncEdgeClient(Device(folder), urls(servers), deadline=DEADLINE, costs=CLOUD_FIRST) as edge:
            call = asyncio.create_task(edge.predict(X[:1]))
            await asyncio.sleep(0.05)
            others = [asyncio.create_task(edge.predict(X[:2])) for _ in range(8)]
            servers["cloud"].mode = "status:500"
            servers["cloud"].drop()
            with Stopwatch() as watch:
                answer = (await call)[0]
            await asyncio.gather(*others)
            return answer, watch.seconds

    answer, seconds = asyncio.run(ask())
    assert seconds < DEADLINE + 0.1
    assert answer.source == "local"


def test_a_batch_is_spread_and_what_fails_of_it_is_asked_again(connect, servers, device, folder):
    edge = connect(costs=PRICES, max_batch=4, deadline=5.0, failures=1000)
    calm = edge.predict(X)
    assert {"box", "cloud", "student"} <= set(calm.by)
    servers["cloud"].follow(["status:500"] * 3)
    rough = edge.predict(X)
    moved = calm.by != rough.by
    assert 0 < moved.sum() <= 12
    assert set(calm.by[moved]) == {"cloud"}
    expected = device.judge(X)[1].expected_costs(PRICES)[:, :3].argmin(axis=1)
    np.testing.assert_array_equal(rough.by[moved], np.array(["client", "student", "box"])[expected][moved])
    np.testing.assert_array_equal(rough.label[rough.by == "box"], labels(folder, "box")[rough.by == "box"])
    assert set(rough.reason[moved & (rough.by != "box")]) <= {"server_error"}


# The command.


def call(*arguments: Any) -> tuple[int, str, str]:
    """``l2h ask`` in this process."""
    return commands.call("ask", *arguments)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    np.save(tmp_path / "many.npy", X[:100])
    return tmp_path / "many.npy"


def test_the_command_names_servers_prices_limits_and_keys(folder, servers, device, inputs, tmp_path):
    (tmp_path / "key").write_text("of-the-cloud\n")
    (tmp_path / "key").chmod(0o600)
    named = [part for name, url in urls(servers).items() for part in ("--server", f"{name}={url}")]
    prices = {"box": PRICES["box"], "cloud": Costs(c_e=0.04, c_1=1.5)}
    more = ["--price", "cloud=0.04:1.5", "--deadline", 5, "--key-file", f"cloud={tmp_path / 'key'}"]
    status, out, err = call(folder, inputs, *named, *more, "--json")
    assert status == 0, err
    said = json.loads(out)
    column = device.judge(X[:100])[1].expected_costs(prices).argmin(axis=1)
    expected = np.array([answerer.name for answerer in device.answerers])[column]
    assert [row["by"] for row in said["answers"]] == expected.tolist()
    assert said["summary"]["answerers"] == dict(Counter(expected.tolist()))
    assert {asked.headers.get("authorization") for asked in servers["box"].asked} == {None}
    assert {asked.headers["authorization"] for asked in servers["cloud"].asked} == {"Bearer of-the-cloud"}
    for server in servers.values():
        server.asked.clear()
    bounds = ["--limit", "cloud=5/1h", "--limit", "all=8/1h", "--deadline", 5, "--batch", 100]
    status, out, _ = call(folder, inputs, *named, "--c-e", 0, "--c-1", 0, *bounds)
    assert status == 0
    assert "over_limit" in out
    sent = {name: sum(len(asked.inputs()) for asked in server.asked) for name, server in servers.items()}
    assert sent["cloud"] <= 5
    assert sum(sent.values()) <= 8


def test_the_command_checks_every_server(folder, servers):
    named = [part for name, url in urls(servers).items() for part in ("--server", f"{name}={url}")]
    status, out, _ = call(folder, *named)
    assert status == 0
    for name, url in urls(servers).items():
        assert f"{url} is ready" in out
        assert f"clouds-{name}" in out
    status, out, _ = call(folder, *named, "--json")
    assert json.loads(out)["server"] == urls(servers)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--server", "http://x"], "the servers box, cloud"),
        (["--server", "http://x", "--server", "http://y"], "has no name"),
        (["--server", "box=http://x", "--server", "box=http://y"], "given twice"),
        (["--server", "moon=http://x"], "'moon'"),
        (["--price", "0.1"], "names no server"),
        (["--price", "box=cheap"], "box=cheap: no numbers; write box=C_E or box=C_E:C_1"),
        (["--server", "box="], "has no value"),
        (["--price", "moon=0.1"], "moon"),
        (["--price", "box=0.1:-1"], "negative"),
        (["--price", "box=0.1", "--c-e", "0.1"], "one or the other"),
        (["--limit", "moon=10%"], "moon"),
        (["--limit", "cloud=often"], "often"),
    ],
)
def test_the_command_refuses_what_does_not_fit(arguments, words, folder, inputs):
    status, _, err = call(folder, inputs, *arguments)
    assert status in (1, 2)
    assert words in " ".join(err.split()), err
