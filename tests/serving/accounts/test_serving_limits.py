"""How much a key may ask: quotas to the last input, rates over all workers."""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from serving_process import Client, Server, make_key
from waiting import STUCK, until

from l2h.serving.accounts import open_keys
from l2h.serving.accounts.key import Quota, Rate
from l2h.serving.accounts.rates import RateTable, make_table


def test_a_quota_is_exact_over_threads_and_workers(bundle, tmp_path, x):
    path, _, key = make_key(tmp_path, quota=Quota.parse("100/week"))

    def ask(number: int):
        client = Client(server, key)
        replies = [client.ask(x[: 1 + (i + number) % 3], Idempotency_Key=f"{number}-{i}") for i in range(20)]
        return [(reply, 1 + (i + number) % 3) for i, reply in enumerate(replies)]

    with Server(bundle, tmp_path, keys=str(path), workers=2) as server:
        with ThreadPoolExecutor(8) as pool:
            replies = [one for some in pool.map(ask, range(8)) for one in some]
        good = sum(inputs for reply, inputs in replies if reply.status == 200)
        assert good == 100, "all of the quota is used, and no more"
        assert sum(inputs for (inputs,) in server.rows("inputs")) == 100
        assert {reply.status for reply, _ in replies} == {200, 429}
        refusal = next(reply for reply, _ in replies if reply.status == 429)
        assert "quota of 100/week" in refusal.error
        assert 1 <= int(refusal.headers["retry-after"]) <= 7 * 86400

        client = Client(server, key)
        (again,) = server.rows("idempotency_key, inputs", "inputs = 1 LIMIT 1")
        number, i = map(int, again[0].split("-"))
        assert (i + number) % 3 == 0
        reply = client.ask(x[:1], Idempotency_Key=again[0])
        assert (reply.status, reply.headers["l2h-charged"]) == (200, "0"), "a repeat costs nothing, also then"
        assert client.ask(x[:1], Idempotency_Key="new").status == 429
        server.kill()
    with Server(bundle, tmp_path, keys=str(path)) as server:  # it is kept over a restart
        assert Client(server, key).ask(x[:1]).status == 429


def test_more_inputs_than_the_whole_quota_are_told_apart(bundle, tmp_path, x):
    """To try again later would never help."""
    path, _, key = make_key(tmp_path, quota=Quota.parse("2/day"))
    with Server(bundle, tmp_path, keys=str(path)) as server:
        reply = Client(server, key).ask(x)
        assert (reply.status, "retry-after" in reply.headers) == (413, False)
        assert "the whole quota of 2/day" in reply.error
        assert Client(server, key).ask(x[:2]).status == 200


def test_a_changed_quota_counts_what_was_used(bundle, tmp_path, x):
    path, _, key = make_key(tmp_path, quota=Quota.parse("2/week"))
    with Server(bundle, tmp_path, keys=str(path)) as server:
        client = Client(server, key)
        assert [client.ask(x[:1]).status for _ in range(3)] == [200, 200, 429]
        (name,) = [record.name for record in open_keys(path).read() if key.startswith(f"l2h_{record.id}_")]
        open_keys(path).change(name, quota=Quota.parse("4/week"))
        until(lambda: client.ask(x[:1]).status == 200)
        assert [client.ask(x[:1]).status for _ in range(2)] == [200, 429]


@pytest.mark.long
def test_a_new_period_opens_the_quota(bundle, tmp_path, x):
    path, _, key = make_key(tmp_path, quota=Quota.parse("2/s"))
    with Server(bundle, tmp_path, keys=str(path)) as server:
        client = Client(server, key)
        seconds = []

        def over() -> bool:
            reply = client.ask(x[:1])
            if reply.status == 200:
                seconds.append(int(server.rows("time")[-1][0]))
            else:
                assert reply.headers["retry-after"] == "1"
            return len(set(seconds)) > 3

        until(over)
        assert max(map(seconds.count, seconds)) == 2


def test_a_rate_holds_over_all_workers(bundle, tmp_path, x):
    path, _, key = make_key(tmp_path, rate=Rate.parse("10/s", burst=10))
    with Server(bundle, tmp_path, keys=str(path), workers=2) as server:

        def ask(number: int) -> list[int]:
            clients = [Client(server, key) for _ in range(4)]  # so that both workers are asked
            out = []
            while time.monotonic() < end:
                for client in clients:
                    reply = client.ask(x[:1])
                    out.append(reply.status)
                    if reply.status == 429:
                        assert "10 inputs a second, 10 at once" in reply.error
                        assert reply.headers["retry-after"] == "1"
            return out

        start = time.monotonic()
        end = start + 2.0
        with ThreadPoolExecutor(8) as pool:
            statuses = [status for some in pool.map(ask, range(8)) for status in some]
        seconds = time.monotonic() - start
        good = statuses.count(200)
        assert good <= 10 + 10 * seconds + 1
        assert good >= 0.8 * (10 + 10 * 2.0), "and what it allows gets through"
        assert set(statuses) == {200, 429}
        assert len(server.rows()) == good
        pids = {line["pid"] for line in until(lambda: server.events("request")) if line["status"] == 200}
        assert len(pids) == 2


@examples(200)
@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 12)), min_size=1, max_size=60),
    st.integers(1, 50),
    st.integers(1, 20),
)
def test_no_stretch_of_time_holds_more_than_rate_and_burst(steps, per_second, burst):
    """The bound of GCRA, with one request's worth of debt for those larger than the burst."""
    descriptor = make_table()
    try:
        table, rate, now = RateTable(descriptor), Rate(per_second, burst), 1000.0
        passed = []
        for pause, inputs in steps:
            now += pause / per_second
            wait = table.take("0123456789ab", rate, inputs, now=now)
            if wait <= 0.0:
                passed.append((now, inputs))
            else:
                assert table.take("0123456789ab", rate, inputs, now=now + wait * 0.999 - 1e-6) > 0.0
        for i, (first, _) in enumerate(passed):
            for j in range(i, len(passed)):
                used = sum(inputs for _, inputs in passed[i : j + 1])
                debt = max(0, passed[j][1] - burst)
                assert used <= burst + debt + per_second * (passed[j][0] - first) + 1e-6
    finally:
        os.close(descriptor)


def _take(descriptor: int, count: int, results) -> None:
    table = RateTable(descriptor)
    results.put(sum(table.take("0123456789ab", Rate(1e-6, 500), 1) <= 0.0 for _ in range(count)))


def test_processes_never_take_the_same_place_twice():
    descriptor = make_table()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_take, args=(descriptor, 2000, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    taken = sum(results.get(timeout=STUCK) for _ in workers)
    for worker in workers:
        worker.join()
    os.close(descriptor)
    assert taken == 500
