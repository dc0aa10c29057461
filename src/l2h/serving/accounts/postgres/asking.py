"""What a worker asks the database on its event loop: rates, quotas, and whether a request was charged before.

Takes of rates that come while another statement is under way are sent together with the next one.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg

from l2h.serving.accounts.key import Key, Rate
from l2h.serving.accounts.periods import ChargeName, Now, Period, PeriodName, quota_periods
from l2h.serving.accounts.postgres import clock
from l2h.serving.accounts.postgres.connection import (
    SET,
    BoundedAsync,
    connect_options,
    one_line,
    session_settings,
)
from l2h.serving.accounts.postgres.ledger import KNOWN, USAGE, read_periods
from l2h.serving.errors import StoreDownError
from l2h.serving.process.logs import log_event

#: Seconds to wait for an answer, and after a failure until the next try.
_ANSWER, _PAUSE = 1.0, 0.5
_TAKE = "SELECT take_rates(%s::text[], %s::float8[], %s::float8[], %s::float8[], %s::float8[])"


class _Take(NamedTuple):
    key_id: str
    rate: Rate
    inputs: int
    paid: int
    wait: asyncio.Future[float]


class AsyncAsker:
    """A connection for the event loop; whatever fails is a ``StoreDownError``.

    ``down`` says why nothing need be asked, while requests are answered without the database.
    """

    def __init__(self, url: str, down: Callable[[], str | None]) -> None:
        self._url, self._down = url, down
        self._db: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        self._takes: list[_Take] = []
        self._taking: asyncio.Task[None] | None = None
        self._failed, self._why = float("-inf"), ""

    async def take_rate(self, key_id: str, rate: Rate, inputs: int, paid: int) -> float:
        """Take inputs of a rate; see :class:`~l2h.serving.accounts.store.AccountStore`."""
        wait: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._takes.append(_Take(key_id, rate, inputs, paid, wait))
        if self._taking is None or self._taking.done():
            self._taking = asyncio.create_task(self._take_all())
        return await wait

    async def charged(self, names: Sequence[ChargeName]) -> dict[ChargeName, bytes | None]:
        """Return the fingerprints of those requests that were charged before."""
        if not names:
            return {}
        ((rows),) = await self._ask((KNOWN, ([name[0] for name in names], [name[1] for name in names])))
        return {(key_id, name): fingerprint for key_id, name, fingerprint in rows}

    async def periods(self, keys: Iterable[Key]) -> tuple[Now, dict[PeriodName, Period]]:
        """Return the time, and the last periods of keys with quotas."""
        names = list(quota_periods(keys))
        columns = [name[0] for name in names], [name[1] for name in names]
        rows, ((wall, shift, _),) = await self._ask((USAGE, columns), (clock.READ, ()))
        return clock.steady_now(wall, shift), read_periods(rows)

    def close(self) -> None:
        """Give the connection back; its loop may have ended."""
        if self._db is not None:
            self._db.pgconn.finish()
            self._db = None

    async def _take_all(self) -> None:
        while self._takes:
            takes, self._takes = self._takes, []
            columns = [
                [take.key_id for take in takes],
                [take.rate.per_second for take in takes],
                [float(take.rate.burst) for take in takes],
                [float(take.inputs) for take in takes],
                [float(take.paid) for take in takes],
            ]
            try:
                (((waits,),),) = await self._ask((_TAKE, columns))
            except StoreDownError as error:
                for take in takes:
                    if not take.wait.done():
                        take.wait.set_exception(StoreDownError(str(error)))
            else:
                for take, wait in zip(takes, waits, strict=True):
                    if not take.wait.done():
                        take.wait.set_result(wait)

    async def _ask(self, *queries: tuple[str, Sequence[Any]]) -> list[list[tuple[Any, ...]]]:
        """Return the rows of queries, which are sent one after another."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.close()
            self._loop, self._lock = loop, asyncio.Lock()
        async with self._lock:
            down = self._down()
            if down is not None:
                raise StoreDownError(down)
            if loop.time() < self._failed + _PAUSE:
                raise StoreDownError(self._why)
            try:
                rows = await self._answers(queries)
            except (psycopg.Error, OSError) as error:
                self.close()
                self._failed, why = loop.time(), one_line(error)
                if not self._why:
                    log_event("warning", "accounts_not_asked", error=why)
                self._why = why
                raise StoreDownError(why) from error
            self._why = ""
            return rows

    async def _answers(self, queries: Sequence[tuple[str, Sequence[Any]]]) -> list[list[tuple[Any, ...]]]:
        """Ask, on a new connection where the one that is there has ended: the database may be back for long."""
        if self._db is not None:
            try:
                return await _send(self._db, queries)
            except psycopg.OperationalError:
                if not self._db.closed:
                    raise
        self._db = await self._connect()
        return await _send(self._db, queries)

    async def _connect(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        db = await BoundedAsync.connect(self._url, autocommit=True, **connect_options())
        db.patience = _ANSWER
        try:
            # A rate need not survive a crash of the database to the last request, and does not wait for its disk.
            await db.execute(SET, session_settings(synchronous_commit="off"))
        except BaseException:
            with suppress(psycopg.Error):
                await db.close()
            raise
        return db


async def _send(
    db: psycopg.AsyncConnection[tuple[Any, ...]], queries: Sequence[tuple[str, Sequence[Any]]]
) -> list[list[tuple[Any, ...]]]:
    return [await (await db.execute(query.encode(), values)).fetchall() for query, values in queries]
