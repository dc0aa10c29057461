"""What the page shows is what the ledger and the metrics say, over all workers, and after a restart."""

from __future__ import annotations

import csv
import io
import os
import signal
import sqlite3
import time
from contextlib import closing

import numpy as np
import pytest
from dashboard_server import guarded_server, metrics, numbers
from serving_maker import linear, write_bundle
from serving_process import Client, Load, Server
from waiting import until

from l2h.serving.accounts import open_history
from l2h.serving.accounts.key import Key, Quota, Rate
from l2h.serving.accounts.sqlite import prepare_ledger
from l2h.serving.dashboard.counters import latency
from l2h.serving.dashboard.data import key_use
from l2h.serving.dashboard.recorder import ring_file
from l2h.serving.dashboard.ring import SPANS, read_slots
from l2h.serving.process.metrics import SECONDS


def ask_in_all_ways(server: Server, x: np.ndarray) -> None:
    """Answers, refusals by quota, rate and form, and strangers, through both workers."""
    with Load(server, 3, server.keys["free"]) as load:
        for name in ("phones", "cameras"):
            for _ in range(20):
                Client(server, server.keys[name]).ask(x)
        for _ in range(5):
            Client(server, "l2h_0_0").ask(x)
            Client(server, server.keys["free"]).post(b"{", {})
        until(lambda: load.statuses[200] > 200)
    assert load.broken == []


def settled(server: Server, key: str) -> dict:
    """The numbers of the last hour once all that was counted is recorded."""

    def found():
        shown = numbers(server, key, "hour")
        return shown if shown["span"]["requests"] >= shown["since_start"]["requests"] else None

    return until(found)


@pytest.mark.long
def test_the_page_shows_what_ledger_and_metrics_say_and_keeps_it_over_restarts(tmp_path, x):
    own = tmp_path / "bundle"
    write_bundle(own, linear())
    with guarded_server(own, tmp_path) as server:
        me, keys = server.keys["me"], server.keys
        ask_in_all_ways(server, x)
        rows = server.rows("key_id, inputs, units")
        until(lambda: metrics(server, me, "l2h_requests_total", "status").get("200") == len(rows))
        until(lambda: numbers(server, me)["ledger"]["all"]["requests"] == len(rows))
        shown = settled(server, me)
        statuses, refused = (
            metrics(server, me, *which) for which in (("l2h_requests_total", "status"), ("l2h_refused_total", "reason"))
        )
        assert {"quota", "rate", "malformed", "bad_key"} <= set(refused)
        for part in ("since_start", "span"):
            assert shown[part]["statuses"] == statuses
            assert shown[part]["refused"] == refused
            assert shown[part]["inputs"] == shown[part]["units"] == sum(units for _, _, units in rows)
            assert shown[part]["calls"] == sum(batch["calls"] for batch in shown[part]["batches"])
        for name, total in (("requests", sum(statuses.values())), ("refused", sum(refused.values()))):
            assert sum(slot[name] for slot in shown["slots"]) == total
        assert shown["ledger"]["all"]["inputs"] == sum(inputs for _, inputs, _ in rows)
        for key in shown["keys"]:
            assert key["charged"]["inputs"] == sum(inputs for id_, inputs, _ in rows if id_ == key["id"])
        used = {key["name"]: key["quota"]["used"] for key in shown["keys"] if key["quota"]}
        assert used == {"phones": 39}  # of 40, three at a time
        assert shown["workers"] == {"able": 2, "all": 2}
        until(lambda: not server.rows("id", "delivered IS NULL"))
        exported = server.get("/dashboard/ledger.csv", Authorization=f"Bearer {me}")[1].decode()
        reported = open_history(server.ledger).report(("day", "key"))
        names = {text.split("_")[1]: name for name, text in keys.items()}
        assert [
            {name: str(value) for name, value in row.items()} | {"name": names[row["key"]]} for row in reported
        ] == list(csv.DictReader(io.StringIO(exported)))
        before = shown["span"]
        os.kill(server.workers[0], signal.SIGKILL)  # it takes no numbers with it
        until(lambda: server.events("worker_replaced"))
        shown = numbers(server, me)
        assert shown["since_start"]["statuses"] == statuses
        version = write_bundle(own, linear(1)).version
        shown = until(lambda: (found := numbers(server, me))["since_start"]["reloads"] == {"taken": 2} and found)
        assert shown["models"] == [{"name": "digits", "version": version, "workers": 2}]
        assert (shown["events"][0]["event"], shown["events"][0]["version"]) == ("bundle_accepted", version)
        assert [event["event"] for event in shown["events"][1:]] == ["worker_replaced", "worker_died", "started"]
        assert server.stop() == 0
    size = (tmp_path / "ledger.db-dashboard").stat().st_size
    with guarded_server(own, tmp_path) as server:  # it was stopped: nothing is lost
        shown = numbers(server, me, "hour")
        assert shown["since_start"]["requests"] == 0
        for name in ("statuses", "refused", "inputs", "units", "calls"):
            assert shown["span"][name] == before[name]
        assert [event["event"] for event in shown["events"]][:2] == ["started", "stopped"]
        server.keys = keys
        assert Client(server, keys["free"]).ask(x).status == 200
        until(lambda: numbers(server, me, "hour")["span"]["requests"] == before["requests"] + 1)
        server.kill()
    slots = read_slots(ring_file(str(server.ledger)), SPANS["day"], time.time())  # what was recorded survives a kill
    assert sum(slot.sums.get("requests:200", 0) for slot in slots) == statuses["200"] + 1
    assert (tmp_path / "ledger.db-dashboard").stat().st_size == size < 2**21


