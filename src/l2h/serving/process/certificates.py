"""The certificate of HTTPS, read again when its files change; open connections go on with the one they have."""

import ssl
from pathlib import Path

from l2h.serving.errors import ServingError
from l2h.serving.process.watch import signature


class Certificates:
    """The certificate and key of two files, in PEM; a ServingError where they are none, or do not fit each other."""

    def __init__(self, cert: str, key: str) -> None:
        self._cert, self._key = cert, key
        self._seen = self._signatures()
        self._context = self._load()

    def current(self) -> ssl.SSLContext:
        """Return what a connection begins TLS with now."""
        return self._context

    def refresh(self) -> bool:
        """Read the files again if they changed since the last call, and return whether; one that cannot be used raises.

        The one before then stays in use, and the next call raises again only after another change.
        """
        now = self._signatures()
        if now == self._seen:
            return False
        self._seen = now
        self._context = self._load()
        return True

    def _signatures(self) -> list[object]:
        return [signature(Path(file)) for file in (self._cert, self._key)]

    def _load(self) -> ssl.SSLContext:
        def ask() -> str:
            raise ServingError(
                f"--tls-key {self._key} is protected by a passphrase: give one without (openssl pkey -in ...)"
            )

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self._cert, self._key, password=ask)
        except (ssl.SSLError, OSError) as error:
            why = error.strerror or str(error)
            raise ServingError(
                f"--tls-cert {self._cert} and --tls-key {self._key} are no certificate and its key, in PEM: {why}"
            ) from error
        return context


def open_certificates(cert: str | None, key: str | None) -> Certificates | None:
    """Return the certificate of the settings; None for HTTP."""
    return None if cert is None or key is None else Certificates(cert, key)
