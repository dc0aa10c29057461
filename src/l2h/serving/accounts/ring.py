"""The keys as a running server holds them: found by id, compared in constant time, read anew when the file changes."""

from __future__ import annotations

import hashlib
import hmac
import logging
from pathlib import Path

from l2h.serving.accounts.keys import PREFIX, Key, read_keys
from l2h.serving.errors import KeyFileError, RefusalError
from l2h.serving.process.watch import Signature, signature

log = logging.getLogger("l2h.serving")

#: To whom requests are charged where no keys are asked for.
ANONYMOUS = Key("anonymous", "anonymous", "", "")
_CHALLENGE = ((b"www-authenticate", b'Bearer realm="l2h"'),)
_START = f"bearer {PREFIX}_".encode()


class KeyRing:
    """Who is asking.

    Args:
        path: the key file; None lets everybody in as :data:`ANONYMOUS`.

    Raises:
        KeyFileError: the file cannot be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: Signature | None = None
        self._keys: dict[bytes, tuple[Key, bytes]] = {}
        if path is not None:
            self._seen = signature(path)
            self._take(read_keys(path))

    def __len__(self) -> int:
        return sum(key.enabled for key, _ in self._keys.values())

    def find(self, authorization: bytes | None) -> Key:
        """The key of an ``Authorization`` header.

        Raises:
            RefusalError: 401 without a valid key, 403 with a revoked one.
        """
        if self._path is None:
            return ANONYMOUS
        if authorization is None:
            raise _unauthorised("no key: send the header `Authorization: Bearer KEY`", "no_key")
        if authorization[: len(_START)].lower() != _START:
            raise _unauthorised(
                "the Authorization header holds no key of this server: it reads `Bearer l2h_...`", "bad_key"
            )
        text = authorization[7:]
        key, hashed = self._keys.get(text[len(PREFIX) + 1 : len(PREFIX) + 13], _NOBODY)
        if not hmac.compare_digest(hashlib.sha256(text).digest(), hashed) or key is None:
            raise _unauthorised("the key is not one of this server's", "bad_key")
        if not key.enabled:
            raise RefusalError(403, "the key was revoked", "revoked")
        return key

    def refresh(self) -> bool:
        """Read the file again if it changed; whether new keys were taken over. A broken file changes nothing."""
        if self._path is None:
            return False
        now = signature(self._path)
        if now == self._seen:
            return False
        self._seen = now
        try:
            self._take(read_keys(self._path))
        except KeyFileError as error:
            log.error("keys_refused", extra={"fields": {"file": str(self._path), "error": str(error)}})
            return False
        log.info("keys_reloaded", extra={"fields": {"file": str(self._path), "keys": len(self)}})
        return True

    def _take(self, keys: list[Key]) -> None:
        self._keys = {key.id.encode(): (key, bytes.fromhex(key.sha256)) for key in keys}


_NOBODY: tuple[None, bytes] = (None, bytes(32))


def _unauthorised(sentence: str, reason: str) -> RefusalError:
    return RefusalError(401, sentence, reason, headers=_CHALLENGE)
