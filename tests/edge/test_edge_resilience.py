"""Repeats, kept connections, the circuit breaker, and storms over a link that comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from edge_maker import ALL, X_TEST, pass_time
from fault_proxy import Fault
from waiting import Stopwatch, until

from l2h import AsyncEdgeClient
from l2h.edge import REASONS
from l2h.edge.breaker import Breaker
from l2h.edge.pool import Attempt, ConnectionPool


def reasons(edge, n):
    return [edge.predict(x)[0].reason for x in X_TEST[:n]]


# Repeats.


@pytest.mark.parametrize("fault", ["reset", "close", "short", "status:503,0", "status:429,0.05"])
def test_a_repeat_carries_the_same_key_and_brings_the_answer(connect, server, fault):
    edge = connect(server.url, deadline=5.0, costs=ALL)
    server.follow([fault])
    assert reasons(edge, 2) == ["worth_asking", "worth_asking"]
    first, again, other = (asked.headers["idempotency-key"] for asked in server.asked)
    assert first == again != other
    assert server.asked[0].headers["x-request-id"] == server.asked[1].headers["x-request-id"]
    assert server.asked[0].body == server.asked[1].body
    stats = edge.stats()
    assert (stats.requests, stats.retries) == (3, 1)


@pytest.mark.parametrize("fault", ["status:500", "status:400", "status:401", "wrong:nan", "text:{", "garbage",
                                   "redirect", "status:503", "status:429,30"])  # fmt: skip
def test_an_answer_is_never_asked_for_twice(connect, server, fault):
    edge = connect(server.url, deadline=10.0, costs=ALL, retries=5)
    server.mode = fault
    reasons(edge, 1)
    assert len(server.asked) == 1
    assert edge.stats().retries == 0


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_there_are_no_more_repeats_than_allowed(connect, server, retries):
    edge = connect(server.url, deadline=5.0, costs=ALL, retries=retries)
    server.mode = "reset"
    assert reasons(edge, 1) == ["server_unreachable"]
    assert len(server.asked) == 1 + retries
    server.mode = "status:503,0"
    assert reasons(edge, 1) == ["server_busy"]
    assert len(server.asked) == 2 * (1 + retries)


def test_a_wait_that_does_not_fit_the_deadline_is_not_begun(connect, server):
    edge = connect(server.url, deadline=10.0, costs=ALL)
    server.mode = "status:503,20"
    with Stopwatch() as watch:
        assert reasons(edge, 1) == ["server_busy"]
    assert watch.seconds < 5.0


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("status:429,30", "server_busy"),
        ("limited:rate", "key_rate"),
        ("limited:quota", "key_quota"),
        ("limited:something new", "server_busy"),
        ("status:503,30", "server_busy"),
    ],
)
def test_the_key_s_rate_and_quota_are_told_from_a_busy_server(connect, server, mode, reason):
    """A server that does not say which, of another make or an older one, is busy."""
    edge = connect(server.url, deadline=10.0, costs=ALL, failures=2)
    server.mode = mode
    answer = edge.predict(X_TEST[0])[0]
    assert (answer.reason, answer.source) == (reason, "local")
    stats = edge.stats()
    assert (stats.reasons, stats.servers["server"].faults) == ({reason: 1}, {reason: 1})
    edge.predict(X_TEST[0])
    assert edge.stats().breaker == ("open" if mode.startswith("status:503") else "closed")


# Kept connections.


def test_a_connection_is_kept_and_used_again(connect, server):
    edge = connect(server.url, deadline=5.0, costs=ALL)
    assert set(reasons(edge, 20)) == {"worth_asking"}
    assert server.connections == 1


@pytest.mark.parametrize("retries", [0, 1])
def test_connections_that_the_server_closed_while_idle_are_replaced_unseen(connect, server, retries):
    edge = connect(server.url, deadline=5.0, costs=ALL, retries=retries, failures=1)
    for _ in range(5):
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(edge.predict, X_TEST[:8]))
        assert {a[0].reason for a in answers} == {"worth_asking"}
        server.drop()
    assert edge.stats().breaker == "closed"


@pytest.mark.parametrize("retries", [0, 1])
def test_a_kept_connection_that_breaks_under_the_request_is_replaced_at_once(connect, server, retries):
    """The server closes just when the next request is under way, as it does when its patience for idle ones ends."""
    edge = connect(server.url, deadline=5.0, costs=ALL, retries=retries, failures=1)
    for fault in ("close", "reset", "close"):
        server.follow(["answer", fault, "answer"])
        server.drop()
        assert reasons(edge, 2) == ["worth_asking", "worth_asking"]
    keys = [asked.headers["idempotency-key"] for asked in server.asked]
    assert keys[1] == keys[2] != keys[0]
    assert edge.stats().breaker == "closed"


def test_kept_connections_that_went_dead_cost_one_answer_not_one_each(connect, proxy, server):
    """A network that forgets its connections: nothing comes back on them, and nobody says so."""
    edge = connect(proxy.url, deadline=30.0, costs=ALL)
    server.mode = "slow:0.2"
    with ThreadPoolExecutor(4) as pool:
        assert {a[0].reason for a in pool.map(edge.predict, X_TEST[:4])} == {"worth_asking"}
    kept = proxy.seen
    assert kept > 1
    server.mode = "answer"
    proxy.use(Fault("stall"), drop=False)
    assert edge.predict(X_TEST[0], deadline=0.4)[0].reason == "deadline"
    until(lambda: edge.stats().error)  # the request has ended as well
    proxy.use(Fault(), drop=False)
    assert reasons(edge, 3) == ["worth_asking"] * 3
    assert proxy.seen == kept + 1


def test_calls_that_gave_up_leave_no_connection_and_take_no_place(connect, server):
    edge = connect(server.url, deadline=0.1, costs=ALL, failures=10**6, connections=3)
    server.mode = "silent"
    with ThreadPoolExecutor(12) as pool:
        assert {a[0].reason for a in pool.map(edge.predict, X_TEST[:36])} == {"deadline", "crowded"}
    until(lambda: server.at_once == 0)
    server.mode = "answer"
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda x: edge.predict(x, deadline=5.0), X_TEST[:36]))
    assert {a[0].reason for a in answers} == {"worth_asking"}


def test_no_more_requests_at_a_time_than_connections(connect, server):
    edge = connect(server.url, deadline=10.0, costs=ALL, connections=3)
    server.mode = "slow:0.1"
    with ThreadPoolExecutor(12) as pool:
        assert {a[0].reason for a in pool.map(edge.predict, X_TEST[:18])} == {"worth_asking"}
    assert server.most_at_once == 3


# The circuit breaker.


def test_it_opens_tries_once_and_closes(connect, server):
    edge = connect(server.url, deadline=30.0, costs=ALL, failures=3, rest=60.0)
    server.mode = "status:500"
    assert reasons(edge, 6) == ["server_error"] * 3 + ["circuit_open"] * 3
    assert len(server.asked) == 3
    assert (edge.stats().breaker, edge.stats().breaker_opened) == ("open", 1)
    pass_time(edge, 60.0)
    assert reasons(edge, 3) == ["server_error"] + ["circuit_open"] * 2
    assert len(server.asked) == 4
    pass_time(edge, 60.0)
    server.mode = "slow:1"
    before = len(server.asked)
    with ThreadPoolExecutor(10) as pool:
        found = Counter(a[0].reason for a in pool.map(edge.predict, X_TEST[:10]))
    assert found == {"worth_asking": 1, "circuit_open": 9}
    assert len(server.asked) == before + 1
    server.mode = "answer"
    assert edge.stats().breaker == "closed"
    assert set(reasons(edge, 5)) == {"worth_asking"}


def test_while_it_is_open_the_answer_comes_at_once(connect, server):
    edge = connect(server.url, deadline=1.0, costs=ALL, failures=1, rest=60.0)
    server.mode = "silent"
    assert reasons(edge, 1) == ["deadline"]
    until(lambda: edge.stats().breaker == "open")
    answers = [edge.predict(x)[0] for x in X_TEST[:50]]
    assert {answer.reason for answer in answers} == {"circuit_open"}
    assert np.median([answer.latency for answer in answers]) < 0.05
    assert edge.predict(X_TEST)[0].reason == "circuit_open"


@pytest.mark.parametrize("mode", ["status:429", "status:401", "status:403", "status:400", "status:404"])
def test_a_server_that_refuses_is_no_server_that_fails(connect, server, mode):
    edge = connect(server.url, deadline=5.0, costs=ALL, failures=1)
    server.mode = mode
    assert "circuit_open" not in reasons(edge, 5)
    assert edge.stats().breaker == "closed"


@pytest.mark.parametrize("mode", ["status:500", "status:503", "silent", "reset", "wrong:nan", "garbage", "redirect"])
def test_every_kind_of_failure_counts(connect, server, mode):
    edge = connect(server.url, deadline=1.0, costs=ALL, failures=2, rest=60.0)
    server.mode = mode
    assert "circuit_open" not in reasons(edge, 2)
    until(lambda: edge.stats().breaker == "open")
    assert reasons(edge, 1) == ["circuit_open"]


def test_requests_that_never_left_the_device_say_nothing_of_the_server(connect, server):
    """One seat for many requests: those that wait for it till the end are no failures of a server that answers."""
    server.mode = "slow:0.05"
    edge = connect(server.url, deadline=30.0, costs=ALL, connections=1, max_batch=5, failures=2)
    found = Counter(edge.predict(X_TEST, deadline=0.8).reason.tolist())
    assert {"worth_asking", "crowded"} <= set(found) <= {"worth_asking", "crowded", "deadline"}
    assert edge.stats().requests < 30
    assert (edge.stats().breaker, edge.stats().breaker_opened) == ("closed", 0)
    assert reasons(edge, 1) == ["worth_asking"]


def test_callers_in_a_hurry_do_not_close_the_server_to_the_patient(connect, server):
    edge = connect(server.url, deadline=30.0, costs=ALL, failures=2, rest=60.0)
    server.mode = "slow:0.05"
    assert reasons(edge, 1) == ["worth_asking"]
    assert {edge.predict(x, deadline=0.02)[0].reason for x in X_TEST[:10]} <= {"deadline", "crowded"}
    assert reasons(edge, 1) == ["worth_asking"]
    assert edge.stats().breaker_opened == 0
    server.mode = "silent"
    assert [edge.predict(x, deadline=0.8)[0].reason for x in X_TEST[:2]] == ["deadline"] * 2
    until(lambda: edge.stats().breaker == "open")
    assert reasons(edge, 1) == ["circuit_open"]


@pytest.mark.parametrize("mode", ["reset", "status:500", "garbage"])
def test_what_the_server_does_wrong_counts_however_short_the_time(connect, server, mode):
    edge = connect(server.url, deadline=20.0, costs=ALL, failures=2, rest=60.0, retries=0)
    server.mode = mode
    until(lambda: edge.predict(X_TEST[0], deadline=0.25)[0].reason == "circuit_open")


def test_a_try_in_a_hurry_leaves_the_verdict_to_the_next(connect, server):
    edge = connect(server.url, deadline=1.0, costs=ALL, failures=1, rest=0.05)
    server.mode = "status:500"
    assert reasons(edge, 1) == ["server_error"]
    time.sleep(0.1)
    server.mode = "slow:0.1"
    assert edge.predict(X_TEST[0], deadline=0.03)[0].reason == "deadline"
    assert edge.stats().breaker_opened == 1
    until(lambda: edge.predict(X_TEST[0])[0].reason == "worth_asking")
    assert edge.stats().breaker == "closed"


def test_an_answer_between_failures_starts_the_count_again(connect, server):
    edge = connect(server.url, deadline=5.0, costs=ALL, failures=3)
    server.follow(["status:500", "status:500", "answer"] * 4)
    assert "circuit_open" not in reasons(edge, 12)


def test_a_probe_that_its_caller_gave_up_makes_room_for_another(server, bundle):
    async def ask():
        async with AsyncEdgeClient(bundle, server.url, deadline=30.0, costs=ALL, failures=1, rest=0.05) as edge:
            server.mode = "status:500"
            first = (await edge.predict(X_TEST[0]))[0].reason
            await asyncio.sleep(0.06)
            server.mode = "silent"
            asked = len(server.asked)
            probe = asyncio.create_task(edge.predict(X_TEST[0]))
            while len(server.asked) == asked:
                await asyncio.sleep(0.01)
            meanwhile = (await edge.predict(X_TEST[0]))[0].reason
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)
            server.mode = "answer"
            return first, meanwhile, (await edge.predict(X_TEST[0]))[0].reason, edge.stats().breaker

    assert asyncio.run(ask()) == ("server_error", "circuit_open", "worth_asking", "closed")


def test_verdicts_of_an_earlier_state_do_not_count():
    now = 0.0
    breaker = Breaker(failures=2, rest=1.0, clock=lambda: now)
    early = breaker.admit(6)
    early[0].report(False)
    early[1].report(False)
    assert breaker.state == "open"
    early[2].report(True)
    assert breaker.state == "open"
    now = 1.0
    (probe,) = breaker.admit(1)
    early[3].report(True)
    early[4].report(False)
    assert breaker.state == "half-open"
    assert breaker.blocked()
    probe.report(True)
    probe.report(False)
    early[5].report(False)
    assert (breaker.state, breaker.opened) == ("closed", 1)
    breaker.admit(1)[0].report(False)
    assert breaker.state == "closed"


def test_many_threads_get_one_probe_between_them():
    breaker = Breaker(failures=1, rest=0.01)
    granted = 0
    for _ in range(20):
        breaker.admit(1)[0].report(False)
        time.sleep(0.011)
        with ThreadPoolExecutor(8) as pool:
            passes = [p for some in pool.map(lambda _: breaker.admit(1), range(32)) for p in some]
        assert len(passes) == 1
        granted += 1
        passes[0].report(True)
    assert granted == 20


# Storms.


def test_a_storm_over_a_link_that_comes_and_goes(connect, proxy, server, bundle):
    edge = connect(proxy.url, deadline=0.3, costs=ALL, failures=5, rest=0.05)
    faults = [
        Fault(),
        Fault("refuse"),
        Fault(),
        Fault("half_open"),
        Fault(),
        Fault("cut", after=100),
        Fault("drip", 0, 0.01),
    ]
    over = threading.Event()

    def flap():
        i = 0
        while not over.is_set():
            proxy.use(faults[i % len(faults)])
            i += 1
            over.wait(0.05)

    def one(i):
        begun = time.monotonic()
        answers = edge.predict(X_TEST[i % 140 : i % 140 + 1 + i % 3])
        return answers, i, time.monotonic() - begun

    flapping = threading.Thread(target=flap)
    flapping.start()
    results: list = []
    try:
        with Stopwatch() as watch, ThreadPoolExecutor(10) as pool:
            while len(results) < 10_000 and not any("worth_asking" in answers.reason for answers, _, _ in results):
                results += pool.map(one, range(500))  # a busy machine may need several rounds for one good moment
    finally:
        over.set()
        flapping.join()
    local, remote = bundle.judge(X_TEST)[0], server.scores(X_TEST).argmax(axis=1)
    for answers, i, _ in results:
        rows = slice(i % 140, i % 140 + 1 + i % 3)
        assert np.array_equal(answers.label, np.where(answers.source == "remote", remote[rows], local[rows]))
        assert set(answers.reason) <= set(REASONS)
    found = Counter(reason for answers, _, _ in results for reason in answers.reason.tolist())
    assert found["worth_asking"] > 0
    assert len(found) > 1
    taken = [seconds for _, _, seconds in results]
    assert np.quantile(taken, 0.99) - watch.late < 0.3 + 0.25
    assert max(taken) < 5.0
    stats = edge.stats()
    assert stats.calls == len(results)
    assert stats.reasons == found
    proxy.use(Fault())
    until(lambda: edge.predict(X_TEST[0], deadline=5.0)[0].reason == "worth_asking")


def test_a_long_trouble_leaves_no_connection_open(connect, proxy):
    """Calls that give up just when something comes must not leave a connection that nobody closes."""
    edge = connect(proxy.url, deadline=0.03, costs=ALL, failures=10**6)
    found = set()
    for seconds in (0.02, 0.025, 0.03):
        proxy.use(Fault("delay", 0, seconds))
        with ThreadPoolExecutor(8) as pool:
            found |= {a[0].reason for a in pool.map(edge.predict, X_TEST)}
    assert "deadline" in found
    proxy.use(Fault(), drop=False)
    assert edge.predict(X_TEST[0], deadline=5.0)[0].reason == "worth_asking"
    until(lambda: proxy.open <= 1)


def test_a_connection_that_is_given_up_at_any_moment_is_closed(proxy):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    async def give_up():
        options = SimpleNamespace(server=proxy.url, function=None, tls=None, headers=dict)
        pool = ConnectionPool(options, None)
        for steps in range(20):
            connecting = asyncio.create_task(pool._connect(Attempt()))
            for _ in range(steps):
                await asyncio.sleep(0)
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await connecting).abort()

    before = descriptors()
    gc.disable()  # or it would close them now and then
    try:
        asyncio.run(give_up())
        until(lambda: descriptors() <= before, 60)
    finally:
        gc.enable()


def test_a_server_that_restarts_is_found_again(connect, proxy):
    edge = connect(proxy.url, deadline=10.0, costs=ALL, failures=2, rest=0.05)
    assert reasons(edge, 1) == ["worth_asking"]
    proxy.use(Fault("refuse"))
    assert "worth_asking" not in reasons(edge, 5)
    proxy.use(Fault())
    until(lambda: edge.predict(X_TEST[0])[0].reason == "worth_asking")
    assert edge.stats().breaker == "closed"
