"""A function in place of a server: the same answers, and the same deadline, circuit, limits and reasons."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest
from edge_maker import ALL, KEY, X_TEST, pass_time, scores_of
from waiting import Stopwatch, until

from l2h import AsyncEdgeClient, Costs, Limiter, RateLimit
from l2h.edge import EdgeSettingsError


@pytest.fixture(scope="module")
def model(folder):
    return scores_of(folder)


def reasons(edge, n):
    return [edge.predict(x)[0].reason for x in X_TEST[:n]]


def threads() -> int:
    return sum(thread.name == "l2h-edge-function" for thread in threading.enumerate())


@pytest.mark.parametrize("form", ["scores", "labels", "torch"])
def test_a_function_answers_as_a_server_does(connect, server, model, form):
    import torch

    function = {
        "scores": model,
        "labels": lambda x: model(x).argmax(axis=1),
        "torch": lambda x: torch.from_numpy(model(x)),
    }[form]
    prices = {"deadline": 10.0, "costs": Costs(c_e=0.05)}
    over_http, called = (connect(given, **prices) for given in (server.url, function))
    expected, answers = (edge.predict(X_TEST) for edge in (over_http, called))
    assert set(answers.source) == {"local", "remote"}
    for name in ("label", "source", "reason", "cost"):
        np.testing.assert_array_equal(getattr(answers, name), getattr(expected, name))
    stats = called.stats()
    assert (stats.remote, stats.requests) == (over_http.stats().remote, over_http.stats().requests)
    assert stats.round_trip["p50"] > 0
    called.check()

    async def asynchronously():
        async with AsyncEdgeClient(called.bundle, function, **prices) as edge:
            return await edge.predict(X_TEST)

    np.testing.assert_array_equal(asyncio.run(asynchronously()).label, expected.label)


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: fail(ValueError("no")), "server_error"),
        (lambda x: fail(ConnectionRefusedError("no")), "server_unreachable"),
        (lambda x: fail(SystemExit(1)), "server_error"),
        (lambda x: np.full((len(x), 3), np.nan), "bad_answer"),
        (lambda x: np.ones((len(x), 4)), "bad_answer"),
        (lambda x: None, "bad_answer"),
    ],
    ids=["raises", "no-connection", "exits", "nan", "classes", "nothing"],
)
def test_a_function_that_fails_leaves_the_local_answer_and_gets_a_rest(connect, bundle, function, reason):
    calls = []
    edge = connect(lambda x: (calls.append(1), function(x))[1], deadline=5.0, costs=ALL, failures=3, rest=60.0)
    assert reasons(edge, 5) == [reason] * 3 + ["circuit_open"] * 2
    assert edge.predict(X_TEST[:1]).label == bundle.judge(X_TEST[:1])[0]
    assert (len(calls), edge.stats().breaker, edge.stats().retries) == (3, "open", 0)
    assert edge.stats().error.startswith(reason)
    pass_time(edge, 60.0)
    assert reasons(edge, 2) == [reason, "circuit_open"]


def test_a_function_that_hangs_holds_nobody_beyond_the_deadline_and_few_threads(connect, bundle, model):
    hang = threading.Event()

    def function(x):
        hang.wait()
        return model(x)

    edge = connect(function, deadline=0.1, costs=ALL, connections=2, failures=3, rest=0.05)
    seen = set()
    for x in X_TEST[:12]:
        with Stopwatch() as watch:
            answer = edge.predict(x)[0]
        assert watch.seconds < 0.4
        assert answer.label == bundle.judge(x)[0][0]
        seen.add(answer.reason)
        time.sleep(0.02)
    assert {"deadline"} <= seen <= {"deadline", "crowded", "circuit_open"}
    assert threads() == 2
    hang.set()
    until(lambda: threads() == 0)
    until(lambda: edge.predict(X_TEST[0])[0].reason == "worth_asking")


def test_a_limit_bounds_the_calls_of_a_function(connect, model):
    asked = []
    limit = Limiter(RateLimit(3, per="1h"), pacing=False)
    edge = connect(lambda x: (asked.extend(x), model(x))[1], deadline=5.0, costs=ALL, limit=limit)
    assert reasons(edge, 5) == ["worth_asking"] * 3 + ["over_limit"] * 2
    assert len(asked) == 3


def test_what_cannot_be_called_is_refused_at_once(connect, model):
    async def coroutine(x):
        return model(x)

    with pytest.raises(EdgeSettingsError, match="coroutine function"):
        connect(coroutine)
    with pytest.raises(EdgeSettingsError, match="key= goes with a server's address"):
        connect(model, key=KEY)
