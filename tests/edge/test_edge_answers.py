"""The edge decides as the system does: prices, limits, batches, one input or many; asynchronously all the same."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from clouds import FEATURES, samples
from edge_maker import ALL, KEY, NONE, X_TEST, SlowDevice, make_system
from scripts import HEAVY, python
from waiting import STUCK, free_port, until

from l2h import AsyncEdgeClient, Costs, EdgeClient, Limiter, RateLimit
from l2h.audits import read_audits
from l2h.bundle import BundleError, DeviceBundle
from l2h.edge import EdgeError, EdgeSettingsError
from l2h.errors import SettingsError

PRICES = [Costs(c_e=e, c_1=one) for e in (0.0, 0.05, 0.1, 0.2, 0.4) for one in (0.5, 1.0, 1.5)]
LIMITS = [
    RateLimit(fraction=0.0),
    RateLimit(fraction=0.2),
    RateLimit(fraction=0.3, confidence=0.95),
    RateLimit(fraction=0.25, window=20),
    RateLimit(30, per="1h"),
]


def same(one, other):
    assert np.array_equal(one.label, other.label)
    assert np.array_equal(one.source, other.source)
    assert np.array_equal(one.reason, other.reason)
    assert np.array_equal(one.cost, other.cost)


@pytest.mark.parametrize("costs", PRICES, ids=str)
def test_at_every_price_the_answers_are_the_systems(connect, server, system, costs):
    edge = connect(server.url, deadline=5.0)
    expected = system.predict(X_TEST, costs=costs)
    same(edge.predict(X_TEST, costs=costs), expected)
    edge.costs = costs
    assert edge.costs == costs
    same(edge.predict(X_TEST), expected)


def test_each_input_alone_is_answered_as_among_many(connect, server, system):
    edge = connect(server.url, deadline=5.0)
    for costs in PRICES[:6]:
        expected = system.predict(X_TEST[:30], costs=costs)
        for i, x in enumerate(X_TEST[:30]):
            answer = edge.predict(x, costs=costs)[0]
            assert (answer.label, answer.source, answer.reason, answer.cost) == (
                expected.label[i],
                expected.source[i],
                expected.reason[i],
                expected.cost[i],
            )


@pytest.mark.parametrize("costs", [None, Costs(c_e=0.1)], ids=["free", "priced"])
@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_under_a_limit_the_answers_are_the_systems(connect, server, system, limit, costs):
    system._limiters.clear()
    expected = system.predict(X_TEST, costs=costs, limit=limit)
    edge = connect(server.url, deadline=5.0, costs=costs, limit=limit)
    same(edge.predict(X_TEST), expected)


def test_a_limiter_of_the_users_is_kept_to_and_is_seen_in_the_counters(connect, server, tmp_path):
    with Limiter(RateLimit(5, per="1h"), path=tmp_path / "permits.db", pacing=False) as limiter:
        edge = connect(server.url, deadline=5.0, costs=Costs(c_e=0.0), limit=limiter)
        answers = edge.predict(X_TEST)
        assert (answers.source == "remote").sum() == 5
        assert set(answers.reason) <= {"worth_asking", "over_limit", "not_worth_asking"}
        assert edge.stats().limit["used"] == 5
        assert set(edge.predict(X_TEST).source) == {"local"}


def test_a_permit_whose_request_failed_stays_spent_and_none_is_spent_on_a_server_left_alone(connect, server):
    limiter = Limiter(RateLimit(3, per="1h"), pacing=False)
    edge = connect(server.url, costs=ALL, limit=limiter, failures=2, rest=60.0, deadline=5.0)
    server.mode = "status:500"
    reasons = [edge.predict(x)[0].reason for x in X_TEST[:6]]
    assert reasons.count("server_error") == 2
    assert edge.stats().breaker == "open"
    assert edge.stats().limit["used"] == 2
    assert edge.predict(X_TEST[7])[0].reason == "circuit_open"
    assert edge.stats().limit["used"] == 2


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("mode", ["status:500", "silent", "answer"])
def test_when_one_request_tries_the_server_permits_are_spent_on_its_inputs_alone(connect, server, mode, size):
    limiter = Limiter(RateLimit(100, per="1h"), pacing=False)
    given = {"limit": limiter, "max_batch": size, "failures": 2, "rest": 0.2, "retries": 0}
    edge = connect(server.url, deadline=30.0, costs=ALL, **given)
    server.mode = "status:500"
    for x in X_TEST[:2]:
        edge.predict(x)
    assert edge.stats().breaker == "open"
    time.sleep(0.25)
    server.mode = mode
    server.asked.clear()
    answers = edge.predict(X_TEST[:50], deadline=0.5 if mode == "silent" else None)
    assert sum(len(asked.inputs()) for asked in server.asked) == size
    assert edge.stats().limit["used"] == 2 + size
    assert (answers.reason == "circuit_open").sum() == 50 - size
    server.mode = "answer"
    time.sleep(0.25)
    used = edge.stats().limit["used"]
    until(lambda: edge.predict(X_TEST[0])[0].reason == "worth_asking")
    assert set(edge.predict(X_TEST[:10]).reason) == {"worth_asking"}
    assert edge.stats().limit["used"] == used + 11


@pytest.mark.parametrize(("first", "then"), [(0.0, 0.3), (0.3, 0.0)])
def test_other_prices_are_no_other_inputs_to_a_limit(connect, server, first, then):
    """After a change of prices as much is sent as by a client that had them all along, and no drift is told."""
    limit, X = RateLimit(fraction=0.1, window=500), samples(5000, 9)[0]
    edge = connect(server.url, deadline=10.0, costs=Costs(c_e=first), limit=limit)
    other = connect(server.url, deadline=10.0, costs=Costs(c_e=then), limit=limit)
    edge.predict(X[:2500])
    other.predict(X[:2500])
    before = edge.stats().limit["threshold"]
    edge.costs = Costs(c_e=then)
    assert edge.stats().limit["threshold"] == pytest.approx(before + first - then, abs=0.01)
    for start in range(2500, 5000, 500):
        sent, expected = (client.predict(X[start : start + 500]).source == "remote" for client in (edge, other))
        assert abs(int(sent.sum()) - int(expected.sum())) <= 5
        assert sent.sum() <= 50
        assert edge.stats().limit["drift"] is None


def test_a_limiter_of_the_users_sees_the_savings_themselves_at_every_price(connect, server):
    limiter = Limiter(RateLimit(1000, per="1h"), pacing=False, min_score=0.2)
    edge = connect(server.url, deadline=5.0, limit=limiter)
    for costs in (Costs(c_e=0.0), Costs(c_e=0.15)):
        edge.costs = costs
        sent = edge.predict(X_TEST).source == "remote"
        assert np.array_equal(sent, edge.judge(X_TEST).saving(costs) >= 0.2)
        assert sent.any()


def test_without_a_server_the_device_answers_alone(connect, bundle):
    edge = connect()
    answers = edge.predict(X_TEST, costs=Costs(c_e=0.1))
    assert set(answers.source) == {"local"}
    assert set(answers.reason) == {"no_server", "not_worth_asking"}
    assert (answers.cost == 0).all()
    assert np.array_equal(answers.label, bundle.judge(X_TEST)[0])
    assert np.array_equal(answers.reason == "no_server", edge.judge(X_TEST).remote(Costs(c_e=0.1)))
    with pytest.raises(EdgeError, match="no server"):
        edge.check()


def test_one_call_is_one_request_up_to_max_batch_and_then_several_side_by_side(connect, server):
    edge = connect(server.url, deadline=5.0)
    edge.predict(X_TEST[:64], costs=ALL)
    assert [len(asked.inputs()) for asked in server.asked] == [64]
    server.asked.clear()
    server.mode = "slow:0.3"
    answers = connect(server.url, deadline=5.0, max_batch=40).predict(X_TEST[:100], costs=ALL)
    assert sorted(len(asked.inputs()) for asked in server.asked) == [20, 40, 40]
    assert server.most_at_once == 3
    assert set(answers.source) == {"remote"}
    assert len({asked.headers["idempotency-key"] for asked in server.asked}) == 3


def test_what_is_not_worth_asking_does_not_leave_the_device(connect, server):
    edge = connect(server.url, deadline=5.0)
    edge.predict(X_TEST, costs=NONE)
    assert server.connections == 0
    answers = edge.predict(X_TEST, costs=Costs(c_e=0.1))
    sent = np.concatenate([asked.inputs() for asked in server.asked])
    assert sorted(map(tuple, sent)) == sorted(map(tuple, X_TEST[answers.source == "remote"]))


def test_a_part_that_fails_leaves_only_its_own_inputs_to_the_device(connect, server, bundle):
    server.follow(["status:500", "answer", "wrong:nan"])
    answers = connect(server.url, deadline=5.0, max_batch=50, connections=1).predict(X_TEST, costs=ALL)
    assert sorted(np.unique(answers.reason, return_counts=True)[1]) == [50, 50, 50]
    local = answers.source == "local"
    assert np.array_equal(answers.label[local], bundle.judge(X_TEST)[0][local])
    assert set(answers.reason[local]) == {"server_error", "bad_answer"}
    assert (answers.cost[local] == 0).all()


def test_every_answer_says_how_long_its_call_took(connect, server):
    server.mode = "slow:0.05"
    answers = connect(server.url, deadline=5.0).predict(X_TEST[:3], costs=ALL)
    assert ((answers.latency >= 0.05) & (answers.latency < 5)).all()


def test_a_rejector_trained_for_one_price_knows_no_other(tmp_path, connect, server):
    costs = Costs(c_e=0.1)
    trained = make_system(costs)
    trained.export(tmp_path / "one", name="clouds")
    edge = connect(server.url, bundle=DeviceBundle(tmp_path / "one"), deadline=5.0)
    expected = trained.predict(X_TEST)
    assert np.array_equal(edge.predict(X_TEST).reason, expected.reason)
    assert [edge.predict(x)[0].reason for x in X_TEST[:40]] == expected.reason[:40].tolist()
    for attempt in (lambda: edge.predict(X_TEST, costs=Costs(c_e=0.2)), lambda: setattr(edge, "costs", Costs(c_e=0.2))):
        with pytest.raises(SettingsError, match=r"c_e=0\.2"):
            attempt()
    assert edge.costs == costs
    limited = connect(server.url, bundle=edge.bundle, deadline=5.0, limit=RateLimit(fraction=0.3))
    same(limited.predict(X_TEST), trained.predict(X_TEST, limit=RateLimit(fraction=0.3)))
    # It states no probabilities, so nobody knows whose answer is better once an audit has paid for both.
    audited = connect(server.url, bundle=edge.bundle, deadline=5.0, audit=1.0, audits=tmp_path / "audits")
    answers = audited.predict(X_TEST)
    by_chance = answers.reason == "audit"
    np.testing.assert_array_equal(by_chance, expected.source == "local")
    assert set(answers.source[by_chance]) == {"local"}
    np.testing.assert_array_equal(answers.label, expected.label)
    assert np.isnan(read_audits(tmp_path / "audits").stated).all()


def test_asynchronously_the_answers_are_the_same(server, bundle, system):
    async def ask():
        async with AsyncEdgeClient(bundle, server.url, deadline=5.0, costs=Costs(c_e=0.1)) as edge:
            await edge.check()
            many = await edge.predict(X_TEST)
            alone = await asyncio.gather(*(edge.predict(x) for x in X_TEST[:40]))
            edge.costs = NONE
            kept = await edge.predict(X_TEST)
            judged = await edge.judge(X_TEST)
            return many, alone, kept, judged, edge.stats(), edge.costs

    many, alone, kept, judged, stats, costs = asyncio.run(ask())
    expected = system.predict(X_TEST, costs=Costs(c_e=0.1))
    same(many, expected)
    assert [a[0].label for a in alone] == expected.label[:40].tolist()
    assert [a[0].reason for a in alone] == expected.reason[:40].tolist()
    assert set(kept.reason) == {"not_worth_asking"}
    assert len(judged.scores) == len(X_TEST)
    assert stats.answers == 2 * len(X_TEST) + 40
    assert costs == NONE


def test_one_asynchronous_client_serves_several_loops_and_is_closed_once(server, bundle):
    edge = AsyncEdgeClient(bundle, server.url, deadline=5.0, costs=ALL)
    for _ in range(2):
        assert asyncio.run(edge.predict(X_TEST[0]))[0].source == "remote"
    asyncio.run(edge.close())
    with pytest.raises(EdgeError, match="closed"):
        asyncio.run(edge.predict(X_TEST[0]))


def test_a_cancelled_call_takes_its_request_with_it_and_does_not_count_against_the_server(server, bundle):
    server.mode = "silent"

    async def ask():
        async with AsyncEdgeClient(bundle, server.url, deadline=30.0, costs=ALL, failures=1) as edge:
            call = asyncio.create_task(edge.predict(X_TEST[0]))
            while not server.asked:
                await asyncio.sleep(0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            server.mode = "answer"
            return (await edge.predict(X_TEST[0]))[0].reason

    assert asyncio.run(ask()) == "worth_asking"


def test_a_call_cancelled_while_the_device_computes_sends_and_spends_nothing(server, folder):
    limiter = Limiter(RateLimit(100, per="1h"), pacing=False)
    computing, cancelled = threading.Event(), threading.Event()

    class Device(DeviceBundle):
        def examine(self, X, which=0):
            computing.set()
            assert cancelled.wait(STUCK)
            return super().examine(X, which)

    async def ask():
        async with AsyncEdgeClient(
            Device(folder), server.url, deadline=30.0, costs=ALL, limit=limiter, max_batch=1
        ) as edge:
            calls = [asyncio.create_task(edge.predict(X_TEST[:3])) for _ in range(12)]  # most wait for a thread
            await asyncio.to_thread(computing.wait, STUCK)
            for call in calls:
                call.cancel()
            ended = await asyncio.gather(*calls, return_exceptions=True)
            cancelled.set()
            await asyncio.sleep(0.2)
            return ended, edge.stats(), (await edge.predict(X_TEST[0]))[0].reason

    ended, stats, after = asyncio.run(ask())
    assert {type(end) for end in ended} == {asyncio.CancelledError}
    assert (stats.calls, stats.requests, stats.limit["used"]) == (0, 0, 0)
    assert after == "worth_asking"
    assert len(server.asked) == 1


def test_at_whatever_moment_a_call_is_cancelled_nothing_of_it_goes_on(server, folder):
    server.mode = "silent"

    async def ask():
        async with AsyncEdgeClient(SlowDevice(folder, 0.005), server.url, deadline=60.0, costs=ALL) as edge:
            for i in range(60):
                call = asyncio.create_task(edge.predict(X_TEST[:3]))
                await asyncio.sleep(i * 0.0002)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            await asyncio.to_thread(until, lambda: server.at_once == 0 and edge._threads._work_queue.empty())
            await asyncio.sleep(0.1)
            return server.at_once, edge.stats()

    left, stats = asyncio.run(ask())
    assert left == 0
    assert (stats.calls, stats.breaker) == (0, "closed")


# What is refused.


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (np.zeros((2, FEATURES + 1), np.float32), "shape"),
        (np.zeros((0, FEATURES), np.float32), "at least one"),
        (np.full((2, FEATURES), np.nan, np.float32), "NaN"),
        (np.array([["a"] * FEATURES]), "expected float32"),
        (np.zeros((), np.float32), "shape"),
    ],
)
def test_bad_inputs_are_refused_and_nothing_is_counted(connect, server, bad, words):
    edge = connect(server.url, costs=ALL)
    with pytest.raises(BundleError, match=words):
        edge.predict(bad)
    assert edge.stats().answers == 0
    assert server.connections == 0


@pytest.mark.parametrize("options", [{"deadline": 0}, {"deadline": float("nan")}, {"deadline": "1"}, {"retries": -1},
                                     {"max_batch": 0}, {"failures": 0}, {"rest": -1.0}, {"connections": 0},
                                     {"model": ""}, {"input_name": 3}, {"verify_tls": False},
                                     {"verify_tls": "/nowhere/ca.pem"}, {"key": "two words"}, {"key": ""},
                                     {"key": "new\nline"}])  # fmt: skip
def test_options_are_refused_at_once(bundle, options):
    with pytest.raises(EdgeSettingsError) as refused:
        EdgeClient(bundle, "http://127.0.0.1:1", **options)
    assert isinstance(refused.value, ValueError)
    assert "two words" not in str(refused.value)


@pytest.mark.parametrize("url", ["", "host:80", "ftp://host", "http://", "http://host:99999", "http://host/?q=1",
                                 "http://host/#f", "http://user:pass@host", "http://ho st", "http://host:port", 7,
                                 "//host", "http://[::1"])  # fmt: skip
def test_addresses_are_refused_at_once(bundle, url):
    with pytest.raises(EdgeSettingsError) as refused:
        EdgeClient(bundle, url)
    assert "pass@" not in str(refused.value)


def test_a_deadline_of_a_call_is_checked(connect):
    with pytest.raises(EdgeSettingsError, match="deadline"):
        connect().predict(X_TEST, deadline=-1)


def test_making_a_client_contacts_nobody_and_starts_no_thread(connect, server):
    before = threading.active_count()
    edge = connect(server.url)
    assert threading.active_count() == before
    edge.predict(X_TEST, costs=NONE)
    assert threading.active_count() == before
    assert server.connections == 0


def test_a_closed_client_answers_no_more(connect, server):
    edge = connect(server.url, costs=ALL)
    edge.predict(X_TEST[0])
    edge.close()
    edge.close()
    for call in (lambda: edge.predict(X_TEST[0]), lambda: edge.judge(X_TEST[0]), edge.check):
        with pytest.raises(EdgeError, match="closed"):
            call()
    assert edge.stats().answers == 1


def test_closing_ends_the_calls_under_way_with_local_answers(connect, server, bundle):
    server.mode = "silent"
    edge = connect(server.url, costs=ALL, deadline=2 * STUCK)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(edge.predict, x) for x in X_TEST[:4]]
        until(lambda: len(server.asked) == 4)
        edge.close()
        answers = [call.result(STUCK)[0] for call in calls]
    assert {a.source for a in answers} == {"local"}
    assert [a.label for a in answers] == bundle.judge(X_TEST[:4])[0].tolist()


def test_a_client_that_nobody_holds_leaves_no_thread(bundle, server):
    edge = EdgeClient(bundle, server.url, costs=ALL, deadline=30.0)
    edge.predict(X_TEST[0])
    thread = next(t for t in threading.enumerate() if t.name == "l2h-edge")
    del edge
    thread.join(STUCK)
    assert not thread.is_alive()


def _in_child(edge, channel):
    try:
        edge.predict(X_TEST[0])
    except EdgeError as error:
        channel.send(str(error))
    else:
        channel.send("")


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_after_a_fork_the_child_is_told_to_make_its_own(connect, server):
    edge = connect(server.url, costs=ALL, deadline=5.0)
    edge.predict(X_TEST[0])
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(edge, theirs))
    child.start()
    assert ours.poll(STUCK)
    assert "after the fork" in ours.recv()
    child.join(STUCK)
    assert child.exitcode == 0
    assert edge.predict(X_TEST[0])[0].source == "remote"


# What is shown and what is loaded.


def test_the_key_is_sent_and_never_shown(connect, server, caplog, capfd):
    caplog.set_level("DEBUG")
    edge = connect(server.url, key=KEY, deadline=5.0, costs=ALL)
    server.follow(["answer", "status:401", "status:500", "text:{", "reset", "reset"])
    reasons = [edge.predict(x)[0].reason for x in X_TEST[:6]]
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert "not_authorised" in reasons
    # The server repeated the key in its error, as a careless one would.
    shown = [caplog.text, repr(edge), repr(vars(edge)), str(edge.stats()), *capfd.readouterr()]
    assert not any(KEY in text for text in shown)
    assert "***" in caplog.text


def test_a_key_on_an_open_line_is_warned_about(connect, caplog):
    connect("http://127.0.0.1:1", key=KEY)
    assert not caplog.records
    connect("http://192.0.2.1:1", key=KEY)
    assert "unencrypted" in caplog.text
    assert KEY not in caplog.text


def test_neither_torch_nor_a_command_line_is_needed(folder):
    script = f"""