def test_percentiles_lie_in_the_bucket_of_the_true_one():
    rng, bounds = np.random.default_rng(0), [0.0, *SECONDS]
    for scale in (0.2, 1.5, 4.0):
        seconds = np.minimum(rng.lognormal(-6, scale, 5000), SECONDS[-1])
        counts = np.histogram(seconds, bounds)[0]
        found = latency({f"seconds:{bound}": int(n) for bound, n in zip(SECONDS, counts, strict=True)})
        true = np.quantile(seconds, [0.5, 0.9, 0.99])
        assert np.array_equal(np.searchsorted(bounds, list(found.values())), np.searchsorted(bounds, true))
    assert latency({"seconds:+Inf": 7})["p50"] == SECONDS[-1]
    assert latency({}) == {"p50": None, "p90": None, "p99": None}


def test_a_quota_is_projected_to_the_end_of_its_period():
    key = Key("0" * 12, "phones", "", "", quota=Quota(100, 3600), rate=Rate(2.0, 2))
    now = 3600 * 1000 + 900.0
    use = key_use(key, 30, 1.5, now)
    assert (use["quota"]["projected"], use["quota"]["runs_out"]) == (120, now + 2100)  # 70 left, 30 in 900 s
    assert (use["quota"]["ends"], use["share"]) == (now + 2700, 0.75)
    assert key_use(key, 100, 0.0, now)["quota"]["runs_out"] is None
    assert key_use(key, 5, 0.0, now - 890)["quota"]["projected"] is None


def test_the_speed_of_a_key_is_read_from_the_last_rows(tmp_path):
    path = tmp_path / "ledger.db"
    prepare_ledger(path)
    history, now = open_history(path), time.time()
    assert history.recent(60.0) == {}
    rng = np.random.default_rng(0)
    rows = [
        (now - age, rng.choice(["a", "b"]), int(rng.integers(1, 9))) for age in sorted(rng.uniform(5, 300, 500))[::-1]
    ]
    with closing(sqlite3.connect(path)) as db, db:
        columns = "time, key_id, inputs, request_id, model, version, units"
        db.executemany(f"INSERT INTO charges ({columns}) VALUES (?, ?, ?, '', '', '', 0)", rows)
        db.execute("DELETE FROM charges WHERE id < 100")
    for seconds in (0.0, 60.0, 150.0, 1e4):
        expected = {}
        for when, key, inputs in rows[99:]:
            if when >= now - seconds:
                expected[key] = expected.get(key, 0) + inputs
        assert history.recent(seconds) == expected
