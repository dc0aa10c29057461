"""Ends and shortages: closed clients, forked processes, threads that cannot be started, permits that come too late."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from edge_maker import ALL, KEY, X_TEST
from forks import in_child
from waiting import STUCK, free_port

from l2h import AsyncEdgeClient, EdgeError, Limiter, RateLimit
from l2h.edge.dispatch import Pace
from l2h.limits import LimitError

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@pytest.fixture
def silent():
    """The address of a server that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_limiter_stops_deciding_at_the_deadline(connect, silent):
    class SlowLimiter(Limiter):
        def allow(self, score, timeout=None):
            time.sleep(0.01)
            return super().allow(score, timeout)

    limiter = SlowLimiter(RateLimit(10**6, per="1h"), pacing=False)
    edge = connect(silent, deadline=0.2, costs=ALL, limit=limiter)
    answers = edge.predict(np.repeat(X_TEST[:1], 300, axis=0))
    assert set(answers.reason) == {"deadline"}
    assert answers.latency[0] < 1.5, "three seconds for all"
    assert edge.stats().limit["permits"] < 30


def test_what_a_slow_limiter_permits_can_still_be_sent(connect, server):
    class SlowLimiter(Limiter):
        def allow(self, score, timeout=None):
            time.sleep(0.05)
            return super().allow(score, timeout)

    edge = connect(server.url, deadline=2.0, costs=ALL, limit=SlowLimiter(RateLimit(10**6, per="1h"), pacing=False))
    answers = edge.predict(np.repeat(X_TEST[:1], 60, axis=0))
    assert set(answers.reason) == {"worth_asking", "deadline"}
    assert edge.stats().limit["permits"] == sum(answers.source == "remote")


@forks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_asynchronous_client_is_refused_in_a_forked_child(bundle, silent):
    edge = AsyncEdgeClient(bundle, silent, costs=ALL)

    async def many():
        await asyncio.gather(*(edge.predict(X_TEST[0]) for _ in range(8)))

    asyncio.run(many())
    assert "after the fork" in in_child(lambda: asyncio.run(edge.predict(X_TEST[0])))
    assert "after the fork" in in_child(lambda: asyncio.run(edge.judge(X_TEST[0])))
    with edge._servers[0].dispatcher._lock:  # another thread of the parent holds it
        assert in_child(lambda: asyncio.run(edge.close())) == "None"
        assert in_child(edge._servers[0].dispatcher.stop) == "None"
    asyncio.run(edge.close())


def test_what_was_called_before_the_end_is_answered(bundle):
    async def ask():
        edge = AsyncEdgeClient(bundle)
        calls = [asyncio.ensure_future(edge.predict(X_TEST[0])) for _ in range(200)]
        await asyncio.sleep(0)
        await edge.close()
        answers = await asyncio.gather(*calls)
        with pytest.raises(EdgeError, match="closed"):
            await edge.predict(X_TEST[0])
        return answers

    assert len(asyncio.run(ask())) == 200


def test_a_check_that_the_end_cuts_short_says_so(bundle, silent):
    async def check():
        edge = AsyncEdgeClient(bundle, silent)
        checking = asyncio.ensure_future(edge.check(5.0))
        await asyncio.sleep(0.2)
        await edge.close()
        with pytest.raises(EdgeError, match="closed"):
            await checking
        edge = AsyncEdgeClient(bundle, silent)
        checking = asyncio.ensure_future(edge.check(5.0))
        await asyncio.sleep(0.2)
        checking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await checking
        await edge.close()

    asyncio.run(check())


def test_a_request_that_the_end_meets_before_its_first_step_is_answered_at_once(connect, silent):
    edge = connect(silent, deadline=20.0, costs=ALL)
    edge.predict(X_TEST[0], deadline=0.05)
    edge._servers[0].dispatcher.loop.call(lambda: time.sleep(0.3))  # the loop is busy
    with ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        asked = pool.submit(edge.predict, X_TEST[0])
        time.sleep(0.1)
        edge.close()
        assert asked.result()[0].reason == "server_unreachable"
        assert time.monotonic() - begun < 10.0
    assert edge._servers[0].dispatcher._active == 0


def test_many_waiting_requests_end_with_the_client(connect, silent):
    """As many as would end the stack, were each to end the next."""
    edge = connect(silent, deadline=30.0, costs=ALL, max_batch=1)
    with ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        asked = pool.submit(edge.predict, np.repeat(X_TEST[:1], 1500, axis=0))
        time.sleep(1.0)
        edge.close()
        assert set(asked.result().reason) == {"server_unreachable"}
        assert time.monotonic() - begun < 15.0


