"""The interface of the accounts: who may ask, how much, and what was charged.

The rest of the server and ``l2h keys`` use these types only; :mod:`l2h.serving.accounts` opens an implementation.
Whoever writes another one, say over PostgreSQL for several hosts, must keep what the methods promise here. All workers
that share a store see one truth: no quota and no rate is exceeded because two of them ask at the same time.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

from l2h.serving.accounts.key import Key, Quota, Rate


class Charge(NamedTuple):
    """What a request costs, and who pays."""

    key: Key  # who pays
    request_id: str  # of the request, for the ledger
    idempotency_key: str | None  # the same for all repeats of one request; None where the caller sent none
    fingerprint: bytes | None  # tells requests with the same idempotency key apart; None without such a key
    model: str  # its name
    version: str  # of the model
    inputs: int  # counted against the quota
    units: int  # the price


#: What became of a charge; only the first of them wrote a row. "repeated": the same request was charged before, may be
#: answered, and costs nothing. "conflict": another request was charged with the same idempotency key.
Outcome = Literal["charged", "repeated", "conflict", "over_quota", "store_down"]


#: The numbers of the first and the last of rows that follow one another, and whether the answers that they paid for
#: were delivered.
Delivery = tuple[int, int, bool]


class ChargeResult(NamedTuple):
    """The outcome of a charge."""

    outcome: Outcome
    quota_left: int = 0  # inputs that the quota still has
    retry_after: float = 1.0  # seconds until the next period
    used: int | None = None  # of the quota, in this period; None where the key has none, or it was not looked at
    ends: float = 0.0  # the end of this period, in seconds since the system's start
    row: int | None = None  # with "charged", the number of its row


class Room(NamedTuple):
    """What came of reserving inputs of a quota."""

    granted: bool  # whether they may be computed
    held: bool  # whether they must be settled
    left: int  # inputs that the quota still has, beside those that are being computed
    retry_after: float  # seconds until the period ends, or until asking again may help


class KeyStore(Protocol):
    """The keys. The first three methods serve ``l2h keys`` and may block; a server uses the others as well.

    All but :meth:`find` raise a ``KeyStoreError`` where the store is missing, damaged or cannot be written.
    """

    def read(self) -> list[Key]:
        """Return all keys as the store holds them now, revoked ones too."""

    def add(
        self, name: str, *, quota: Quota | None = None, rate: Rate | None = None, admin: bool = False
    ) -> tuple[Key, str]:
        """Make a key; return its record and the key itself, which is kept nowhere.

        Atomic: of two callers with the same name one is refused, with a ``KeyStoreError``, like a name that cannot be
        used or that a key in use has.
        """

    def change(self, who: str, **changes: Any) -> list[Key]:
        """Change fields of the keys in use with a name, or of the one with an id; return them as they are now.

        ``enabled=False`` revokes a key, for good. Atomic, and the other keys stay as they are. A ``KeyStoreError``
        where there is no such key in use.
        """

    def refresh(self) -> int | None:
        """Load the keys that :meth:`find` knows, if they changed since the last call; may block.

        Returns how many keys are in use now, or None where nothing has changed. Where they cannot be read,
        :meth:`find` goes on with those it knows, and the next call raises again only after another change.
        """

    def find(self, key_id: str) -> Key | None:
        """Return the key with an id, as of the last :meth:`refresh`, revoked or not. From memory: it never blocks."""


class AccountStore(Protocol):
    """Rates, quotas and the ledger as one worker uses them.

    The worker calls :meth:`charge`, :meth:`probe` and :meth:`maintain` in a thread of their own, where they may wait a
    second or so, and the others on its event loop, which they must not block. A store that cannot be read or written
    raises a ``StoreDownError``.
    """

    @property
    def keys(self) -> KeyStore | None:
        """The keys, loaded; None where everybody may ask."""

    @property
    def down(self) -> str | None:
        """Why requests are answered from a reserve, while they are, as the store is set to; else None."""

    @property
    def pending(self) -> int:
        """Inputs that were answered from the reserve, by all workers of the host, and are not in the ledger yet."""

    async def take_rate(self, key: Key, inputs: int, paid: int = 0) -> float:
        """Let inputs through if the key's rate allows them now: all or none, exactly, over all workers.

        Of a request's inputs, ``paid`` were let through before, when their number was not known yet.
        Returns the seconds after which they would be let through; where they were, 0.0, or less by the time for which
        the key could go on at its rate at once.
        """

    def used_up(self, key: Key) -> float:
        """Return the seconds for which the key's quota is known to be used up; 0.0 where it is not known to be."""

    async def reserve(self, key: Key, inputs: int) -> Room:
        """Reserve inputs of the key's quota before they are computed: all or none, over all workers of the server.

        What is held must be settled. What a worker that dies has reserved is free again. Where the store cannot be read
        they are granted, since :meth:`charge` decides.
        """

    def settle(self, key: Key, inputs: int, result: ChargeResult | None) -> None:
        """Note that inputs that :meth:`reserve` held were charged with this result, or will not be."""

    def flush(self) -> None:
        """Give back what was settled; called every few milliseconds."""

    async def was_charged(self, key: Key, idempotency_key: str) -> bool:
        """Return whether a request was charged before; True where that is unknown, since :meth:`charge` decides."""

    async def foresee(self, charge: Charge) -> ChargeResult:
        """Return what :meth:`charge` would now return for a charge, "charged" where that is unknown; change nothing."""

    def charge(self, charges: Sequence[Charge], delivered: Sequence[Delivery] = ()) -> list[ChargeResult]:
        """Charge requests in one transaction; return what became of each, in their order.

        The rows of earlier charges are marked in the same transaction: whether their answers were delivered.

        Atomic: when it returns, every row is written and survives the death of this process; when it raises, nothing
        was charged. A quota is counted in the same transaction, to the last input, over all workers. Idempotent for
        a pair of key and idempotency key, also within one call: the first is charged, the others are repeats or
        conflicts. A charge over its quota uses nothing. A period ends when its time has passed since it began, whatever
        steps the clock has made.
        """

    def probe(self) -> None:
        """Write something without meaning, to see whether :meth:`charge` would work again; raises where not."""

    def maintain(self) -> None:
        """Do what bounds a loss; called about once a second, and raises where :meth:`charge` would."""

    def close(self) -> None:
        """Give back what is open; nothing may be called afterwards."""
