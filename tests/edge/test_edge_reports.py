"""A device that reports: on requests it makes anyway and when it makes none, never in the way of an answer."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import urllib.request
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clouds import CLASSES, FEATURES
from edge_maker import ALL, NONE, X_TEST
from fault_proxy import Fault, FaultProxy
from rough_server import RoughServer
from serving_process import Server, make_key
from two_servers import CLOUD_FIRST, PRICES, TEST
from two_servers import make as make_two
from waiting import Stopwatch, free_port, until

from l2h import AsyncEdgeClient, Costs, EdgeClient, HelpSystem
from l2h.bundle import DeviceBundle, ServerBundle
from l2h.edge import EdgeSettingsError
from l2h.fleet import HEADER, PATH, DeviceReport
from l2h.serving.accounts import open_devices

#: Seconds: a report may ride every 10 ms, and a request of its own comes within 90 ms and then every 0.9 s.
OFTEN = 0.9
#: So long that nothing is due but the first report on a request.
RARELY = 1e6


@pytest.fixture(scope="module")
def real(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """``l2h serve`` with the edge's own bundle, and a key."""
    place = tmp_path_factory.mktemp("real")
    keys, _, key = make_key(place, "phones")
    with Server(folder, place, keys=str(keys), workers=2) as server:
        yield server, key


def known(server: Server, device: str) -> dict[str, Any]:
    found = {each["device"]: each for each in open_devices(server.ledger).view({})["devices"]}
    return found.get(device, {})


def headers(server: RoughServer) -> list[DeviceReport]:
    """The reports that came with requests."""
    sent = [asked.headers.get(HEADER.lower()) for asked in server.asked]
    return [DeviceReport.decode(value.encode()) for value in sent if value is not None]


def test_the_server_knows_what_the_device_counted(real, connect, system: HelpSystem) -> None:
    server, key = real
    costs = Costs(c_e=0.2)
    edge = connect(server.url, key=key, deadline=5.0, costs=costs, report=OFTEN, device="cam-7")
    for x in X_TEST[:40]:
        edge.predict(x)
    edge.predict(X_TEST[40:100])
    stats = edge.stats()
    device = until(lambda: (found := known(server, "cam-7")).get("inputs") == 100 and found)
    assert (device["asked"], device["reasons"], device["answerers"]) == (stats.remote, stats.reasons, stats.answerers)
    saving = system.judge(X_TEST[:100]).saving(costs)
    assert 0 < stats.remote < 100
    assert stats.expected_saving == pytest.approx(saving[saving >= 0].sum(), rel=1e-6)
    assert device["expected_saving"] == pytest.approx(stats.expected_saving, rel=1e-3)
    manifest = edge.bundle.manifest
    assert (device["bundle"]["name"], device["bundle"]["version"]) == (manifest.name, manifest.version)
    assert device["latency"]["p50"] == pytest.approx(stats.latency["p50"], rel=1e-3)
    assert (device["drift"], device["breaker"], device["flags"]) == (None, "closed", [])


def test_a_device_that_asks_nothing_reports_all_the_same(real, connect) -> None:
    server, key = real
    edge = connect(server.url, key=key, costs=NONE, report=OFTEN, device="quiet")
    edge.predict(X_TEST[:50])
    device = until(lambda: (found := known(server, "quiet")).get("inputs") == 50 and found)
    assert (device["asked"], device["expected_saving"], device["round_trip"]) == (0, 0.0, None)
    assert edge.stats().requests == 0


@pytest.mark.parametrize("limit", [None, "20%/100"])
def test_the_drift_alarm_is_told(real, connect, limit: str | None) -> None:
    server, key = real
    edge = connect(server.url, key=key, limit=limit, report=OFTEN, device=f"drifts-{limit is None}")
    edge.predict(np.repeat(X_TEST[:1], 2000, axis=0))
    assert edge.stats().drift is not None
    device = until(lambda: (found := known(server, f"drifts-{limit is None}")).get("drift") and found)
    assert (device["drift"], device["flags"]) == (edge.stats().drift, ["drift"])


@pytest.mark.parametrize("calls", [1, 2, 100, 300])
def test_percentiles_are_those_of_the_calls(connect, calls: int) -> None:
    edge = connect(None)
    seconds = [edge.predict(x).latency[0] for x in np.resize(X_TEST, (calls, *X_TEST.shape[1:]))]
    expected = np.percentile(seconds, [50, 95, 99, 100])
    assert list(edge.stats().latency.values()) == pytest.approx(expected.tolist(), rel=1e-9)


