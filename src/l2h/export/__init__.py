"""From a fitted system to a bundle: :func:`export_system` writes one, and compares every file with the original."""

from l2h.errors import ConversionError, ExportError
from l2h.export.classifiers import save_onnx
from l2h.export.system import export_system

__all__ = ["ConversionError", "ExportError", "export_system", "save_onnx"]