import l2h, numpy as np
free = l2h.Costs(c_e=0.0, c_1=0.0)
with l2h.EdgeClient({str(folder)!r}, "http://127.0.0.1:{free_port()}", costs=free, deadline=30.0) as edge:
    answers = edge.predict(np.zeros((2, {FEATURES}), np.float32))
assert answers.reason.tolist() == ["server_unreachable"] * 2, answers
"""
    done = python(script, blocked=HEAVY)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_counters_add_up(connect, server):
    edge = connect(server.url, deadline=5.0, costs=Costs(c_e=0.1))
    server.follow(["answer:1", "answer:0", "status:503,0", "answer:1"])
    calls = [edge.predict(X_TEST[i : i + 10]) for i in (0, 10, 20)]
    stats = edge.stats()
    every = np.concatenate([answers.reason for answers in calls])
    assert stats.reasons == dict(zip(*map(np.ndarray.tolist, np.unique(every, return_counts=True)), strict=True))
    assert (stats.calls, stats.answers) == (3, 30)
    assert stats.remote == (every == "worth_asking").sum() > 0
    assert stats.local + stats.remote == stats.answers
    assert (stats.requests, stats.retries, stats.charged, stats.repeats) == (4, 1, 2, 1)
    assert stats.bytes_sent == sum(len(asked.body) for asked in server.asked)
    assert stats.bytes_received > 0
    assert stats.version == server.version
    assert 0 < stats.latency["p50"] <= stats.latency["p95"] <= stats.latency["p99"] <= stats.latency["max"]
    assert len(stats.round_trip) == 4
    assert stats.as_dict()["breaker"] == "closed"
    assert stats.limit is None
