"""The bundle: what a device needs to answer and decide, and what a server needs to help.

A folder of ONNX files and a manifest that says what they are and how they hash. The device's half and the server's can
be copied to different hosts: each is loaded, and verified, without the other. Nothing is pickled, so that a bundle from
a stranger cannot run code. :func:`l2h.export.export_system` writes one.
"""

from l2h.bundle.halves import DeviceBundle, ServerBundle
from l2h.bundle.manifest import Manifest
from l2h.bundle.parts import BundleError, CalibrationPart, ClientPart, FilePart, InputPart, RejectorPart, ServerPart

__all__ = [
    "BundleError",
    "CalibrationPart",
    "ClientPart",
    "DeviceBundle",
    "FilePart",
    "InputPart",
    "Manifest",
    "RejectorPart",
    "ServerBundle",
    "ServerPart",
]
