"""Ends and shortages: closed clients, forked processes, threads that cannot be started, permits that come too late."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from edge_maker import ALL, X_TEST
from waiting import free_port

from l2h import AsyncEdgeClient, Limiter, RateLimit
from l2h.edge import EdgeError

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@pytest.fixture
def silent():
    """The address of a server that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def in_child(work):
    """What a forked child says, killed after ten seconds."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            said = str(work())
        except BaseException as error:  # noqa: BLE001 - nothing may leave the child
            said = f"{type(error).__name__}: {error}"
        os.write(theirs, said.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


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


@forks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_asynchronous_client_is_refused_in_a_forked_child(bundle, silent):
    edge = AsyncEdgeClient(bundle, silent, costs=ALL)

    async def many():
        await asyncio.gather(*(edge.predict(X_TEST[0]) for _ in range(8)))

    asyncio.run(many())
    assert "after the fork" in in_child(lambda: asyncio.run(edge.predict(X_TEST[0])))
    assert "after the fork" in in_child(lambda: asyncio.run(edge.judge(X_TEST[0])))
    with edge._dispatcher._lock:  # another thread of the parent holds it
        assert in_child(lambda: asyncio.run(edge.close())) == "None"
        assert in_child(edge._dispatcher.stop) == "None"
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
    edge._dispatcher.loop.call(lambda: time.sleep(0.3))  # the loop is busy
    with ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        asked = pool.submit(edge.predict, X_TEST[0])
        time.sleep(0.1)
        edge.close()
        assert asked.result()[0].reason == "server_unreachable"
        assert time.monotonic() - begun < 10.0
    assert edge._dispatcher._active == 0


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
