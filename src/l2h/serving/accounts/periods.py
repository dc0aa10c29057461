"""What becomes of charges, by what a ledger holds: the one rule of every store.

A period ends when a clock that nobody can set says so; the wall clock says only when the next one is to end.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from l2h.serving.accounts.key import Key, Quota
from l2h.serving.accounts.store import Charge, ChargeResult

#: A key's id and the seconds of its period.
PeriodName = tuple[str, int]
#: A key's id and an idempotency key.
ChargeName = tuple[str, str]
_CHARGED = ChargeResult("charged")


class Now(NamedTuple):
    """The time on both clocks."""

    wall: float
    steady: float  # on the clock that nobody can set
    since: str  # which start of that clock; empty where nobody knows


class Period(NamedTuple):
    """What a key has used, as a ledger holds it."""

    number: int
    used: int
    since: str
    ends: float  # on the steady clock, counted from that start


def quota_periods(keys: Iterable[Key]) -> set[PeriodName]:
    """Return the periods that the charges of keys are counted in."""
    return {(key.id, key.quota.seconds) for key in keys if key.quota is not None}


def present_period(quota: Quota, last: Period | None, now: Now) -> Period:
    """Return the period that a key is in, from the last one that the ledger knows."""
    number, left = quota.window(now.wall)
    current = Period(number, 0, now.since, now.steady + left)
    if last is None:
        return current
    if last.since == now.since != "" and last.ends - now.steady <= quota.seconds:
        return last if now.steady < last.ends else current
    # The clock was started since: the wall clock alone can tell. One that went back does not open the period again.
    return current if number > last.number else current._replace(used=last.used)


def decide(
    charges: Sequence[Charge],
    last: Mapping[PeriodName, Period],
    known: Mapping[ChargeName, bytes | None] | None,
    now: Now,
) -> tuple[list[ChargeResult], dict[PeriodName, Period]] | None:
    """Return what becomes of charges, in their order, and the periods as they are afterwards.

    ``last`` are the periods of :func:`quota_periods`, and ``known`` the fingerprints of earlier charges, where there
    are any. Where nobody has looked for those, ``known`` is None: then all is decided as if there were none, and None
    is returned where that matters already, since the quota has no room. A period is also returned where nothing is
    used: one that another start of the clock left behind then has its end.
    """
    earlier = known or {}
    charged: dict[ChargeName, bytes | None] = {}
    periods: dict[PeriodName, Period] = {}
    used: dict[PeriodName, int] = {}
    results = []
    for charge in charges:
        key, _, idempotency_key, fingerprint, _, _, inputs, _ = charge
        if idempotency_key is not None:
            name = key.id, idempotency_key
            if name in charged or name in earlier:
                first = charged[name] if name in charged else earlier[name]
                results.append(ChargeResult("repeated" if first == fingerprint else "conflict"))
                continue
        quota = key.quota
        result = _CHARGED
        if quota is not None:
            place = key.id, quota.seconds
            period = periods.get(place)
            if period is None:
                period = periods[place] = present_period(quota, last.get(place), now)
                used[place] = period.used
            count = used[place] + inputs
            if count <= quota.count:
                used[place] = count
                result = ChargeResult("charged", quota.count - count, period.ends - now.steady, count, period.ends)
            elif known is None and idempotency_key is not None:
                return None
            else:
                count -= inputs
                left = max(0, quota.count - count)
                results.append(ChargeResult("over_quota", left, period.ends - now.steady, count, period.ends))
                continue
        if idempotency_key is not None:
            charged[name] = fingerprint
        results.append(result)
    return results, {place: period._replace(used=used[place]) for place, period in periods.items()}


def with_rows(results: Iterable[ChargeResult], rows: Iterable[int]) -> list[ChargeResult]:
    """Return results in which each that was charged has the number of its row."""
    numbers = iter(rows)
    return [ChargeResult(*result[:-1], next(numbers)) if result.outcome == "charged" else result for result in results]
