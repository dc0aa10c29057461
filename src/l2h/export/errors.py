"""The errors of this package."""

from l2h.errors import L2HError


class ExportError(L2HError, RuntimeError):
    """A system that cannot be exported, a file that differs from its original, or a folder that is taken."""


class ConversionError(ExportError):
    """A model that cannot be converted to ONNX."""
