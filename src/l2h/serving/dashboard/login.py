"""Who may see the dashboard: who has logged in with an admin key, or where there are no keys, this machine alone.

A session is a signed cookie, which any worker can check; the secret of the signatures is made at the server's start.
Keys have 256 random bits, so there is nothing to guess: the bound on tries spares the server and its log. It counts
wrong keys by address, over all workers, and never keeps out the owner of a right one.
"""

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from l2h.connections.places import network_of
from l2h.metadata import is_loopback
from l2h.serving.accounts import open_keys
from l2h.serving.accounts.key import Key, Rate
from l2h.serving.accounts.rates import RateTable, make_memory, make_table
from l2h.serving.accounts.store import KeyStore
from l2h.serving.errors import KeyStoreError, RefusalError
from l2h.serving.http.exchange import Header, authenticate
from l2h.serving.process.config import ServingConfig
from l2h.serving.process.logs import log_event

#: Wrong keys from one address.
TRIES = Rate(0.5, 10)
#: Seconds that a login lasts.
_LIFE = 86400
_SECRET = 32
_FORWARDED = (b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip")


def prepare_logins(config: ServingConfig) -> tuple[int, ...]:
    """Return the file descriptors that the workers must inherit for :class:`Logins`; none without a dashboard."""
    if not config.dashboard:
        return ()
    file = config.admin_key_file or config.key_place
    if file is not None and not any(key.enabled and key.admin for key in open_keys(file, config.outage_reserve).read()):
        where = f"{file} has" if file != config.accounts else "the database has"
        option = f"--file {file}" if file != config.accounts else "--accounts URL"
        raise KeyStoreError(
            f"{where} no key that may log in to the dashboard: `l2h keys add NAME --admin {option}` makes one"
        )
    secret = make_memory(_SECRET)
    os.pwrite(secret, secrets.token_bytes(_SECRET), 0)
    return make_table(), secret


class Logins:
    """Lets people in. ``inherited`` are the descriptors of :func:`prepare_logins`, ``keys`` those of the server."""

    def __init__(self, config: ServingConfig, keys: KeyStore | None, inherited: Sequence[int]) -> None:
        tries, secret = inherited
        self._tries, self._secret = RateTable(tries), os.pread(secret, _SECRET, 0)
        self._tls = config.tls_cert is not None
        self._own = None if config.admin_key_file is None else open_keys(Path(config.admin_key_file))
        self.keys = self._own or keys
        # Cookies of several servers on one host differ by name, since a browser does not tell them apart by port.
        self._name = "l2h-" + self._sign("name")[:8]

    def refresh(self) -> None:
        """Follow changes of a key file of its own; may block."""
        try:
            if self._own is not None:
                self._own.refresh()
        except KeyStoreError as error:
            log_event("error", "keys_refused", error=str(error))

    def find(self, headers: Mapping[bytes, bytes], peer: str) -> Key | None:
        """Return the key that a request has logged in with; None where it has to log in first.

        Where there are no keys, everybody on this machine is let in, with a key without a name; a RefusalError refuses
        others. Programs may send an ``Authorization`` header in the place of the cookie.
        """
        if self.keys is None:
            _require_local(headers, peer)
            return authenticate(None, None)
        if b"authorization" in headers:
            return self._admin(headers[b"authorization"])
        for part in headers.get(b"cookie", b"").decode("latin-1").split(";"):
            name, _, value = part.strip().partition("=")
            key = self._check(value) if name in (self._name, f"__Host-{self._name}") else None
            if key is not None:
                return key
        return None

    def enter(self, text: str, headers: Mapping[bytes, bytes], peer: str) -> Header:
        """Return the cookie for whoever sends a key by the form; a RefusalError where it is none that may log in."""
        require_same_origin(headers)
        try:
            key = self._admin(b"Bearer " + text.strip().encode())
        except RefusalError as refusal:
            wait = self._tries.take(hashlib.sha256(network_of(peer).encode()).hexdigest(), TRIES, 1)
            if wait > 0.0:
                sentence = "too many wrong keys from this address: try again in a moment"
                raise RefusalError(429, sentence, "rate", wait) from None
            log_event("warning", "login_refused", address=peer, reason=refusal.reason)
            sentence = "the key is not one of this server's" if refusal.status == 401 else refusal.sentence
            raise RefusalError(refusal.status, sentence, refusal.reason) from None
        log_event("info", "login", address=peer, key=key.id, key_name=key.name)
        expires = int(time.time()) + _LIFE
        return self._cookie(f"{expires}.{key.id}.{self._sign(str(expires), key.id, key.sha256)}", _LIFE, headers)

    def leave(self, headers: Mapping[bytes, bytes]) -> Header:
        """Return a cookie that ends the session."""
        require_same_origin(headers)
        return self._cookie("", 0, headers)

    def _admin(self, authorization: bytes) -> Key:
        key = authenticate(self.keys, authorization)
        if not key.admin:
            raise RefusalError(403, "the dashboard needs a key made with `l2h keys add NAME --admin`", "no_admin")
        return key

    def _check(self, token: str) -> Key | None:
        """The key of a session that lasts and whose key may still log in."""
        expires, _, rest = token.partition(".")
        key_id, _, signature = rest.partition(".")
        key = None if self.keys is None else self.keys.find(key_id)
        expected = self._sign(expires, key_id, key.sha256 if key else "")
        good = hmac.compare_digest(expected.encode(), signature.encode())
        if not good or key is None or not key.enabled or not key.admin or int(expires) < time.time():
            return None
        return key

    def _sign(self, *parts: str) -> str:
        return hmac.new(self._secret, "\n".join(parts).encode(), hashlib.sha256).hexdigest()

    def _cookie(self, value: str, seconds: int, headers: Mapping[bytes, bytes]) -> Header:
        secure = self._tls or headers.get(b"x-forwarded-proto") == b"https"
        name = f"__Host-{self._name}" if secure else self._name
        options = f"Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{'; Secure' * secure}"
        return b"set-cookie", f"{name}={value}; {options}".encode()


def require_same_origin(headers: Mapping[bytes, bytes]) -> None:
    """Refuse what a page of another site has a browser send."""
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is not None:
        good = site in (b"same-origin", b"none")
    else:
        good = origin is None or origin.partition(b"://")[2] == headers.get(b"host")
    if not good:
        raise RefusalError(403, "the form was sent by a page of another site", "other_site")


def _require_local(headers: Mapping[bytes, bytes], peer: str) -> None:
    """Refuse other machines: also those behind a proxy here, and names of others that lead here."""
    host = re.sub(r":\d+$", "", headers.get(b"host", b"").decode("latin-1"))
    if not is_loopback(peer) or not is_loopback(host) or any(name in headers for name in _FORWARDED):
        sentence = "without keys the dashboard answers its own machine alone: --admin-key-file FILE lets others log in"
        raise RefusalError(403, sentence, "not_local")