def test_the_name_stands_in_audit_files(server: RoughServer, connect, tmp_path: Path) -> None:
    edge = connect(server.url, costs=NONE, deadline=5.0, audit=1.0, audits=tmp_path, device="cam-7")
    edge.predict(X_TEST[:3])
    edge.close()
    (file,) = tmp_path.glob("*.jsonl")
    assert json.loads(file.read_text().splitlines()[0])["device"] == "cam-7"


def test_the_async_client_reports(real, bundle: DeviceBundle) -> None:
    server, key = real

    async def ask() -> None:
        given = {"costs": ALL, "deadline": 30.0, "report": RARELY, "device": "async"}
        async with AsyncEdgeClient(bundle, server.url, key=key, **given) as edge:
            await edge.predict(X_TEST[:3])

    asyncio.run(ask())
    assert until(lambda: known(server, "async"))["inputs"] == 0  # as of the moment when it asked


@pytest.mark.long
def test_a_device_that_is_gone_is_offline_while_another_is_not(real, connect) -> None:
    server, key = real
    connect(server.url, key=key, costs=NONE, report=0.5, device="stays")
    with EdgeClient(connect(None).bundle, server.url, key=key, costs=NONE, report=0.5, device="goes"):
        until(lambda: known(server, "goes") and known(server, "stays"))
    until(lambda: [known(server, name)["flags"] for name in ("goes", "stays")] == [["offline"], []])


def test_a_report_rides_on_one_request_and_the_next_only_later(server: RoughServer, connect) -> None:
    edge = connect(server.url, costs=ALL, deadline=5.0, report=RARELY, device="cam-7")
    for x in X_TEST[:20]:
        edge.predict(x)
    (report,) = headers(server)
    assert (report.device, report.count, report.inputs, report.every) == ("cam-7", 1, 0, RARELY)
    assert report.start == pytest.approx(time.time() * 1e3, abs=60_000)
    assert len(server.asked) == 20


def test_nothing_is_sent_or_counted_unless_it_is_wanted(server: RoughServer, connect) -> None:
    edge = connect(server.url, costs=ALL, deadline=5.0, device="cam-7")
    edge.predict(X_TEST[:3])
    assert headers(server) == []
    assert edge.stats().expected_saving is None


def test_no_input_leaves_the_device_by_a_report(server: RoughServer, connect) -> None:
    edge = connect(server.url, costs=ALL, deadline=5.0, report=OFTEN, device="cam-7")
    for x in X_TEST[:30]:
        edge.predict(x)
        time.sleep(0.002)
    reports = headers(server)
    assert len(reports) > 1
    allowed = {"d", "s", "c", "e", "m", "v", "t", "u", "n", "a", "by", "why", "x", "f", "o", "l", "r"}
    assert all(set(json.loads(report.encode())) <= allowed for report in reports)
    assert [report.count for report in reports] == sorted({report.count for report in reports})


def test_a_server_that_knows_a_later_start_is_caught_up_with(real, connect) -> None:
    server, key = real
    late = int(time.time() * 1e3) + 10**9  # the clock was wrong at an earlier start
    before = DeviceReport(device="back", start=late, count=9, every=900.0, model="clouds", version="0")
    sent = {"Authorization": f"Bearer {key}", HEADER: before.encode()}
    request = urllib.request.Request(server.url + PATH, method="POST", headers=sent)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.loads(answer.read()) == {"taken": True}
    until(lambda: known(server, "back"))
    edge = connect(server.url, key=key, costs=ALL, deadline=5.0, report=OFTEN, device="back")
    until(lambda: [edge.predict(X_TEST[0]), known(server, "back")["inputs"]][1] > 0)


@pytest.mark.parametrize("kind", ["refuse", "half_open", "cut", "drip"])
def test_a_report_that_fails_holds_up_no_answer(proxy: FaultProxy, connect, kind: str) -> None:
    proxy.use(Fault(kind, seconds=0.05))
    edge = connect(proxy.url, costs=NONE, report=OFTEN / 9, device="cam-7")
    until(lambda: proxy.seen > (kind != "half_open"))  # a report fails, and the next is tried
    with Stopwatch() as watch:
        answers = edge.predict(X_TEST[:10])
    assert set(answers.reason) == {"not_worth_asking"}
    assert watch.seconds < 1.0
    stats = edge.stats()
    assert (stats.breaker, stats.requests, stats.error) == ("closed", 0, None)


