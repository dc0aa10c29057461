"""Two servers behind nginx with their accounts in PostgreSQL, while a worker, a server and the database are killed."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from nginx_process import NGINX, configuration, nginx
from postgres_process import Postgres
from serving_process import Client, Server
from waiting import until

from l2h.serving.accounts import open_keys
from l2h.serving.accounts.key import Quota

pytestmark = pytest.mark.skipif(NGINX is None, reason="needs nginx: apt-get install nginx-light")
CONNECTIONS = 64
#: What a caller repeats, with the same Idempotency-Key: nginx found no host, or the server could not charge now.
AGAIN = {502, 503, 504}


def test_nginx_takes_the_file_of_deploy(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    file, _ = configuration(tmp_path, [8080, 8081], certificate)
    assert NGINX is not None
    done = subprocess.run([NGINX, "-t", "-c", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_nginx_asks_the_next_host_where_a_connection_cannot_be_made(
    bundle: Path, tmp_path: Path, postgres: Postgres
) -> None:
    """One host takes no connections, since its queue is full; then it takes one, and never answers."""
    url = postgres.new()
    _, key = open_keys(url).add("phones")
    with ExitStack() as stack:
        well = stack.enter_context(Server(bundle, tmp_path, accounts=url, max_per_address=0))
        silent = stack.enter_context(socket.socket())
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(silent.getsockname())
        port = stack.enter_context(nginx(tmp_path / "nginx", [silent.getsockname()[1], well.port]))
        client, statuses = Client(SimpleNamespace(port=port), key), Counter()  # type: ignore[arg-type,var-annotated]

        def ask() -> int:
            statuses[status := client.ask(np.zeros((1, 1, 4, 4), np.uint8)).status] += 1
            return status

        def tried() -> bool:
            assert ask() == 200
            return (tmp_path / "nginx" / "error.log").read_text().count("while connecting to upstream") >= 2

        until(tried)
        silent.listen(64)
        until(lambda: ask() == 504)
        assert set(statuses) == {200, 504}
        assert len(well.rows()) == statuses[200], "what was sent to one host is not sent to another"


class Callers:
    """Callers that ask over and over, each on its own connection, and repeat a request until it is settled."""

    def __init__(self, port: int, keys: list[str]) -> None:
        self.answered: list[set[str]] = [set() for _ in keys]  # names of the requests that got scores, by key
        self.refused: set[str] = set()  # those that the quota had no room for
        self.statuses: Counter[int] = Counter()  # 0: the connection broke
        self._port, self._keys, self._stop = port, keys, threading.Event()

    def __enter__(self) -> Callers:
        self._pool = ThreadPoolExecutor(CONNECTIONS)
        self._all = [self._pool.submit(self._call, number) for number in range(CONNECTIONS)]
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        for one in self._all:
            one.result()

    def more(self, count: int) -> None:
        """Wait until so many more requests were answered."""
        goal = sum(map(len, self.answered)) + count
        until(lambda: sum(map(len, self.answered)) >= goal, alive=self.check)

    def check(self) -> None:
        """Raise what ended a caller."""
        for one in self._all:
            if one.done():
                one.result()

    def _call(self, number: int) -> None:
        which = number % len(self._keys)
        client = Client(SimpleNamespace(port=self._port), self._keys[which])  # type: ignore[arg-type]
        rng, count = np.random.default_rng(number), 0
        while not self._stop.is_set():
            count += 1
            name, x = f"{number}-{count}", rng.integers(0, 255, (1, 1, 4, 4)).astype(np.uint8)
            end = time.monotonic() + 60
            while (status := self._ask(client, name, x)) in AGAIN | {0}:
                assert time.monotonic() < end, f"{name} got nothing but {self.statuses}"
                time.sleep(0.05)
            if status == 200:
                self.answered[which].add(name)
            else:
                assert status == 429
                self.refused.add(name)
                time.sleep(0.05)

    def _ask(self, client: Client, name: str, x: np.ndarray) -> int:
        try:
            status = client.ask(x, Idempotency_Key=name).status
        except (OSError, http.client.HTTPException):
            status = 0
        self.statuses[status] += 1
        return status


class Hosts:
    """The two servers, nginx and a key whose quota is raised step by step."""

    def __init__(self, bundle: Path, folder: Path, postgres: Postgres, stack: ExitStack) -> None:
        self.url, self.postgres = postgres.new(), postgres
        self._bundle, self._folder, self._stack = bundle, folder, stack
        keys = open_keys(self.url)
        self.capped, capped = keys.add("capped", quota=Quota.parse("1/week"))
        self.free, free = keys.add("free")
        _, self._admin = keys.add("admin", admin=True)
        self.servers = [self.start("a"), self.start("b")]
        self.port = stack.enter_context(nginx(folder / "nginx", [server.port for server in self.servers]))
        self.keys = [capped, free]

    def start(self, name: str, port: int = 0) -> Server:
        settings = {"accounts": self.url, "workers": 2, "max_per_address": 0, "log_requests": False}
        return self._stack.enter_context(Server(self._bundle, self._folder / name, port=port, **settings))

    def answered(self, server: Server) -> float:
        """How many inputs this host answered."""
        return server.metric("l2h_inputs_total", Authorization=f"Bearer {self._admin}")

    def used(self) -> int:
        """The inputs of the capped key in the ledger."""
        ((used,),) = self.servers[0].rows("coalesce(sum(inputs), 0)", f"key_id = '{self.capped.id}'")
        return int(used)

    def use_up(self, quota: int, fault: Callable[[], None]) -> None:
        """Raise the quota, cause a fault while it is used, and see that it is used to the last input and no further."""
        before = self.used()
        open_keys(self.url).change("capped", quota=Quota.parse(f"{quota}/week"))
        until(lambda: self.used() >= before + (quota - before) // 4)
        fault()
        until(lambda: self.used() >= quota)
        assert self.used() == quota


@pytest.fixture
def hosts(bundle: Path, tmp_path: Path, postgres: Postgres) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(bundle, tmp_path, postgres, stack)


@pytest.mark.long
@pytest.mark.alone
def test_nothing_is_charged_twice_or_beyond_the_quota_whatever_is_killed(hosts: Hosts) -> None:
    one, two = hosts.servers

    def kill_the_database() -> None:
        hosts.postgres.kill()
        refused = callers.statuses[503]
        until(lambda: callers.statuses[503] > refused, alive=callers.check)
        hosts.postgres.start()

    with Callers(hosts.port, hosts.keys) as callers:
        callers.more(200)
        hosts.use_up(300, lambda: os.kill(one.workers[0], signal.SIGKILL))
        hosts.use_up(600, two.kill)
        callers.more(200)
        two = hosts.start("b", two.port)
        until(lambda: hosts.answered(two) > 0)
        hosts.use_up(900, kill_the_database)
        callers.more(200)
        hosts.use_up(1200, lambda: None)
    assert {0, 502} & callers.statuses.keys(), "the faults were felt"
    assert set(callers.statuses) <= {0, 200, 429, *AGAIN}
    # One row for every request that was answered, and none for any other.
    for key, names in zip((hosts.capped, hosts.free), callers.answered, strict=True):
        rows = one.rows("idempotency_key, inputs", f"key_id = '{key.id}'")
        assert Counter(name for name, _ in rows) == Counter(names)
        assert {inputs for _, inputs in rows} == {1}
    assert hosts.used() == 1200
    assert min(hosts.answered(server) for server in (one, two)) > 0
