"""The bundle: what a device needs to answer and decide, and what a server needs to help.

A folder of ONNX files and a manifest that says what they are and how they hash. The device's half and the server's can
be copied to different hosts: each is loaded, and verified, without the other. Nothing is pickled, so that a bundle from
a stranger cannot run code. :func:`l2h.export.export_system` writes one.
"""

from l2h.bundle.device import DeviceBundle
from l2h.bundle.errors import BundleError
from l2h.bundle.manifest import (
    CalibrationPart,
    ClientPart,
    FilePart,
    InputPart,
    Manifest,
    RejectorPart,
    ServerPart,
)
from l2h.bundle.server import ServerBundle
from l2h.bundle.verifying import verify

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
    "verify",
]
