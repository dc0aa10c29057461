"""Sockets at one port, one per worker. The kernel distributes the connections among them."""

import asyncio
import ctypes
import errno
import select
import socket
import ssl
import struct
import sys
from contextlib import suppress

from l2h.serving.errors import ServingError

#: Of Linux: a filter of packets for a socket, and its instruction "return", here with 0 bytes.
_ATTACH_FILTER, _RETURN = 26, 0x06


def bind(host: str, port: int, count: int) -> list[socket.socket]:
    """Return sockets bound to the port, not yet listening.

    At first one is bound alone, so that somebody else's port is noticed even if its owner shares it.

    Raises:
        ServingError: the port is in use, the address is not this machine's, or binding is not allowed.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ServingError(f"--host {host}: {error.strerror or error}") from error
    sockets: list[socket.socket] = []
    try:
        with socket.socket(family, kind, protocol) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
            address = alone.getsockname()
            if count == 1:
                sockets.append(alone.dup())
                return sockets
        for _ in range(count):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
    except OSError as error:
        for sock in sockets:
            sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ServingError(f"port {port} of {host} is in use: stop what uses it, or give another --port") from error
        raise ServingError(f"cannot listen at {host} port {port}: {error.strerror or error}") from error
    return sockets


async def close_listener(sock: socket.socket) -> None:
    """Take no more connections, and lose none that was made: the event loop accepts first those that wait.

    To close the descriptor would not be enough, since the supervisor holds the socket as well.
    """
    with suppress(OSError):
        if sys.platform == "linux":  # from here on the kernel answers no new connections
            nothing = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
            sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(nothing)))
        for _ in range(100):
            await asyncio.sleep(0.01)
            if not select.select([sock], [], [], 0)[0]:
                break
        sock.shutdown(socket.SHUT_RDWR)


def check_tls(cert: str | None, key: str | None) -> None:
    """Check that a certificate and its key can be used, before anything is started with them.

    Raises:
        ServingError: they cannot; the message says why.
    """
    if cert is None or key is None:
        return

    def ask() -> str:
        raise ServingError(f"--tls-key {key} is protected by a passphrase: give one without (openssl pkey -in ...)")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=ask)
    except (ssl.SSLError, OSError) as error:
        why = error.strerror or str(error)
        raise ServingError(
            f"--tls-cert {cert} and --tls-key {key} are no certificate and its key, in PEM: {why}"
        ) from error


def url(sock: socket.socket, tls: bool) -> str:
    """Return the address as a client writes it."""
    host, port = sock.getsockname()[:2]
    return f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
