"""The error of this package."""

from l2h.errors import L2HError


class BundleError(L2HError, ValueError):
    """A bundle that is missing, damaged, of a newer version or lacks a part; or inputs that do not fit it."""
