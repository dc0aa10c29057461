"""The errors of the server: at its start, and as answers to requests."""

from l2h.errors import L2HError, SettingsError


class ServingError(L2HError, RuntimeError):
    """The server cannot start or go on: a port in use, a ledger it cannot read, a worker that will not live."""


class KeyStoreError(L2HError, ValueError):
    """Keys that cannot be read or written, or a key that is not among them."""


class LedgerError(ServingError):
    """A ledger that cannot be used: of a newer version, no ledger at all, or not writable."""


class StoreDownError(ServingError):
    """The store of the accounts cannot be read or written now; nothing was charged."""


class AllowanceError(SettingsError):
    """A quota or a rate that cannot be read."""


class RefusalError(Exception):
    """Raised to answer a request with an error."""

    def __init__(
        self,
        status: int,  # of HTTP
        sentence: str,  # what was wrong, with the value, and what to do
        reason: str,  # one word for the log and the metrics
        retry_after: float | None = None,  # seconds, for 429 and 503
        headers: tuple[tuple[bytes, bytes], ...] = (),  # more of them for the answer
    ) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.reason = status, sentence, reason
        self.retry_after, self.headers = retry_after, headers


class GoneError(Exception):
    """Raised when the peer hung up before it was answered: nobody is left to answer."""


def malformed(sentence: str) -> RefusalError:
    """Return a refusal with 400."""
    return RefusalError(400, sentence, "malformed")
