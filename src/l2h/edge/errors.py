"""Errors that the caller has to fix. What the network does is never raised: the device answers instead."""

from l2h.errors import L2HError, SettingsError


class EdgeError(L2HError, RuntimeError):
    """A server that does not fit the bundle, or a client that is closed or belongs to another process."""


class EdgeSettingsError(EdgeError, SettingsError):
    """An option of the edge client out of its range, or an invalid address."""
