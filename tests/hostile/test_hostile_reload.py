"""Any history of bundles, deaths, keys and signals: only accepted bundles answer, and the last good one wins.

The model: a set of versions that may answer now. A good bundle joins it; once every worker answers with the bundle that
was put last, it is the only one. Whatever else is put into the folder never joins.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from serving_maker import endless, linear, write_bundle
from serving_process import Server, make_key
from test_hostile_process import REFUSED, ask_afresh, version
from waiting import until

from l2h.bundle import ServerBundle
from l2h.serving.accounts import open_keys

X = np.random.default_rng(0).integers(0, 255, (2, 1, 4, 4)).astype(np.uint8)


class World:
    """One server for all histories of a test, and what is known of it."""

    def __init__(self, folder):
        self.folder, self.seeds = folder / "b", itertools.count(1)
        self.scores: dict[str, np.ndarray] = {}
        self.keys, _, self.key = make_key(folder)
        self.allowed = {self.put()}
        begun = time.monotonic()
        subprocess.run([sys.executable, "-P", "-c", "import l2h.serving.process.candidate"], check=True)
        # A good bundle is to be tried in time, and an endless one is waited for: many times what a start takes here.
        patience = max(3.0, 6 * (time.monotonic() - begun))
        settings = {"workers": 2, "keys": str(self.keys), "watch": 0.05, "load_timeout": patience}
        self.server = Server(self.folder, folder / "s", **settings, log_requests=False)
        self.last_good: str | None = self.server.version

    def put(self) -> str:
        found = write_bundle(self.folder, linear(seed=next(self.seeds))).version
        self.scores[found] = ServerBundle(self.folder).run(X)
        return found

    def answer(self) -> str:
        """The version of an answer, which is one that may answer, and whose scores it gives.

        A connection that a worker held when it was killed is lost with it; another one is answered.
        """

        def ask():
            with contextlib.suppress(OSError, http.client.HTTPException):
                return ask_afresh(self.server, X, self.key)

        reply = until(ask)
        assert reply.status == 200, reply.body
        found = version(reply)
        assert found in self.allowed, "a bundle that was not accepted answers"
        np.testing.assert_allclose(reply.scores, self.scores[found], rtol=1e-4, atol=1e-4)
        return found


def machine(world: World) -> type[RuleBasedStateMachine]:
    class Reloading(RuleBasedStateMachine):
        @initialize()
        def begin(self):
            self.kills = 0

        @rule()
        def put_a_good_bundle(self):
            world.last_good = world.put()
            world.allowed.add(world.last_good)

        @rule(kind=st.sampled_from(sorted(REFUSED)))
        def put_a_bundle_to_refuse(self, kind):
            REFUSED[kind](world.folder)
            world.last_good = None

        @rule()
        def put_an_endless_bundle(self):
            write_bundle(world.folder, endless())
            world.last_good = None

        @precondition(lambda self: self.kills < 2)
        @rule(which=st.integers(0, 1))
        def kill_a_worker(self, which):
            # Counted though nothing may be there to kill: what may come next follows from the draws alone.
            self.kills += 1
            workers = world.server.workers
            if len(workers) == 2:  # else one is on its way back
                os.kill(workers[which], signal.SIGKILL)

        @rule()
        def change_the_keys(self):
            before, world.key = world.key, open_keys(world.keys).add(f"k{next(world.seeds)}")[1]
            open_keys(world.keys).change(before.split("_")[1], enabled=False)
            until(lambda: {ask_afresh(world.server, X, world.key).status for _ in range(4)} == {200})
            until(lambda: {ask_afresh(world.server, X, before).status for _ in range(4)} == {403})

        @rule()
        def look_at_once(self):
            world.server.signal(signal.SIGHUP)

        @rule()
        def settle(self):
            until(lambda: len(world.server.workers) == 2)
            until(lambda: world.server.get("/v2/health/ready")[1] == b'{"ready": true}')
            if world.last_good is not None:
                until(lambda: {world.answer() for _ in range(8)} == {world.last_good})
                until(lambda: not world.server.children("candidate"))
                world.allowed = {world.last_good}

        @invariant()
        def only_what_was_accepted_answers(self):
            assert world.server.process.poll() is None
            for _ in range(3):
                world.answer()

        def teardown(self):
            self.settle()

    return Reloading


@pytest.mark.parametrize(("histories", "steps"), [(3, 6), pytest.param(40, 15, marks=pytest.mark.long)])
def test_any_history_of_reloads(tmp_path, histories, steps):
    world = World(tmp_path)
    try:
        run_state_machine_as_test(
            machine(world),
            settings=settings(
                max_examples=histories,
                stateful_step_count=steps,
                deadline=None,
                database=None,  # a history that failed is not repeated on a server that another one has changed
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
        assert world.server.stop() == 0
        assert not world.server.events("watch_failed")
    finally:
        world.server.kill()
