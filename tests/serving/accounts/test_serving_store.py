"""What every store of accounts promises, whatever it is made of. Another implementation joins the fixture."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from serving_process import make_key
from waiting import until

from l2h.serving.accounts import open_accounts, open_keys, prepare_accounts
from l2h.serving.accounts.charging import ChargeWriter
from l2h.serving.accounts.key import Key, Quota, Rate
from l2h.serving.accounts.store import AccountStore, Charge, ChargeResult
from l2h.serving.errors import KeyStoreError, StoreDownError


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the accounts are: a file, or a database."""
    return str(tmp_path / "ledger.db") if request.param == "sqlite" else request.getfixturevalue("postgres").new()


@pytest.fixture
def opened(place: str):
    """Opens the same store as often as it is called, as many workers do."""
    inherited = prepare_accounts(place)
    stores: list[AccountStore] = []

    def open_store(keys: str | None = None) -> AccountStore:
        stores.append(open_accounts(keys, place, inherited))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def key(**allowances: Any) -> Key:
    return Key("0123456789ab", "phones", "0" * 64, "", **allowances)


def charge(who: Key, inputs: int = 1, name: str | None = None, fingerprint: bytes = b"a") -> Charge:
    return Charge(who, "r", name, None if name is None else fingerprint, "digits", "1", inputs, inputs)


def outcomes(results: list[ChargeResult]) -> list[str]:
    return [result.outcome for result in results]


def test_of_one_request_only_the_first_is_charged(opened: Callable[[], AccountStore]) -> None:
    """Within one transaction, and later, and by another worker."""
    first, second = opened(), opened()
    batch = [charge(key(), name="x"), charge(key(), name="x"), charge(key(), name="x", fingerprint=b"b"), charge(key())]
    assert outcomes(first.charge(batch)) == ["charged", "repeated", "conflict", "charged"]
    assert outcomes(second.charge(batch[:3])) == ["repeated", "repeated", "conflict"]
    assert asyncio.run(second.was_charged(key(), "x"))
    assert not asyncio.run(second.was_charged(key(), "y"))


def test_a_charge_over_the_quota_changes_nothing(opened: Callable[[], AccountStore]) -> None:
    store, limited = opened(), key(quota=Quota.parse("5/week"))
    results = store.charge([charge(limited, 3), charge(limited, 3, "later"), charge(limited, 2), charge(limited)])
    assert outcomes(results) == ["charged", "over_quota", "charged", "over_quota"]
    assert [result.quota_left for result in results if result.outcome == "over_quota"] == [2, 0]
    assert all(0 < result.retry_after <= 7 * 86400 for result in results if result.outcome == "over_quota")
    assert not asyncio.run(store.was_charged(limited, "later"))