def test_a_thread_that_could_not_be_started_is_tried_again(connect, server, monkeypatch):
    real = threading.Thread.start

    def use(without):
        def start(thread):
            if thread.name == without:
                raise RuntimeError("can't start new thread")
            real(thread)

        monkeypatch.setattr(threading.Thread, "start", start)

    edge = connect(server.url, deadline=5.0, costs=ALL)
    use(without="l2h-edge")
    assert edge.predict(X_TEST[0])[0].reason == "server_unreachable"
    use(without="")
    assert edge.predict(X_TEST[0])[0].reason == "worth_asking"

    named = connect(f"http://localhost:{free_port()}", deadline=5.0, costs=ALL, failures=10**6)
    use(without="l2h-dns")
    assert named.predict(X_TEST[0])[0].reason == "server_unreachable"
    assert "can't start new thread" in named.stats().error
    use(without="")
    assert named.predict(X_TEST[0])[0].reason == "server_unreachable"
    assert "can't start" not in named.stats().error


def test_a_key_that_the_server_repeats_is_masked_wherever_it_says_it(connect, server, caplog):
    caplog.set_level("DEBUG")
    key = KEY + "'\\"  # whose quoted forms differ
    for text in (json.dumps({"model_name": key, "outputs": []}), json.dumps({"model_name": "clouds", "id": key})):
        server.mode = f"text:{text}"
        edge = connect(server.url, key=key, costs=ALL, deadline=5.0)
        assert edge.predict(X_TEST[0])[0].reason == "bad_answer"
        assert KEY not in edge.stats().error
    server.mode, server.version = "answer", f"version of {key}"
    assert edge.predict(X_TEST[0])[0].reason == "worth_asking"
    assert edge.stats().version == "version of ***"
    assert KEY not in caplog.text


def test_a_check_masks_the_key(connect, bundle):
    body = json.dumps({"name": KEY}).encode()
    answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            for _ in range(2):
                client, _ = listener.accept()
                with client:
                    client.recv(1 << 16)
                    client.sendall(answer)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(serve)
            edge = connect(f"http://127.0.0.1:{listener.getsockname()[1]}", key=KEY)
            with pytest.raises(EdgeError, match=r"\*\*\*") as raised:
                edge.check()
    assert KEY not in str(raised.value)
    assert raised.value.__cause__ is None


def test_one_time_out_does_not_crowd_out_what_comes_later():
    pace = Pace(most=16)
    pace.learn(begun=0.0, now=5.0, until=5.0, healthy=False, full=False)
    assert not pace.admits(left=0.2)
    pace.learn(begun=1.0, now=5.01, until=6.0, healthy=True, full=False)
    assert not pace.admits(left=0.2), "it was asked before the time-out"
    for _ in range(200):
        pace.learn(begun=6.0, now=6.01, until=6.2, healthy=True, full=False)
    pace.learn(begun=7.0, now=7.2, until=7.2, healthy=False, full=False)
    assert not pace.admits(left=0.2)
    pace.learn(begun=8.0, now=8.01, until=8.2, healthy=True, full=False)
    assert pace.admits(left=0.15)


def test_batches_are_asked_about_again_after_one_answer(connect, server):
    edge = connect(server.url, deadline=1.0, costs=ALL, max_batch=10, failures=10**6)
    edge.predict(X_TEST)
    server.mode = "slow:3"
    assert edge.predict(X_TEST[0])[0].reason == "deadline"
    server.mode = "answer"
    edge.predict(X_TEST[0])
    assert (edge.predict(X_TEST).source == "remote").all()


def test_the_counters_do_not_wait_for_a_limiter(connect, silent):
    limiter = Limiter(RateLimit(5, per="1h"), pacing=False)
    edge = connect(silent, costs=ALL, limit=limiter, deadline=0.05)
    assert limiter.allow(1.0)
    assert edge.stats().limit["permits"] == 1
    with limiter._lock, ThreadPoolExecutor(1) as pool:
        assert pool.submit(edge.stats).result(STUCK).limit["permits"] == 1


def test_a_limit_as_text_and_a_deadline_of_numpy(connect):
    assert connect(limit="20%", costs=ALL).predict(X_TEST[:1]).source.tolist() == ["local"]
    assert connect(limit="5/1h").stats().limit["cap"] == 5
    assert connect(deadline=np.float32(0.25))._deadline == 0.25
    for limit in ("soon", 0.2):
        with pytest.raises(LimitError):
            connect(limit=limit)
    with pytest.raises(EdgeError, match="deadline"):
        connect(deadline=np.bool_(True))