def test_news_that_cannot_be_made_spoil_no_request(server: RoughServer, connect, monkeypatch, caplog) -> None:
    edge = connect(server.url, costs=ALL, deadline=5.0, report=OFTEN, device="cam-7")

    def broken(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr("l2h.edge.core.news_for", broken)
    for _ in range(3):
        assert edge.predict(X_TEST[:1]).source[0] == "remote"
        time.sleep(0.02)
    assert headers(server) == []
    assert sum("cannot report" in record.message for record in caplog.records) == 1


def test_a_server_of_another_make_is_asked_for_no_more_reports(server: RoughServer, connect, caplog) -> None:
    server.mode = "status:404"
    connect(server.url, costs=NONE, report=OFTEN / 9, device="cam-7")
    until(lambda: server.asked)
    time.sleep(0.5)
    assert [(asked.method, asked.path) for asked in server.asked] == [("POST", PATH)]
    assert any("a report failed: status 404" in record.message for record in caplog.records)


def test_a_client_that_is_dropped_or_closed_reports_no_more(server: RoughServer, bundle: DeviceBundle) -> None:
    edge = EdgeClient(bundle, server.url, costs=NONE, report=OFTEN / 9, device="cam-7")
    until(lambda: server.asked)
    gone = weakref.ref(edge)
    del edge
    until(lambda: gc.collect() >= 0 and gone() is None)
    until(lambda: not any(thread.name == "l2h-edge" for thread in threading.enumerate()))
    with EdgeClient(bundle, server.url, costs=NONE, report=OFTEN / 9, device="cam-7"):
        pass
    count = len(server.asked)
    time.sleep(0.3)
    assert len(server.asked) <= count + 1  # one may have been under way


def test_each_of_several_servers_learns_of_itself_alone(once, server: RoughServer) -> None:
    """The totals go to all; another server's name and round trips do not."""
    folder = once("two-opinion", lambda path: make_two(second_opinion=True).export(path, name="clouds", costs=PRICES))
    scores = {name: ServerBundle(folder, server=name).run for name in ("box", "cloud")}
    with ExitStack() as stack:
        rough = {
            name: stack.enter_context(
                RoughServer(run, name=f"clouds-{name}", shape=(FEATURES,), datatype="FP32", classes=CLASSES)
            )
            for name, run in scores.items()
        }
        addresses = {name: each.url for name, each in rough.items()}
        edge = stack.enter_context(
            EdgeClient(folder, addresses, costs=CLOUD_FIRST, deadline=5.0, report=OFTEN, device="cam-7")
        )
        edge.predict(TEST[0][:30])
        stats = edge.stats()
        assert stats.answerers == {"cloud": 30}

        def last(name: str) -> DeviceReport | None:
            return next((report for report in reversed(headers(rough[name])) if report.inputs == 30), None)

        box, cloud = until(lambda: last("box")), until(lambda: last("cloud"))
    assert (box.answerers, box.round_trip) == ({"other": 30}, None)
    assert (cloud.answerers, cloud.asked, box.asked) == ({"cloud": 30}, 30, 30)
    assert cloud.round_trip is not None
    assert box.reasons == cloud.reasons == stats.reasons


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"report": True}, "give device="),
        ({"report": True, "device": "a" * 10_000}, "is no device's name"),
        ({"device": "cam\n7"}, "is no device's name"),
        ({"device": "", "report": True}, "is no device's name"),
        ({"device": 7}, "is no device's name"),
        ({"report": -1.0, "device": "cam-7"}, "report=-1.0"),
        ({"report": 1e9, "device": "cam-7"}, "10,000,000"),
        ({"report": "often", "device": "cam-7"}, "report='often'"),
    ],
)
def test_bad_options_are_refused(bundle: DeviceBundle, options: dict[str, Any], words: str) -> None:
    with pytest.raises(EdgeSettingsError, match=words) as caught:
        EdgeClient(bundle, f"http://127.0.0.1:{free_port()}", **options)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("server", [None, lambda X: np.zeros(len(X))])
def test_a_report_needs_somebody_to_be_told(bundle: DeviceBundle, server: Any) -> None:
    with pytest.raises(EdgeSettingsError, match="a server with an address"):
        EdgeClient(bundle, server, report=True, device="cam-7")
