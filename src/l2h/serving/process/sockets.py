"""The sockets of the workers, all at one port."""

import errno
import socket

from l2h.serving.errors import ServingError


def bind(host: str, port: int, count: int) -> list[socket.socket]:
    """Return sockets bound to the port, not yet listening, one per worker; the kernel shares connections among them.

    At first one is bound alone, so that somebody else's port is noticed even if its owner shares it.
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


def replaced(old: socket.socket) -> socket.socket:
    """Return another socket at the same address, which others may share, and close the one there is."""
    new = socket.socket(old.family, old.type, old.proto)
    try:
        new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for sock in (old, new):  # the one of a single worker was bound alone
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        new.bind(old.getsockname())
    except OSError:
        new.close()
        raise
    old.close()
    return new


def url_of(sock: socket.socket, tls: bool) -> str:
    """Return the address that a socket listens at."""
    host, port = sock.getsockname()[:2]
    return f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
