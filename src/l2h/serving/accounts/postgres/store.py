"""The accounts of servers on several hosts, in PostgreSQL.

A worker has three connections: one charges, in the thread of the charges; one asks for rates and quotas, on the event
loop; one follows the keys. Before the model runs, quotas are reserved among the workers of a host alone; the charge
counts over all hosts.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg

from l2h.clock import boot_time
from l2h.serving.accounts.history import stamp
from l2h.serving.accounts.key import Key
from l2h.serving.accounts.periods import decide, present_period
from l2h.serving.accounts.postgres.asking import AsyncAsker
from l2h.serving.accounts.postgres.connection import Connection, connect, one_line, prepare_database
from l2h.serving.accounts.postgres.doubts import Doubt, settle
from l2h.serving.accounts.postgres.history import sum_up
from l2h.serving.accounts.postgres.keys import DatabaseKeys
from l2h.serving.accounts.postgres.ledger import LedgerWriter, named, on_this_host
from l2h.serving.accounts.postgres.moving import move_reserve
from l2h.serving.accounts.rates import RateTable
from l2h.serving.accounts.reservations import ReservationTable, UsedQuota
from l2h.serving.accounts.reserve import DoubtFile, OutageReserve, ReserveLedger
from l2h.serving.accounts.store import Charge, ChargeResult, Delivery, Room
from l2h.serving.errors import KeyStoreError, LedgerError, StoreDownError
from l2h.serving.process.logs import log_event

#: Seconds between two looks for rows that are older than is to be kept.
_AGED = 600.0
#: Seconds until a file of doubts that failed is tried again.
_AGAIN = 60.0
#: Rows of the reserve that are moved in one transaction, and seconds that are spent on it before charges go on.
_ROWS, _MOVING = 1000, 0.25


class PostgresAccounts:
    """The :class:`~l2h.serving.accounts.store.AccountStore` of workers on several hosts.

    ``rates`` and ``reserved`` are tables that the workers of this host share. Without ``with_keys`` everybody may ask.
    With ``keep``, rows that are more than so many seconds old are summed up. With ``reserve``, requests are answered
    from that while the database is down; the worker that ``moves`` writes them to the database afterwards, and undoes
    what any worker has kept in the file ``doubts``.
    """

    def __init__(
        self,
        url: str,
        rates: RateTable,
        reserved: ReservationTable,
        *,
        with_keys: bool,
        keep: float | None,
        reserve: OutageReserve | None,
        moves: bool,
        doubts: str | None,
    ) -> None:
        self._url, self._reserved = url, reserved
        self._keep, self._aged, self._moves = keep, 0.0, moves
        self.down: str | None = None
        self._db: Connection | None = None
        self._connecting: threading.Thread | None = None
        self._fallback = None if reserve is None else ReserveLedger(reserve, rates, reserved)
        self._doubts = None if doubts is None else DoubtFile(doubts)
        self._settling = 0.0  # from when on they are settled
        self._writer, self._asker = LedgerWriter(), AsyncAsker(url, lambda: self.down)
        self._marks: list[Delivery] = []  # that are yet to be written
        self.keys = DatabaseKeys(url, None if reserve is None else reserve.keys) if with_keys else None
        try:
            self._db = connect(url)
        except (psycopg.Error, LedgerError) as error:
            if reserve is None:
                raise StoreDownError(one_line(error)) from error
            self._note(one_line(error))
        if self.keys is not None:
            self.keys.begin()

    @property
    def pending(self) -> int:
        return 0 if self._fallback is None else self._fallback.pending

    async def take_rate(self, key: Key, inputs: int, paid: int = 0) -> float:
        if key.rate is None:
            return 0.0
        try:
            return await self._asker.take_rate(key.id, key.rate, inputs, paid)
        except StoreDownError:
            if self._fallback is None:
                raise
            return await self._fallback.take_rate(key, inputs, paid)

    def used_up(self, key: Key) -> float:
        return 0.0 if key.quota is None else self._reserved.used_up(key)

    async def reserve(self, key: Key, inputs: int) -> Room:
        used = None if self._reserved.is_known(key) else await self._used(key)
        return self._reserved.reserve(key, inputs, lambda: used)

    def settle(self, key: Key, inputs: int, result: ChargeResult | None) -> None:
        self._reserved.settle(key, inputs, result)

    def flush(self) -> None:
        self._reserved.flush()

    async def was_charged(self, key: Key, idempotency_key: str) -> bool:
        try:
            return bool(await self._asker.charged([(key.id, idempotency_key)]))
        except StoreDownError:
            return True

    async def foresee(self, charge: Charge) -> ChargeResult:
        named = [] if charge.idempotency_key is None else [(charge.key.id, charge.idempotency_key)]
        try:
            now, last = await self._asker.periods([charge.key])
            decided = decide([charge], last, await self._asker.charged(named), now)
        except StoreDownError:
            decided = None
        return on_this_host(decided[0][0], now) if decided else ChargeResult("charged")

    def charge(self, charges: Sequence[Charge], delivered: Sequence[Delivery] = ()) -> list[ChargeResult]:
        fallback, doubt = self._fallback, None
        if fallback is not None:
            self._marks.extend(delivered)
            delivered = self._marks
        if fallback is None or self._db is not None:
            before = self._writer.doubt
            try:
                with self._writing() as db:
                    results, now = self._writer.charge(db, charges, delivered)
            except StoreDownError as error:
                doubt = None if self._writer.doubt is before else self._writer.doubt
                if fallback is None:
                    if doubt is not None:
                        self._keep_doubt(doubt)
                    raise
                self._note(str(error))
            else:
                self._marks.clear()
                self._note(None)
                return [on_this_host(result, now) for result in results]
        assert fallback is not None
        return self._charge_reserve(fallback, charges, doubt) if charges else []

    def _charge_reserve(
        self, fallback: ReserveLedger, charges: Sequence[Charge], doubt: Doubt | None
    ) -> list[ChargeResult]:
        """Charge requests to the reserve, which the database may have charged already."""
        if doubt is None:
            return fallback.charge(charges)
        self._keep_doubt(doubt._replace(refused=[]))  # first, so that nothing is charged in both for good
        refused = doubt.refused
        try:
            results = fallback.charge(charges)
            pairs = zip(charges, results, strict=True)
            refused = named(charge for charge, result in pairs if result.outcome == "store_down")
        finally:
            if refused:
                self._keep_doubt(doubt._replace(refused=refused))
        return results

    def _keep_doubt(self, doubt: Doubt) -> None:
        """Keep what is to be undone: by the next connection, or whoever has one after this worker has ended."""
        self._writer.doubt = doubt
        if self._doubts is not None:
            try:
                self._doubts.note(doubt.as_text())
            except StoreDownError as error:
                log_event("error", "doubt_not_kept", error=str(error))

    def probe(self) -> None:
        if self._fallback is None:
            self._probe()
        else:  # a database that is down is no trouble
            self._fallback.probe()

    def _probe(self) -> None:
        self._look()
        with self._writing() as db:
            db.execute("UPDATE meta SET single = true")

    def _look(self) -> None:
        with self._writing() as db:
            self._writer.settle(db)
            if self._moves and self._doubts is not None and boot_time() >= self._settling:
                try:
                    settle(db, self._doubts)
                except StoreDownError as error:  # of the file: no reason to answer nobody
                    log_event("error", "doubt_not_settled", error=str(error))
                    self._settling = boot_time() + _AGAIN
            self._writer.look(db)

    def maintain(self) -> None:
        if self._fallback is None:
            self._look()
        else:
            self._fallback.maintain()
            self._recover(self._fallback)
        if self._keep is not None and boot_time() >= self._aged:
            self._aged = boot_time() + _AGED
            old = threading.Thread(target=self._sum_up, args=(time.time() - self._keep,), name="age", daemon=True)
            with suppress(RuntimeError):  # no thread to be had: later
                old.start()

    def _recover(self, fallback: ReserveLedger) -> None:
        """See whether the database is there, or is back; then move what was answered without it."""
        fallback.count()
        if self._db is None:
            # In a thread, since a host that does not answer takes its time, and charges go on meanwhile.
            if self._connecting is None or not self._connecting.is_alive():
                self._connecting = threading.Thread(target=self._connect, name="connect", daemon=True)
                with suppress(RuntimeError):
                    self._connecting.start()
            return
        try:
            (self._look if self.down is None else self._probe)()
            begun = time.monotonic()
            while self._moves and fallback.pending and time.monotonic() - begun < _MOVING:
                self._move(fallback)  # a part, so that no charge waits long
        except StoreDownError as error:
            self._note(str(error))
        else:
            self._note(None)

    def _connect(self) -> None:
        try:
            if self._moves:  # the server may have begun while the database was down, without its tables
                prepare_database(self._url)
            self._db = connect(self._url)
        except (psycopg.Error, LedgerError) as error:
            self._note(one_line(error))

    def _move(self, fallback: ReserveLedger) -> None:
        waiting = fallback.waiting(_ROWS)
        with self._writing() as db:
            last, beyond = move_reserve(db, waiting)
        fallback.forget(last, beyond)
        log_event("info", "reserve_moved", requests=len(waiting.rows))

    def _note(self, trouble: str | None) -> None:
        """Note why the database cannot be used, and log when that begins and ends."""
        if trouble is not None and self.down is None:
            log_event("error", "accounts_down", error=trouble)
        elif trouble is None and self.down is not None:
            log_event("info", "accounts_back", after=self.down)
        self.down = trouble

    def close(self) -> None:
        self._asker.close()
        for part in (self._db, self.keys, self._fallback):
            if part is not None:
                with suppress(psycopg.Error):
                    part.close()
        self._db = None

    async def _used(self, key: Key) -> UsedQuota | None:
        assert key.quota is not None
        try:
            now, last = await self._asker.periods([key])
        except StoreDownError:
            return None
        period = present_period(key.quota, last.get((key.id, key.quota.seconds)), now)
        return UsedQuota(period.used, boot_time() + period.ends - now.steady)

    def _sum_up(self, before: float) -> None:
        try:
            with connect(self._url, patience=None) as db:
                rows = sum_up(db, before, pause=True)
        except (psycopg.Error, LedgerError) as error:
            log_event("warning", "ledger_not_pruned", error=one_line(error))
        else:
            if rows:
                log_event("info", "ledger_pruned", rows=rows, before=stamp(before))

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """Give the connection that writes; after a failure the next call opens a new one."""
        try:
            if self._db is None:
                self._db = connect(self._url)
            yield self._db
        except (psycopg.Error, LedgerError, KeyStoreError) as error:
            if self._db is not None:
                with suppress(psycopg.Error):
                    self._db.close()
                self._db = None
            raise StoreDownError(one_line(error)) from error