def test_workers_share_one_quota_to_the_last_input(opened: Callable[[], AccountStore]) -> None:
    limited = key(quota=Quota.parse("100/week"))
    counted: Counter[str] = Counter()
    lock = threading.Lock()

    def work(store: AccountStore) -> None:
        for _ in range(20):
            results = store.charge([charge(limited), charge(limited, 2)])
            with lock:
                counted["inputs"] += sum(
                    inputs for inputs, result in zip((1, 2), results, strict=True) if result.outcome == "charged"
                )

    threads = [threading.Thread(target=work, args=(opened(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted["inputs"] == 100


def test_charges_and_rates_are_those_of_a_plain_model(opened: Callable[[], AccountStore]) -> None:
    """Batches of three workers in any order, with repeats, conflicts and quotas, beside dictionaries."""
    stores, rng = [opened() for _ in range(3)], np.random.default_rng(0)
    keys = [
        Key(f"{i:012x}", "k", "", "", quota=Quota(40, 604800) if i else None, rate=Rate(1e-9, 20)) for i in range(3)
    ]
    names: dict[tuple[str, str], bytes] = {}
    used: Counter[str] = Counter()
    filled: Counter[str] = Counter()
    rows: set[int] = set()
    for _ in range(60):
        store, batch, wanted = stores[rng.integers(3)], [], []
        for _ in range(rng.integers(1, 9)):
            who, inputs = keys[rng.integers(3)], int(rng.integers(1, 5))
            name = f"n{rng.integers(25)}" if rng.random() < 0.7 else None
            one = charge(who, inputs, name, bytes([rng.integers(97, 99)]))
            known = None if name is None else names.get((who.id, name))
            if known is not None:
                wanted.append("repeated" if known == one.fingerprint else "conflict")
            elif who.quota is not None and used[who.id] + inputs > who.quota.count:
                wanted.append("over_quota")
            else:
                wanted.append("charged")
                used[who.id] += inputs
                if name is not None:
                    names[who.id, name] = one.fingerprint or b""
            batch.append(one)
        foreseen = asyncio.run(store.foresee(batch[0])).outcome
        results = store.charge(batch)
        assert outcomes(results) == wanted
        assert foreseen == wanted[0]
        new = [result.row for result in results if result.outcome == "charged"]
        assert None not in new
        assert not rows & set(new)
        rows |= set(new)  # type: ignore[arg-type]
        for each, result in zip(batch, results, strict=True):
            if each.key.quota is not None and result.outcome in ("charged", "over_quota"):
                assert result.quota_left <= each.key.quota.count
        who, inputs, paid = keys[rng.integers(3)], int(rng.integers(1, 25)), int(rng.integers(2))
        passes = filled[who.id] <= 20 - min(inputs, 20) + paid
        filled[who.id] += (inputs - paid) * passes
        assert (asyncio.run(store.take_rate(who, inputs, paid)) <= 0.0) == passes
    assert used[keys[1].id] > 35, "the quota was reached"


def test_the_same_requests_in_any_order_at_once_are_charged_once(opened: Callable[[], AccountStore]) -> None:
    """Batches of several workers, of which each has what another has, in another order: nobody waits for ever."""
    done: list[ChargeResult] = []

    def work(store: AccountStore, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for turn in range(6):
            order = rng.permutation(20)
            keys = [key(quota=Quota.parse("1000/week")) if i % 2 else Key("ba9876543210", "", "", "") for i in order]
            done.extend(store.charge([charge(who, 1, f"{turn}-{i}") for who, i in zip(keys, order, strict=True)]))

    threads = [threading.Thread(target=work, args=(opened(), i)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(outcomes(done)) == {"charged": 6 * 20, "repeated": 2 * 6 * 20}


def test_workers_share_one_rate(opened: Callable[[], AccountStore]) -> None:
    stores, limited = [opened(), opened()], key(rate=Rate(1e-6, 7))
    waits = [asyncio.run(stores[i % 2].take_rate(limited, 1)) for i in range(10)]
    assert max(waits[:7]) <= 0.0
    assert min(waits[7:]) > 0.0
    assert asyncio.run(stores[0].take_rate(key(), 1)) == 0.0


def test_keys_are_followed(opened: Callable[[str], AccountStore], place: str, tmp_path: Path) -> None:
    store = str(tmp_path / "keys.json") if Path(place).parent.is_dir() else place
    key, _ = open_keys(store).add("alice", quota=Quota.parse("5/day"), rate=Rate.parse("3/s"))
    keys = opened(store).keys
    assert keys is not None
    assert keys.refresh() is None, "nothing has changed"
    bob, _ = open_keys(store).add("bob", admin=True)
    assert keys.find(bob.id) is None
    assert keys.refresh() == 2
    assert [keys.find(one.id) for one in (key, bob)] == [key, bob] == keys.read()
    with pytest.raises(KeyStoreError, match="has a key named 'bob'"):
        keys.add("bob")
    (changed,) = keys.change(bob.id, enabled=False, quota=Quota.parse("1/s"))
    assert keys.refresh() == 1
    assert keys.find(bob.id) == changed
    with pytest.raises(KeyStoreError, match="no key in use"):
        keys.change("bob", enabled=False)
    assert keys.add("bob")[0].id != bob.id, "the name is free again"


def test_bad_keys_leave_those_known(tmp_path: Path) -> None:
    path, key_id, _ = make_key(tmp_path)
    keys = open_keys(path)
    keys.refresh()
    path.write_text("{")
    with pytest.raises(ValueError):
        keys.refresh()
    assert keys.refresh() is None, "told once"
    known = keys.find(key_id)
    assert known is not None
    assert known.enabled


def test_a_revocation_is_seen_though_the_file_could_not_be_read_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, key_id, _ = make_key(tmp_path)
    keys = open_keys(path)
    keys.refresh()
    keys.change(key_id, enabled=False)
    with monkeypatch.context() as patch:

        def fail(path: Path) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

        patch.setattr("l2h.serving.accounts.keyfile.read_json", fail)
        for _ in range(2):
            with pytest.raises(KeyStoreError, match="Too many"):
                keys.refresh()
    assert keys.refresh() == 0
    known = keys.find(key_id)
    assert known is not None
    assert not known.enabled


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_store_that_is_down_charges_nothing_and_comes_back(
    opened: Callable[[], AccountStore], tmp_path: Path
) -> None:
    store, ledger, away = opened(), tmp_path / "ledger.db", tmp_path / "away.db"
    assert outcomes(store.charge([charge(key())])) == ["charged"]
    ledger.rename(away)
    with pytest.raises(StoreDownError):
        store.charge([charge(key())])
    with pytest.raises(StoreDownError):
        store.probe()
    away.rename(ledger)
    store.probe()
    assert outcomes(store.charge([charge(key())])) == ["charged"]
    with sqlite3.connect(ledger) as db:
        assert db.execute("SELECT count(*) FROM charges").fetchone() == (2,)
    db.close()


def test_to_a_request_a_store_that_is_down_is_an_outcome() -> None:
    """The thread goes on, says why, and tries again by itself."""

    class Store:
        down = True

        def charge(self, charges: list[Charge], delivered: object = ()) -> list[ChargeResult]:
            self.probe()
            return [ChargeResult("charged")] * len(charges)

        def probe(self) -> None:
            if self.down:
                raise StoreDownError("no disk")

    store, delivered = Store(), []
    writer = ChargeWriter(store, delivered.extend, lambda charges, seconds: None)  # type: ignore[arg-type]

    def ask() -> str:
        request: Any = SimpleNamespace(charge=charge(key()), x=np.zeros(1), result=None)
        writer.submit([request])
        until(lambda: request in delivered)
        return request.result.outcome

    assert ask() == "store_down"
    assert writer.trouble == "no disk"
    store.down = False
    until(lambda: writer.trouble is None)
    assert ask() == "charged"
    writer.close()


def test_where_few_come_at_a_time_the_next_ones_share_a_slow_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("l2h.serving.accounts.charging._LONGEST", 1.0)
    sizes: list[int] = []

    class Store:
        def charge(self, charges: list[Charge], delivered: object = ()) -> list[ChargeResult]:
            sizes.append(len(charges))
            time.sleep(0.5)  # as a database that is far away
            return [ChargeResult("charged")] * len(charges)

        def maintain(self) -> None:
            pass

    delivered: list[Any] = []
    writer = ChargeWriter(Store(), delivered.extend, lambda charges, seconds: None)  # type: ignore[arg-type]
    requests: list[Any] = [SimpleNamespace(charge=charge(key()), x=np.zeros(1), result=None) for _ in range(4)]
    writer.submit(requests[:2])
    until(lambda: len(delivered) == 2)
    for request in requests[2:]:
        writer.submit([request])
        until(writer._queue.empty)  # it was taken, and the transaction has not begun
    until(lambda: len(delivered) == 4)
    writer.close()
    assert sizes == [2, 2]


def test_the_thread_that_charges_survives_a_store_that_fails_in_any_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends only with the process, which is then replaced."""
    monkeypatch.setattr("l2h.serving.accounts.charging._UPKEEP", 0.01)
    monkeypatch.setattr("l2h.serving.accounts.charging._PAUSE", 0.01)
    exits: list[int] = []
    monkeypatch.setattr("l2h.serving.accounts.charging.os._exit", exits.append)

    class Store:
        broken, tries = True, 0

        def charge(self, charges: list[Charge], delivered: object = ()) -> list[ChargeResult]:
            return [ChargeResult("charged")] * len(charges)

        def maintain(self) -> None:
            self.tries += 1
            if self.broken:
                raise RuntimeError("can't start new thread")

        probe = maintain

    store, delivered = Store(), []

    def deliver(requests: list[Any]) -> None:
        if requests[0].result is None or delivered:
            raise RuntimeError("no loop")
        delivered.extend(requests)

    writer = ChargeWriter(store, deliver, lambda charges, seconds: None)  # type: ignore[arg-type]
    until(lambda: store.tries > 3)
    assert writer.trouble == "can't start new thread"
    store.broken = False
    until(lambda: writer.trouble is None)
    for count in (1, 2):
        assert len(delivered) == count - 1
        writer.submit([SimpleNamespace(charge=charge(key()), x=np.zeros(1), result=None)])  # type: ignore[list-item]
        until(lambda: delivered)
    until(lambda: exits)
    assert exits == [1]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_ledger_is_kept_up_though_no_thread_can_start_for_a_while(
    opened: Callable[[], AccountStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, started = opened(), []
    store.charge([charge(key())])

    def fail(thread: threading.Thread) -> None:
        started.append(thread.name)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        store.maintain()
        store.maintain()
    assert len(started) == 2, "tried again"
    assert outcomes(store.charge([charge(key())])) == ["charged"]
