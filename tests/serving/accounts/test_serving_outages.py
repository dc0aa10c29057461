"""What of PostgreSQL's troubles a caller, an operator or the ledger may notice, and what not."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import commands
import psycopg
import pytest
from postgres_process import Postgres
from serving_process import Client, Server
from waiting import until

from l2h.serving.accounts import DOUBTS, open_accounts, open_history, open_keys, prepare_accounts
from l2h.serving.accounts.key import Key, Quota, Rate
from l2h.serving.accounts.postgres import ledger
from l2h.serving.accounts.postgres.connection import connect, is_well_formed
from l2h.serving.accounts.reserve import OutageReserve
from l2h.serving.accounts.store import AccountStore, Charge
from l2h.serving.errors import StoreDownError

Open = Callable[..., AccountStore]


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.new()


def sql(url: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as db:
        done = db.execute(query.encode(), values or None)
        return done.fetchall() if done.description else []


def charged(url: str) -> int:
    """How many rows the ledger of a database has, if it has one."""
    there = sql(url, "SELECT to_regclass('l2h.charges') IS NOT NULL") == [(True,)]
    return int(sql(url, "SELECT count(*) FROM l2h.charges")[0][0]) if there else 0


@pytest.fixture
def opened(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens the store of a worker: with ``inputs`` of a reserve it may serve without its database."""
    monkeypatch.setenv(DOUBTS, str(tmp_path / "doubts"))
    stores: list[AccountStore] = []
    tables: dict[int | None, Any] = {}

    def open_store(inputs: int | None = None, worker: int = 0) -> AccountStore:
        reserve = None if inputs is None else OutageReserve(str(tmp_path / "reserve"), inputs)
        shared = tables.setdefault(inputs, prepare_accounts(url, 2, reserve))
        stores.append(open_accounts(url, url, shared, worker, 2, reserve=reserve))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def charge(key: Key, inputs: int = 1, name: str | None = None) -> Charge:
    return Charge(key, "r", name, None if name is None else b"f", "digits", "1", inputs, inputs)


def answered(store: AccountStore, key: Key, count: int) -> int:
    """How many of so many requests are answered."""
    return [store.charge([charge(key)])[0].outcome for _ in range(count)].count("charged")


def recover(store: AccountStore) -> None:
    def back() -> bool:
        store.maintain()
        return store.down is None and not store.pending

    until(back)


