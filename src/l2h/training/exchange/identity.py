"""The identity of a training, which must be the same on both sides, the token, and the names both sides use in HTTP."""

import json
from collections.abc import Mapping
from typing import Any

from l2h.errors import shown
from l2h.training.exchange.snapshot import JSON_LIMIT, ExchangeError, IdentityError

PROTOCOL = 1
PREFIX = "/l2h/v1"
#: On every answer to a request with the token: the digest of the publisher's identity. It changes with the publisher.
IDENTITY_HEADER = "l2h-identity"
#: On every JSON answer: the digest of its body, since a flipped digit in a version is valid JSON.
DIGEST_HEADER = "l2h-digest"
#: On a 304: the newest version there is.
LATEST_HEADER = "l2h-latest"

_REQUIRED = ("classes", "input_shape")
_ADDED_BY_PUBLISHER = ("protocol", "run", "kinds")


def plain_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity as it reads after JSON (tuples become lists); ExchangeError where that cannot be done."""
    missing = [name for name in _REQUIRED if name not in identity]
    if missing:
        raise ExchangeError(
            f"an identity without {' and '.join(missing)}: both sides must state classes and input_shape"
        )
    try:
        data = json.dumps(dict(identity), allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ExchangeError(f"an identity must hold plain values: {error}") from error
    if len(data) > JSON_LIMIT // 2:
        raise ExchangeError(f"an identity of {len(data)} bytes: state fingerprints, not the data")
    plain: dict[str, Any] = json.loads(data)
    return plain


def check_identity(ours: Mapping[str, Any], theirs: Mapping[str, Any], kind: str) -> None:
    """Raise IdentityError, naming the fields, where ours is not the publisher's; ``data`` matters for answers only."""
    if theirs.get("protocol") != PROTOCOL:
        raise IdentityError(f"protocol: ours {PROTOCOL}, theirs {_shown(theirs, 'protocol')}; update l2h on both sides")
    run, kinds = theirs.get("run"), theirs.get("kinds")
    if not isinstance(run, str) or not 0 < len(run) <= 64:
        raise IdentityError(f"run: theirs is {_shown(theirs, 'run')}, not the id of a store")
    if not isinstance(kinds, list) or kind not in kinds:
        raise IdentityError(f"kinds: ours '{kind}', theirs {_shown(theirs, 'kinds')}; ask for a kind that is published")
    compared = [name for name in ours if name not in _ADDED_BY_PUBLISHER and (name != "data" or kind == "answers")]
    differing = [
        f"{name}: ours {_shown(ours, name)}, theirs {_shown(theirs, name)}"
        for name in compared
        if name not in theirs or theirs[name] != ours[name]
    ]
    if differing:
        raise IdentityError(f"{'; '.join(differing)}; both sides must train for the same task")


def check_token(token: str) -> None:
    """Raise :class:`ExchangeError` where a token is empty or cannot be written into a header."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ExchangeError("the token must be printable ASCII without spaces, and not empty: `openssl rand -hex 16`")


def _shown(values: Mapping[str, Any], name: str) -> str:
    return shown(values[name], 200) if name in values else "none"
