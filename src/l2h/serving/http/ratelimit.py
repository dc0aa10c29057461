"""What a key may still use, as header fields: ``RateLimit`` and ``RateLimit-Policy``.

They follow draft-ietf-httpapi-ratelimit-headers-11. Both policies count inputs, for which the draft has no unit: a
parameter of ours says so.
"""

import math

from l2h.serving.accounts.key import Key, Quota, Rate

Header = tuple[bytes, bytes]
#: The fields of keys, by their ids, and how many are remembered.
_policies: dict[str, tuple[Key, Header]] = {}
_REMEMBERED = 4096
#: Seconds of the windows that a rate may be told in.
_WINDOWS = (1, 60, 3600, 86400, 604800)


def limit_fields(key: Key, left: int | None, seconds: float, spare: float | None) -> tuple[Header, ...]:
    """Return the fields of an answer to a key.

    ``left`` inputs of its quota may be used within ``seconds``; None where that is not known. ``spare`` is what
    :meth:`~l2h.serving.accounts.store.AccountStore.take_rate` returned; None where the rate was not asked.
    """
    items = []
    if key.quota is not None and left is not None:
        items.append(b'"quota";r=%d;t=%d' % (left, max(1, math.ceil(seconds))))
    if key.rate is not None and spare is not None:
        if spare > 0.0:
            items.append(b'"rate";r=0;t=%d' % max(1, math.ceil(spare)))
        else:
            items.append(b'"rate";r=%d' % max(0, math.floor(-spare * key.rate.per_second + 1e-6)))
    if not items:
        return ()
    known = _policies.get(key.id)
    if known is None or known[0] is not key:
        if len(_policies) >= _REMEMBERED:
            _policies.clear()
        known = _policies[key.id] = key, (b"ratelimit-policy", _policy(key.quota, key.rate))
    return known[1], (b"ratelimit", b", ".join(items))


def _policy(quota: Quota | None, rate: Rate | None) -> bytes:
    items = []
    if quota is not None:
        items.append(f'"quota";q={quota.count};w={quota.seconds};l2h-unit="inputs"')
    if rate is not None:
        per_second = rate.per_second + 1e-9  # a store keeps nine digits
        window = next((w for w in _WINDOWS if per_second * w >= 1), _WINDOWS[-1])
        count = max(1, math.floor(per_second * window))
        items.append(f'"rate";q={count};w={window};l2h-unit="inputs";l2h-burst={rate.burst}')
    return ", ".join(items).encode()
