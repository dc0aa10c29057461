"""Connections to PostgreSQL that give up in time, and its errors in one line."""

import logging
import time
from collections.abc import Generator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from l2h.serving.accounts.postgres.schema import migrate, require_version
from l2h.serving.errors import LedgerError

#: Seconds to wait for a connection, for an answer, and for a lock that another transaction holds.
CONNECT, ANSWER, LOCK = 3.0, 3.0, 1.0
#: A server that is silent is given up by us after ``ANSWER`` seconds; one that works gives up by itself, and does not
#: hold locks for a worker that is stopped or gone.
_SESSION = {
    "lock_timeout": f"{LOCK * 1e3:.0f}ms",
    "statement_timeout": f"{ANSWER * 1e3:.0f}ms",
    "idle_in_transaction_session_timeout": f"{ANSWER * 1e3:.0f}ms",
    "default_transaction_isolation": "read committed",
    "timezone": "UTC",
    "search_path": "l2h",
}
#: What holds instead where an answer may take long: another session's lock is waited for longer, and not for ever.
_LONG = {"lock_timeout": "10s", "statement_timeout": "0", "idle_in_transaction_session_timeout": "0"}
#: Sets what a session needs, in one round trip.
SET = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS given (name, value)"
#: What was charged is on the database's disk, whatever the database does where it is not asked.
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting(%s) IN ('off', 'local')"
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}

Connection = psycopg.Connection[tuple[Any, ...]]
# What psycopg ignores while it closes a connection would be written to stderr as it is, between the lines of our log.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


class DatabaseDownError(LedgerError):
    """The database cannot be reached, or lets nobody in."""


class SilentServerError(psycopg.OperationalError):
    """The server took the statement and does not answer."""


class _Bounded(psycopg.Connection[tuple[Any, ...]]):
    """A connection on which no statement waits longer than ``patience`` seconds for an answer."""

    patience: float | None = None

    def wait(self, gen: Generator[Any, Any, Any], *given: Any, **options: Any) -> Any:
        if self.patience is not None:
            gen = _until(gen, time.monotonic() + self.patience)
        try:
            return super().wait(gen, *given, **options)
        except SilentServerError:
            self.close()  # whatever it says later, nobody knows to what
            raise


class BoundedAsync(psycopg.AsyncConnection[tuple[Any, ...]]):
    """The same for an event loop. To cancel a statement that waits would wait for the server as well."""

    patience: float = ANSWER

    async def wait(self, gen: Generator[Any, Any, Any], *given: Any, **options: Any) -> Any:
        return await super().wait(_until(gen, time.monotonic() + self.patience), *given, **options)


def connect(url: str, *, patience: float | None = ANSWER, checked: bool = True) -> Connection:
    """Return a connection in which every statement is a transaction, unless one is begun.

    Raises a ``psycopg.Error`` where there is none to be had, and a ``LedgerError`` where the database cannot hold
    accounts or, if ``checked``, the tables are not those of this version. ``patience`` bounds the seconds of every
    answer; None where it may take long.
    """
    db = _Bounded.connect(url, autocommit=True, **connect_options())
    try:
        db.patience = patience
        encoding = db.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise LedgerError(
                f"{shown_place(url)} has the encoding {encoding}, which does not hold every name: make one with "
                f"CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
            )
        db.execute(SET, session_settings(patience))
        db.execute(_DURABLE, ("synchronous_commit",))
        if checked:
            require_version(db, shown_place(url))
    except BaseException:
        db.close()
        raise
    return db


def prepare_database(url: str) -> None:
    """Make the tables, or check and update those that are there; a ``LedgerError`` says why not."""
    place = shown_place(url)
    try:
        with connect(url, patience=None, checked=False) as db:
            migrate(db, place)
    except psycopg.Error as error:
        kind = DatabaseDownError if isinstance(error, psycopg.OperationalError) else LedgerError
        raise kind(f"cannot use the accounts at {place}: {one_line(error)}") from error


def connect_options() -> dict[str, Any]:
    """Return what every connection is made with."""
    timeouts = {"connect_timeout": round(CONNECT), "tcp_user_timeout": round(ANSWER * 1e3)}
    return {"client_encoding": "UTF8", **timeouts, **_KEEPALIVE}


def session_settings(patience: float | None = ANSWER, **settings: str) -> tuple[list[str], list[str]]:
    """Return the settings of a session, as the values of :data:`SET`."""
    all_settings = {**_SESSION, **({} if patience is not None else _LONG), **settings}
    return list(all_settings), list(all_settings.values())


def is_well_formed(url: str) -> bool:
    """Return whether a URL can be read, and holds no password whose ``/`` or ``@`` makes it another URL."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        return False
    ports = str(parts.get("port", "")).split(",")
    others = f"{parts.get('host', '')}{parts.get('dbname', '')}"
    return all(port.isdecimal() or not port for port in ports) and "@" not in others


def without_password(url: str) -> tuple[str, str | None]:
    """Return a URL that may be shown and logged, and the password that it had."""
    parts = conninfo_to_dict(url)
    password = parts.pop("password", None)
    return (url, None) if password is None else (_as_url(parts), str(password))


def shown_place(url: str) -> str:
    """Return the place of a database for messages: without the password and the options."""
    if not is_well_formed(url):
        return "this address"
    parts = conninfo_to_dict(url)
    return _as_url({name: parts[name] for name in ("user", "host", "port", "dbname") if name in parts})


def one_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _as_url(parts: Mapping[str, Any]) -> str:
    plain = {name: str(value) for name, value in parts.items()}
    user = quote(plain.pop("user", ""), safe="")
    hosts, ports = plain.pop("host", "").split(","), plain.get("port", "").split(",")
    if len(hosts) == len(ports):
        plain.pop("port", None)
    else:  # one for all of them, which is an option
        ports = [""] * len(hosts)
    where = ",".join(
        (f"[{host}]" if ":" in host else quote(host, safe="")) + f"{':' * bool(port)}{port}"
        for host, port in zip(hosts, ports, strict=True)
    )
    name, options = quote(plain.pop("dbname", ""), safe=""), urlencode(plain, quote_via=quote)
    return f"postgresql://{user}{'@' * bool(user)}{where}/{name}{'?' * bool(options)}{options}"


def _until(gen: Generator[Any, Any, Any], end: float) -> Generator[Any, Any, Any]:
    """Pass a generator of psycopg on, which is woken several times a second, until a time."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > end:
                raise SilentServerError("the server does not answer")
            wanted = gen.send(ready)
    except StopIteration as done:
        return done.value
