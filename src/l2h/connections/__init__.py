"""Connections within bounds: limited in number, in the size of headers, and in the wait for a slow peer or for TLS."""

from l2h.connections.bounded import BoundedProtocol, bounded
from l2h.connections.places import Places
from l2h.connections.tls import TlsHandshake

__all__ = ["BoundedProtocol", "Places", "TlsHandshake", "bounded"]