@contextmanager
def lost(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The database charges, and ends before it says so; afterwards it is back."""
    write = ledger._write

    def die(db: Any, *given: Any) -> Any:
        write(db, *given)
        postgres.kill()
        return db.execute("SELECT 1")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_write", die)
        try:
            yield
        finally:
            postgres.start()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_does_not_hold_every_text_is_refused(postgres: Postgres, encoding: str) -> None:
    sql(postgres.url(), f"DROP DATABASE IF EXISTS {encoding}")
    sql(postgres.url(), f"CREATE DATABASE {encoding} ENCODING '{encoding}' TEMPLATE template0")
    status, _, err = commands.call("keys", "add", "phones", "--accounts", postgres.url(encoding.lower()))
    assert (status, f"has the encoding {encoding}" in err, err.count("\n")) == (1, True, 1)


def test_quotas_hold_whatever_encoding_the_environment_names(
    url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "SQL_ASCII")
    key, _ = open_keys(url).add("phönes", quota=Quota.parse("3/week"))
    assert answered(opened(), key, 5) == 3
    assert open_history(url).used([key]) == {key.id: 3}


@pytest.mark.parametrize("given", ["off", "local"])
def test_a_charge_is_on_the_disk_whatever_the_database_does_by_default(
    url: str, postgres: Postgres, given: str
) -> None:
    sql(postgres.url(), f"ALTER DATABASE {url.rsplit('/', 1)[1]} SET synchronous_commit = {given}")
    with closing(connect(url, checked=False)) as db:
        assert db.execute("SHOW synchronous_commit").fetchall() == [("on",)]
    sql(postgres.url(), f"ALTER DATABASE {url.rsplit('/', 1)[1]} SET synchronous_commit = remote_apply")
    with closing(connect(url, checked=False)) as db:
        assert db.execute("SHOW synchronous_commit").fetchall() == [("remote_apply",)], "which is more"


@pytest.mark.parametrize("behind", [700_000, -700_000])
def test_a_reserve_holds_whatever_the_clock_of_the_host_says(
    url: str, opened: Open, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, behind: float
) -> None:
    key, _ = open_keys(url).add("phones", quota=Quota.parse("3/week"))
    real, count = time.time, 0
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() - behind)
        store = opened(7)
        for _ in range(3):
            postgres.stop()
            try:
                count += answered(store, key, 12)
            finally:
                postgres.start()
            recover(store)
    assert count <= 3 + 7
    assert open_history(url).used([key]) == {key.id: count}


def test_what_is_moved_counts_though_the_worker_that_moves_never_heard_of_the_key(
    url: str, opened: Open, postgres: Postgres
) -> None:
    open_keys(url).add("older")
    mover = opened(7, 0)
    key, _ = open_keys(url).add("new", quota=Quota.parse("3/week"))
    other, count = opened(7, 1), 0
    for _ in range(2):
        postgres.stop()
        try:
            count += answered(other, key, 12)
        finally:
            postgres.start()
        recover(mover)
        until(lambda: other.maintain() or other.down is None)
        count += answered(other, key, 5)
    assert count <= 3 + 7
    assert open_history(url).used([key]) == {key.id: count}


@pytest.mark.parametrize("name", [None, "named"])
def test_what_got_503_is_undone_though_its_worker_has_ended(
    url: str, opened: Open, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    key, _ = open_keys(url).add("phones", quota=Quota.parse("100/week"))
    store = opened()
    with lost(postgres, monkeypatch), pytest.raises(StoreDownError):
        store.charge([charge(key, 5, name)])
    assert sql(url, "SELECT inputs FROM l2h.charges") == [(5,)]
    opened().maintain()
    named = [] if name is None else [(5, 0)]
    assert sql(url, "SELECT inputs, delivered FROM l2h.charges") == named
    assert open_history(url).used([key]) == {key.id: 5 * len(named)}


@pytest.mark.parametrize("name", [None, "named"])
def test_what_the_reserve_had_no_room_for_is_undone_as_well(
    url: str, opened: Open, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    key, _ = open_keys(url).add("phones", quota=Quota.parse("100/week"))
    store = opened(1)
    charges = [charge(key, 3, name)] + ([] if name is None else [charge(key, 1, "answered")])
    with lost(postgres, monkeypatch):
        results = store.charge(charges)
        assert [result.outcome for result in results] == ["store_down", "charged"][: len(charges)]
    recover(opened(1))
    rows = sql(url, "SELECT inputs, delivered FROM l2h.charges ORDER BY inputs")
    assert rows == ([] if name is None else [(1, None), (3, 0)])
    assert open_history(url).used([key]) == {key.id: sum(inputs for inputs, _ in rows)}


def test_a_damaged_file_of_what_is_to_be_undone_stops_nobody(
    url: str, opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, _ = open_keys(url).add("phones")
    (tmp_path / "doubts").write_text("garbage" * 1000)
    store = opened()
    for _ in range(2):
        store.maintain()
    assert answered(store, key, 1) == 1
    assert [record.message for record in caplog.records] == ["doubt_not_settled"]


@pytest.mark.long
def test_a_server_that_was_killed_after_its_503_leaves_nothing_charged(
    bundle: Path, tmp_path: Path, x: Any, url: str, postgres: Postgres
) -> None:
    """The transaction is committed, and PostgreSQL waits for a standby that is not there before it says so."""
    _, key = open_keys(url).add("phones", quota=Quota.parse("100/week"))

    def wait_for(standby: str) -> None:
        sql(postgres.url(), f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
        sql(postgres.url(), "SELECT pg_reload_conf()")
        until(lambda: sql(postgres.url(), "SHOW synchronous_standby_names") == [(standby,)])

    with Server(bundle, tmp_path, accounts=url) as server:
        assert Client(server, key).ask(x[:1]).status == 200
        wait_for("nobody")
        try:
            assert Client(server, key).ask(x).status == 503
            server.kill()
        finally:
            wait_for("")
    until(lambda: len(server.rows()) == 2)
    with Server(bundle, tmp_path, accounts=url) as server:
        until(lambda: server.rows("inputs") == [(1,)])


def test_a_rate_is_asked_for_at_once_when_the_database_is_back(url: str, opened: Open, postgres: Postgres) -> None:
    key, _ = open_keys(url).add("phones", rate=Rate(1e-6, 5))
    store = opened()

    async def ask() -> None:
        assert await store.take_rate(key, 1) <= 0.0
        for end in (postgres.stop, postgres.kill):
            end()
            postgres.start()
            assert await store.take_rate(key, 1) <= 0.0
        store.close()

    asyncio.run(ask())


def test_nobody_waits_for_a_database_that_is_known_to_be_silent(
    url: str, opened: Open, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, _ = open_keys(url).add("phones", rate=Rate(1e-6, 5), quota=Quota.parse("10/week"))
    store = opened(7)
    postgres.pause()
    try:
        assert answered(store, key, 1) == 1
        assert store.down is not None
        begun = time.monotonic()
        for _ in range(5):
            assert asyncio.run(store.take_rate(key, 1)) <= 0.0
            assert asyncio.run(store.was_charged(key, "x"))
        assert time.monotonic() - begun < 1.0
    finally:
        postgres.go_on()


def test_a_rate_that_cannot_be_asked_for_is_in_the_log(
    url: str, opened: Open, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    key, _ = open_keys(url).add("phones", rate=Rate(1e-6, 5))
    store = opened()
    postgres.stop()
    try:
        for _ in range(3):
            with pytest.raises(StoreDownError):
                asyncio.run(store.take_rate(key, 1))
    finally:
        postgres.start()
    assert [record.message for record in caplog.records].count("accounts_not_asked") == 1


def test_a_step_of_the_clock_locks_nobody_out(url: str, opened: Open) -> None:
    """Rates that were taken before anybody saw the step count for no longer than others."""
    key, _ = open_keys(url).add("phones", rate=Rate(100, 100))
    store = opened()
    store.charge([charge(key)])  # it knows what time it is
    sql(url, "UPDATE l2h.meta SET clock_shift = clock_shift + 3600")

    async def ask() -> None:
        assert await store.take_rate(key, 100) <= 0.0
        await asyncio.to_thread(store.maintain)
        assert await store.take_rate(key, 50) < 1.0
        store.close()

    asyncio.run(ask())
    assert sql(url, "SELECT clock_steps FROM l2h.meta") == [(1,)]


def test_the_lock_of_another_session_is_not_waited_for_for_ever(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_keys(url).add("phones")
    monkeypatch.setitem(connect.__globals__["_LONG"], "lock_timeout", "300ms")
    with psycopg.connect(url) as db:
        db.execute("LOCK TABLE l2h.meta IN ACCESS EXCLUSIVE MODE")
        for command in (["keys", "list"], ["keys", "add", "me"], ["ledger", "report"]):
            status, _, err = commands.call(*command, "--accounts", url)
            assert (status, "lock timeout" in err, err.count("\n")) == (1, True, 1), err


def test_tables_that_lost_a_row_are_named_in_one_line(url: str) -> None:
    open_keys(url).add("phones")
    sql(url, "DELETE FROM l2h.meta")
    for command in (["keys", "list"], ["keys", "add", "me"], ["ledger", "report"]):
        status, _, err = commands.call(*command, "--accounts", url)
        assert (status, "l2h.meta is empty" in err, err.count("\n")) == (1, True, 1), err


def test_a_url_may_leave_out_the_port_of_a_host() -> None:
    assert is_well_formed("postgresql://l2h@db1,db2:5433/l2h")
    assert not is_well_formed("postgresql://l2h:a/word@db1/l2h")


def test_a_server_begins_without_a_key(bundle: Path, tmp_path: Path, x: Any, url: str) -> None:
    """The first is made from within its container."""
    with Server(bundle, tmp_path, accounts=url) as server:
        assert server.events("no_keys")
        assert Client(server, "l2h_0_0").ask(x).status == 401
        _, key = open_keys(url).add("phones")
        until(lambda: Client(server, key).ask(x).status == 200)


@pytest.mark.long
def test_a_server_that_may_serve_begins_without_its_database(
    bundle: Path, tmp_path: Path, x: Any, url: str, postgres: Postgres
) -> None:
    """Open to everybody it needs no keys; and one whose database takes no writes is in trouble, and no more."""
    settings = {"accounts": url, "when_accounts_fail": "serve"}
    postgres.stop()
    try:
        with Server(bundle, tmp_path / "open", open=True, **settings) as server:
            assert Client(server).ask(x).status == 200
            postgres.start()
            until(lambda: charged(url) == 1)  # the tables were made first
    finally:
        if not postgres.answers():
            postgres.start()
    _, key = open_keys(url).add("phones")
    name = url.rsplit("/", 1)[1]
    with Server(bundle, tmp_path / "keys", **settings):
        pass
    sql(postgres.url(), f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        with Server(bundle, tmp_path / "keys", **settings) as server:
            assert Client(server, key).ask(x).status == 200
    finally:
        sql(postgres.url(), f"ALTER DATABASE {name} RESET default_transaction_read_only")


def test_a_damaged_copy_of_the_keys_is_written_again(url: str, opened: Open, tmp_path: Path) -> None:
    key, _ = open_keys(url).add("phones")
    opened(7)
    kept = tmp_path / "reserve-keys"
    kept.write_text("")
    assert opened(7).keys.find(key.id) == key
    assert [record["id"] for record in json.loads(kept.read_text())["keys"]] == [key.id]


def test_a_server_that_refuses_begins_beside_a_damaged_reserve(bundle: Path, tmp_path: Path, url: str) -> None:
    open_keys(url).add("phones")
    (tmp_path / "ledger.db-reserve").write_text("garbage" * 1000)
    with Server(bundle, tmp_path, accounts=url) as server:
        assert len(server.events("reserve_unreadable")) == 1
        assert all(line.startswith("{") for line in server.log.read_text().splitlines())
