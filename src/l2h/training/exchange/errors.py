"""The errors of the exchange."""

from __future__ import annotations

from l2h.errors import L2HError


class ExchangeError(L2HError, RuntimeError):
    """An exchange that cannot be set up: a port in use, an empty token, an address that is none."""


class SnapshotError(ExchangeError, ValueError):
    """A snapshot that cannot be published, or whose manifest or bytes are damaged."""


class IdentityError(ExchangeError, ValueError):
    """A peer of another training: its classes, its input shape or its data are not ours."""
