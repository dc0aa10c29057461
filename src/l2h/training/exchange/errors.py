"""The errors of the exchange."""

from l2h.errors import L2HError


class ExchangeError(L2HError, RuntimeError):
    """Raised when an exchange cannot be set up: a port in use, an empty token, a bad address."""


class SnapshotError(ExchangeError, ValueError):
    """Raised when a snapshot cannot be published, or its manifest or bytes are damaged."""


class IdentityError(ExchangeError, ValueError):
    """Raised when a publisher belongs to another training: its classes, input shape or data are not ours."""
