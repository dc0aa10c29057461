"""Whose request it is: the key in the ``Authorization`` header, compared in constant time."""

import hashlib
import hmac

from l2h.serving.accounts.key import ANONYMOUS, ID_LENGTH, PREFIX, Key
from l2h.serving.accounts.store import KeyStore
from l2h.serving.errors import RefusalError

_CHALLENGE = ((b"www-authenticate", b'Bearer realm="l2h"'),)
_START = f"bearer {PREFIX}_".encode()
_NO_HASH = "0" * 64


def authenticate(keys: KeyStore | None, authorization: bytes | None) -> Key:
    """Return the key of an ``Authorization`` header; :data:`ANONYMOUS` where no keys are asked for.

    Raises:
        RefusalError: 401 without a valid key, 403 with a revoked one.
    """
    if keys is None:
        return ANONYMOUS
    if authorization is None:
        raise _unauthorised("no key: send the header `Authorization: Bearer KEY`", "no_key")
    if authorization[: len(_START)].lower() != _START:
        raise _unauthorised(
            "the Authorization header holds no key of this server: it reads `Bearer l2h_...`", "bad_key"
        )
    key = keys.find(authorization[len(_START) : len(_START) + ID_LENGTH].decode("latin-1"))
    text = authorization[len("bearer ") :]
    expected = _NO_HASH if key is None else key.sha256
    if not hmac.compare_digest(hashlib.sha256(text).hexdigest(), expected) or key is None:
        raise _unauthorised("the key is not one of this server's", "bad_key")
    if not key.enabled:
        raise RefusalError(403, "the key was revoked", "revoked")
    return key


def _unauthorised(sentence: str, reason: str) -> RefusalError:
    return RefusalError(401, sentence, reason, headers=_CHALLENGE)
