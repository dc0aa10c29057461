"""PostgreSQL that ends, stalls or steps in the middle, and databases that are refused."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import commands
import psycopg
import pytest
from postgres_process import PASSWORD
from psycopg.conninfo import conninfo_to_dict
from serving_process import Server
from waiting import STUCK, until

from l2h.serving.accounts import DOUBTS, open_accounts, open_history, open_keys, prepare_accounts
from l2h.serving.accounts.key import ANONYMOUS, Key, Quota, Rate
from l2h.serving.accounts.postgres import connection, ledger, schema
from l2h.serving.accounts.reserve import OutageReserve
from l2h.serving.accounts.store import AccountStore, Charge
from l2h.serving.errors import KeyStoreError, LedgerError, StoreDownError

KEY = Key("0123456789ab", "phones", "", "", quota=Quota(100, 604800), rate=Rate(1e-6, 5))


@pytest.fixture
def url(postgres, tmp_path, monkeypatch) -> str:
    monkeypatch.setenv(DOUBTS, str(tmp_path / "doubts"))
    return postgres.new()


@pytest.fixture
def opened(url):
    """Opens the same store as often as it is called, as many workers do."""
    inherited = prepare_accounts(url)
    stores: list[AccountStore] = []

    def open_store() -> AccountStore:
        stores.append(open_accounts(None, url, inherited))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def charge(name: str | None = None, inputs: int = 1) -> Charge:
    return Charge(KEY, "r", name, None if name is None else b"f", "digits", "1", inputs, inputs)


def rows(url: str, columns: str = "idempotency_key, delivered") -> list[tuple]:
    with psycopg.connect(url) as db:
        return db.execute(f"SELECT {columns} FROM l2h.charges ORDER BY id".encode()).fetchall()


@pytest.mark.parametrize("committed", [True, False])
def test_a_charge_whose_end_was_not_heard_is_undone(opened, url, monkeypatch, committed):
    """A request without a name got 503: its row goes. One with a name may have been repeated: its row is marked."""
    store, write = opened(), ledger._write
    store.charge([charge(inputs=10)])

    def lose(db: Any, *given: Any) -> Any:
        if committed:
            write(db, *given)
        db.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_write", lose)
        with pytest.raises(StoreDownError):
            store.charge([charge(inputs=20), charge("named", 3)])
    assert len(rows(url)) == (3 if committed else 1)
    if committed:
        (again,) = opened().charge([charge("named", 3)])
        assert again.outcome == "repeated", "another host answered it, free of charge"
    (result,) = store.charge([charge(inputs=5)])
    named = 3 * committed
    assert (result.outcome, result.used) == ("charged", 10 + named + 5)
    assert rows(url) == [(None, None), *[("named", 0)] * committed, (None, None)]
    assert sum(inputs for (inputs,) in rows(url, "inputs")) == result.used


@pytest.mark.long
@pytest.mark.alone
def test_a_database_that_stalls_is_given_up_and_nothing_is_charged_twice(opened, url, postgres, monkeypatch):
    store = opened()
    store.charge([charge(inputs=10)])
    monkeypatch.setattr(store._db, "patience", 0.5)
    postgres.pause()
    try:
        with pytest.raises(StoreDownError, match="does not answer"):
            store.charge([charge(inputs=20)])
        assert asyncio.run(store.was_charged(KEY, "x")), "unknown, and the charge decides"
        begun = time.monotonic()
        with pytest.raises(StoreDownError):
            asyncio.run(store.take_rate(KEY, 1))
        assert time.monotonic() - begun < 10, "and nobody waits for it to cancel what it does not do"
    finally:
        postgres.go_on()
    (result,) = store.charge([charge(inputs=5)])
    assert result.used == 15 == sum(inputs for (inputs,) in rows(url, "inputs"))


def test_a_stall_in_the_middle_of_the_end_is_settled_whichever_way_it_went(opened, url, postgres, monkeypatch):
    """The transaction still holds its locks when the worker comes back."""
    store, write = opened(), ledger._write
    store.charge([charge(inputs=10)])

    def stall(db: Any, *given: Any) -> Any:
        postgres.pause()
        db.patience = 0.3
        return write(db, *given)

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_write", stall)
        try:
            with pytest.raises(StoreDownError, match="does not answer"):
                store.charge([charge(inputs=20)])
        finally:
            postgres.go_on()
    (result,) = store.charge([charge(inputs=5)])
    assert result.used == 15 == sum(inputs for (inputs,) in rows(url, "inputs"))


def test_a_database_that_dies_with_a_transaction_open_is_charged_again(opened, url, postgres, monkeypatch):
    """Of the transaction nothing was written: its number is in the future of the database that comes back."""
    store, write = opened(), ledger._write

    def die(db: Any, *given: Any) -> Any:
        postgres.kill()
        return write(db, *given)

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_write", die)
        try:
            with pytest.raises(StoreDownError):
                store.charge([charge(inputs=20)])
        finally:
            postgres.start()
    assert store.charge([charge(inputs=5)])[0].used == 5


@pytest.fixture
def reserving(url, tmp_path):
    """Opens a store with a reserve of 7 inputs for each of whatever keys there are."""
    reserve = OutageReserve(str(tmp_path / "reserve"), 7)
    stores: list[AccountStore] = []

    def open_store() -> AccountStore:
        stores.append(open_accounts(url, url, prepare_accounts(url, 1, reserve), reserve=reserve))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def recover(store: AccountStore) -> None:
    def back() -> bool:
        store.maintain()
        return store.down is None and not store.pending

    until(back)


def test_a_reserve_holds_over_all_outages_of_a_period(url, reserving, postgres, tmp_path, monkeypatch):
    """However often the database is down, whichever process asks, and whatever time the host thinks it is."""
    phones, _ = open_keys(url).add("phones", quota=Quota.parse("10/week"))
    store, answered, ahead = reserving(), 0, time.time() + 30 * 86400
    for outage in range(4):
        postgres.kill()
        try:
            requests = [Charge(phones, "r", None, None, "digits", "1", 1, 1) for _ in range(9)]
            some = [store.charge([request])[0].outcome for request in requests]
            assert set(some) <= {"charged", "store_down"}
            answered += some.count("charged")
            if outage == 3:  # the file of the reserve may fail for a moment as well
                with closing(sqlite3.connect(tmp_path / "reserve", isolation_level=None)) as db:
                    db.execute("BEGIN IMMEDIATE")
                    with pytest.raises(StoreDownError, match="locked"):
                        store.charge(requests)
                store.probe()
        finally:
            postgres.start()
        recover(store)
        if outage == 1:
            store.close()
            store = reserving()
            monkeypatch.setattr(time, "time", lambda: ahead)
    monkeypatch.undo()
    assert answered == 10 + 7
    assert open_history(url).used([phones]) == {phones.id: 17}
    assert store.charge([Charge(phones, "r", None, None, "digits", "1", 1, 1)])[0].outcome == "over_quota"


def test_what_was_answered_from_the_reserve_is_charged_once_though_its_process_ended(
    url, reserving, postgres, monkeypatch
):
    """The database had charged it, and died before it said so; the worker that knew of that has ended as well."""
    phones, _ = open_keys(url).add("phones", quota=Quota.parse("100/week"))
    store, write = reserving(), ledger._write

    def die(db: Any, *given: Any) -> Any:
        write(db, *given)
        postgres.kill()
        return db.execute("SELECT 1")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_write", die)
        try:
            (result,) = store.charge([Charge(phones, "r", None, None, "digits", "1", 5, 5)])
            assert result.outcome == "charged"
        finally:
            postgres.start()
    recover(reserving())
    assert rows(url, "inputs") == [(5,)]
    assert open_history(url).used([phones]) == {phones.id: 5}


def test_a_revocation_is_seen_though_the_database_ended_while_it_was_read(url, reserving, monkeypatch):
    """The keys that are kept for an outage are not taken for those of the database."""
    phones, _ = open_keys(url).add("phones")
    keys = reserving().keys
    open_keys(url).change("phones", enabled=False)

    def fail(db: Any) -> Any:
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch:
        patch.setattr("l2h.serving.accounts.postgres.keys.read_keys", fail)
        with pytest.raises(KeyStoreError, match="closed the connection"):
            keys.refresh()
        assert keys.refresh() is None, "told once"
    assert (keys.refresh(), keys.find(phones.id).enabled) == (0, False)


def test_a_long_outage_is_moved_in_parts_while_others_charge(url, reserving, opened, postgres, monkeypatch):
    monkeypatch.setattr("l2h.serving.accounts.postgres.store._ROWS", 20)
    monkeypatch.setattr("l2h.serving.accounts.postgres.store._MOVING", 0.0001)
    store, other = reserving(), opened()
    other.charge([Charge(ANONYMOUS, "r", name, b"f", "digits", "1", 1, 1) for name in ("before", "again")])
    postgres.kill()
    try:
        for i in range(5):
            many = [Charge(ANONYMOUS, "r", f"{i}-{j}" if j % 2 else None, b"f", "digits", "1", 1, 1) for j in range(20)]
            assert {result.outcome for result in store.charge(many)} == {"charged"}
        reused = Charge(ANONYMOUS, "r", "before", b"another", "digits", "1", 1, 1)
        repeated = reused._replace(fingerprint=b"f", idempotency_key="again")
        assert [result.outcome for result in store.charge([reused, repeated])] == ["charged", "charged"]
    finally:
        postgres.start()
    until(lambda: store.maintain() or store.down is None)
    with pytest.raises(StoreDownError):
        other.charge([charge()])
    parts = []
    while store.pending:
        parts.append(store.pending)
        assert other.charge([charge()])[0].outcome == "charged"
        store.maintain()
    assert len(parts) >= 4
    assert len(rows(url)) == 2 + 100 + 1 + len(parts), "what repeats is not charged again, what reuses a name is"


def test_a_database_that_takes_no_writes_is_in_trouble_until_it_does(opened, url, postgres):
    """A standby, say: that it can be read is no reason to say that all is well."""
    store = opened()
    name = url.rsplit("/", 1)[1]
    for state, works in (("on", False), ("off", True)):
        with psycopg.connect(postgres.url(), autocommit=True) as db:
            db.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {state}".encode())
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        for _ in range(2):
            try:
                store.probe()
                failed = False
            except StoreDownError:
                failed = True
        assert failed != works
    assert store.charge([charge()])[0].outcome == "charged"


@pytest.mark.parametrize("step", [-1e7, 1e7], ids="{:+g} s".format)
def test_a_step_of_the_database_s_clock_neither_gives_a_quota_again_nor_withholds_one(opened, url, step):
    """The shift that is added to it stands for the clock here: nobody else has changed it."""
    one, two = opened(), opened()
    for store in (one, two):
        assert store.charge([charge(inputs=50)])[0].outcome == "charged"
    for _ in range(5):
        asyncio.run(one.take_rate(KEY, 1))
    (before,) = one.charge([charge()])
    with psycopg.connect(url) as db:
        db.execute("UPDATE l2h.meta SET clock_shift = clock_shift + %s", (step,))
    for store in (two, one):
        (after,) = store.charge([charge()])
        assert after.outcome == before.outcome == "over_quota"
        assert abs(after.retry_after - before.retry_after) < 60
        assert asyncio.run(store.take_rate(KEY, 1)) > 0.0
    with psycopg.connect(url) as db:
        ((shift, steps),) = db.execute("SELECT clock_shift, clock_steps FROM l2h.meta").fetchall()
    assert (abs(shift) < 60, steps) == (True, 1), "corrected once, for all"


def test_tables_of_an_older_version_are_brought_up_to_date_and_newer_ones_refused(url):
    with psycopg.connect(url) as db:
        db.execute("CREATE SCHEMA l2h")
        db.execute("SET search_path = l2h")
        db.execute(schema.MIGRATIONS[1].encode())
        db.execute("UPDATE meta SET version = 1")
        db.execute("INSERT INTO totals VALUES (20600, 'a', 'digits', '1', 1, 2, 3, 0, 0)")
    with pytest.raises(LedgerError, match=r"an older L2H \(version 1\)"):
        open_history(url).report(["key"])
    open_keys(url).add("phones")
    assert [row["inputs"] for row in open_history(url).report(["key"])] == [2]
    store = open_accounts(None, url, prepare_accounts(url))
    with psycopg.connect(url) as db:
        db.execute("UPDATE l2h.meta SET version = version + 1")
    with pytest.raises(LedgerError, match="newer L2H"):
        prepare_accounts(url)
    store.close()


def foreign(url: str) -> str:
    with psycopg.connect(url) as db:
        db.execute("CREATE SCHEMA l2h")
        db.execute("CREATE TABLE l2h.t (a integer)")
    return url


def newer(url: str) -> str:
    open_keys(url).add("phones")
    with psycopg.connect(url) as db:
        db.execute("UPDATE l2h.meta SET version = 99")
    return url


REFUSED: dict[str, tuple[Callable[[str], str], str]] = {
    "wrong password": (
        lambda url: url.replace(PASSWORD.replace("/", "%2F"), "guess"),
        "authentication failed",
    ),
    "no such database": (lambda url: url + "x", "does not exist"),
    "unreachable": (lambda url: url.replace(f":{url.rsplit(':', 1)[1].split('/')[0]}/", ":9/"), "Connection refused"),
    "another schema": (foreign, "schema l2h that is not L2H's"),
    "newer": (newer, "written by a newer L2H (version 99"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_databases_that_are_refused_in_one_line_without_the_password(url, tmp_path, bundle, case):
    make, says = REFUSED[case]
    place = make(url)
    for command in (["keys", "add", "me"], ["keys", "list"], ["ledger", "report"]):
        status, _, err = commands.call(*command, "--accounts", place)
        assert (status, says in err, err.count("\n")) == (1, True, 1), err
        assert "guess" not in err
        assert PASSWORD not in err
    if case not in ("wrong password", "newer"):  # the same code says it
        return
    with Server(bundle, tmp_path, accounts=place, wait=False) as server:
        assert server.process.wait(STUCK) == 1
        (line,) = server.log.read_text().splitlines()
        assert says.replace('"', "'") in line.replace('\\"', "'")
        assert "guess" not in line


def test_a_server_that_is_too_old_is_refused(url, monkeypatch):
    monkeypatch.setattr(schema, "LEAST_SERVER", 99)
    with pytest.raises(LedgerError, match="accounts need PostgreSQL 99 or newer"):
        prepare_accounts(url)


def test_settings_that_do_not_go_together(tmp_path, url):
    (tmp_path / "keys.json").write_text("{}")
    for words, says in (
        (["--accounts", "mysql://l2h:s3cret@host/name"], "no address of PostgreSQL"),
        (["--accounts", "postgresql://l2h:s3cret/word@host/name"], "as %2F"),
        (["--accounts", "postgresql://l2h:s3@cret@host/name"], "as %2F"),
        (["--accounts", "postgres://l2h:s3%zzcret@host/name"], "as %2F"),
        (["--accounts", "postgresql://l2h:s3 cret@host/name"], "as %2F"),
        (["--accounts", url, "--keys", str(tmp_path / "keys.json")], "leave out --keys"),
        (["--when-accounts-fail", "serve"], "goes with --accounts"),
        (["--accounts", url, "--when-accounts-fail", "maybe"], "one of refuse, serve"),
        (["--accounts", url, "--reserve", "0"], "it lies between"),
        (["--accounts", url, "--reserve", "5"], "goes with --when-accounts-fail serve"),
    ):
        status, _, err = commands.call("serve", tmp_path, *words, "--print-config")
        assert (status, says in " ".join(err.split())) == (2, True), err
        assert "s3" not in err
    for words, flag in (
        (("keys", "add", "phones"), "--file"),
        (("keys", "list"), "--file"),
        (("ledger", "report"), "--keys"),
        (("ledger", "prune", "--keep", "90d"), "--ledger"),
        (("devices", "list"), "--keys"),
    ):
        status, _, err = commands.call(*words, "--accounts", url, flag, tmp_path / "other")
        assert (status, "leave one out" in err, err.count("\n")) == (2, True, 1), err


def test_a_password_is_not_among_the_arguments_of_processes(monkeypatch, url, tmp_path):
    monkeypatch.setenv("PGPASSWORD", "before")
    status, out, _ = commands.call("serve", tmp_path, "--accounts", url, "--print-config")
    assert (status, PASSWORD in out, "s3cret" in out) == (0, False, False)
    assert connection.without_password(url)[1] == PASSWORD
    assert os.environ["PGPASSWORD"] == PASSWORD


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://l2h:pw@one:5432,two:5433/accounts?target_session_attrs=read-write",
        "postgresql://l2h:pw@one,two/accounts?port=5433",
        "postgresql://l2h:pw@[::1]:5432/accounts",
        "postgres://l2h:p%2Fw@%2Fvar%2Frun/accounts?options=-c%20work_mem%3D64MB",
        "postgresql:///accounts?host=/tmp&password=pw",
    ],
)
def test_a_url_without_its_password_is_the_same_otherwise(url):
    shown, password = connection.without_password(url)
    assert conninfo_to_dict(shown) | {"password": password} == conninfo_to_dict(url)
