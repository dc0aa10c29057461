"""What is attacked: a server that somebody started on this machine, or one of our own."""

from __future__ import annotations

import ipaddress
import json
import socket
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from serving_process import Client, Reply, Server, make_key
from waiting import STUCK

from l2h import protocol

URL, KEY = "L2H_HOSTILE_TARGET", "L2H_HOSTILE_KEY"


def loopback(url: str) -> tuple[str, int]:
    """The host and port of a server on this machine; ValueError for any other."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None or parts.port is None:
        raise ValueError(f"{url!r} is not the address of a server: write http://127.0.0.1:8080")
    found = {str(info[4][0]) for info in socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)}
    if not found or not all(ipaddress.ip_address(address).is_loopback for address in found):
        raise ValueError(f"{url} is not a loopback address: only a server on this machine is attacked")
    return parts.hostname, parts.port


class RunningTarget:
    """A server that runs already. Its model and its inputs are those that it states."""

    def __init__(self, url: str, key: str | None) -> None:
        self.host, self.port = loopback(url)
        self.url, self.key = url.rstrip("/"), key
        request = urllib.request.Request(f"{self.url}/v2/repository/index", b"{}", self.headers)
        with urllib.request.urlopen(request, timeout=STUCK) as answer:
            self.name = json.load(answer)[0]["name"]
        tensor = json.loads(self.get(f"/v2/models/{self.name}")[1])["inputs"][0]
        shape = [1 if size < 0 else size for size in tensor["shape"]]
        self.x = np.zeros(shape, protocol.numpy_type(tensor["datatype"]))

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    @property
    def path(self) -> str:
        return f"/v2/models/{self.name}/infer"

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            request = urllib.request.Request(self.url + path, headers=self.headers)
            with urllib.request.urlopen(request, timeout=STUCK) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def ask(self, **headers: str) -> Reply:
        """A good request over a new connection."""
        client = Client(self, self.key, self.name)
        try:
            return client.ask(self.x, **headers)
        finally:
            client.close()

    def connect(self, seconds: float = 10.0) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=seconds)


class OwnTarget(RunningTarget):
    """A server of our own, with two workers and a key."""

    def __init__(self, bundle: Path, folder: Path, **settings) -> None:
        keys, _, key = make_key(folder)
        self.server = Server(bundle, folder, **{"workers": 2, "keys": str(keys), **settings})
        super().__init__(self.server.url, key)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.server.kill()
