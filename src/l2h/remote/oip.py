"""Asking a server of the Open Inference Protocol about batches, as training does; a device asks in ``l2h.edge``."""

import json
import logging
import os
import re
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any
from urllib.parse import quote, unquote
from uuid import uuid4

import httpx
import numpy.typing as npt

from l2h import protocol
from l2h.errors import L2HError, SettingsError, shown
from l2h.metadata import ExpectedModel, MetadataError, describe_status, is_loopback, retry_after, tensor_names

Array = npt.NDArray[Any]
log = logging.getLogger("l2h")
_ADDRESS = re.compile(r"(?P<base>https?://.+?)(/v2/models/(?P<model>[^/]+)(/versions/[^/]+)?(/infer)?)?/*")
#: Bytes that are read of an answer.
_LARGEST = 64 * 2**20
#: Where the key is, if none is given.
KEY_VARIABLE = "L2H_KEY"


class RemoteError(L2HError, RuntimeError):
    """A server that refuses, fails, or gives an answer that cannot be used."""

    def __init__(self, text: str, *, passing: bool = False, retry_in: float | None = None) -> None:
        super().__init__(text)
        self.passing = passing  # whether it may go well the next time
        self.retry_in = retry_in  # seconds that the server asks to wait


class OipCaller:
    """A function of a batch: it asks the model at an address for scores (n, K) or labels (n,).

    The address is ``http(s)://HOST[:PORT][/PATH]``, of a server with one model, or that of a model,
    ``.../v2/models/NAME``. Nothing is sent before the first call.
    """

    def __init__(self, address: str, key: str | None, timeout: float) -> None:
        found = _ADDRESS.fullmatch(address)
        try:
            url = httpx.URL(address)
        except httpx.InvalidURL as error:
            raise SettingsError(f"{address!r} is no address: {error}") from error
        if found is None or not url.host or url.query or url.fragment or url.userinfo:
            raise SettingsError(
                f"{address!r} is no server's address: write https://HOST or https://HOST/v2/models/NAME, without a "
                "question mark or a password"
            )
        self._base, self._model = found["base"], None if found["model"] is None else unquote(found["model"])
        self._key = key
        if key is not None and url.scheme == "http" and not is_loopback(url.host):
            log.warning("the key goes to %s unencrypted: use https where others can listen", address)
        headers = {"User-Agent": "l2h", "Accept-Encoding": "identity"} | (
            {} if key is None else {"Authorization": f"Bearer {key}"}
        )
        self._timeout = timeout
        self._socket: Any = None  # of the newest connection, which the next request goes over
        self._one_at_a_time = threading.Lock()  # so that no thread's time-out cuts the call of another
        self._http = httpx.Client(headers=headers, timeout=timeout, follow_redirects=False)
        self._names: tuple[str, str | None] | None = None
        self._binary = True
        #: The names of the classes, or only how many there are; compared with those of the server at the first call.
        self.classes: Sequence[str] | int = 0

    def __call__(self, X: Array) -> Array:
        """Return the model's scores or labels for a batch."""
        source, output = self._names or self._read_metadata(X)
        wanted = [] if output is None else [output]
        body, headers = protocol.encode_request([protocol.Tensor(source, X)], binary=self._binary, outputs=wanted)
        # The same batch has the same key whenever it is asked, so that a server of ours charges for it once.
        id = sha256(f"{self._base}\0{self._model}\0".encode() + body).hexdigest()
        path = f"{self._base}/v2/models/{quote(self._model or '', safe='')}/infer"
        status, replied, answer = self._request("POST", path, body, {**headers, "Idempotency-Key": id})
        if status == 422:  # its free repeats are used up
            status, replied, answer = self._request("POST", path, body, {**headers, "Idempotency-Key": uuid4().hex})
        if status != 200:
            raise _refusal(status, replied, answer)
        try:
            length = protocol.header_length(replied.get(protocol.LENGTH_HEADER))
            response = protocol.decode_response(answer, length)
        except protocol.WireError as error:
            raise RemoteError(f"its answer is none of the protocol: {error}", passing=True) from error
        data = next((tensor.data for tensor in response.outputs if output in (None, tensor.name)), None)
        if data is None:
            raise RemoteError(f"its answer has no output {output!r}")
        return data

    def _read_metadata(self, X: Array) -> tuple[str, str | None]:
        """Find the model, see that it takes such inputs, and return the names of its input and output."""
        model = self._model = self._model or self._only_model()
        metadata = self._read_json("GET", f"/v2/models/{quote(model, safe='')}", f"it has no model {model!r}")
        described = metadata if isinstance(metadata, dict) else {}
        outputs = [entry.get("name") for entry in described.get("outputs") or [] if isinstance(entry, dict)]
        expected = ExpectedModel("the data", model, X.shape[1:], protocol.datatype(X.dtype), self.classes)
        names = (None if described.get("inputs") else "x", "scores" if "scores" in outputs or not outputs else None)
        try:
            source, output = tensor_names(metadata, expected, *names)
        except MetadataError as error:
            raise RemoteError(f"{error}; or write a function that asks it") from error
        about = self._read_json("GET", "/v2", "it is no server of the Open Inference Protocol")
        self._binary = isinstance(about, dict) and "binary_tensor_data" in (about.get("extensions") or ())
        self._names = source, output if outputs else None  # MLServer says nothing of the tensors of some models
        return self._names

    def _only_model(self) -> str:
        hint = f"name the model: {self._base}/v2/models/NAME"
        listed = self._read_json("POST", "/v2/repository/index", f"it does not list its models; {hint}")
        names = [entry.get("name") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        if len(names) != 1 or not isinstance(names[0], str):
            raise RemoteError(f"it lists {len(names)} models ({shown(names)}): {hint}")
        return names[0]

    def _read_json(self, method: str, path: str, unless: str) -> Any:
        status, headers, body = self._request(method, self._base + path, b"" if method == "GET" else b"{}", {})
        if status != 200:
            refusal = _refusal(status, headers, body)
            raise refusal if refusal.passing or status in (401, 403) else RemoteError(f"{unless} ({refusal})")
        try:
            return json.loads(body)
        except ValueError as error:
            raise RemoteError(f"{unless} (no JSON: {error})") from error

    def _request(self, method: str, url: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any, bytes]:
        with self._one_at_a_time:
            return self._request_alone(method, url, body, headers)

    def _request_alone(self, method: str, url: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any, bytes]:
        text, late = bytearray(), threading.Event()

        def cut() -> None:  # the time-out of httpx is that of one read: a byte now and then would pass it for ever
            late.set()
            with suppress(OSError, AttributeError):  # it is closed, or not yet made
                self._socket.shutdown(socket.SHUT_RDWR)

        def note(event: str, info: dict[str, Any]) -> None:
            if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
                self._socket = info["return_value"].get_extra_info("socket")
                if late.is_set():
                    cut()

        timer = threading.Timer(self._timeout, cut)
        timer.daemon = True
        timer.start()
        try:
            with self._http.stream(method, url, content=body, headers=headers, extensions={"trace": note}) as answer:
                for piece in answer.iter_bytes():
                    text += piece
                    if len(text) > _LARGEST:
                        raise RemoteError(
                            f"its answer is longer than {_LARGEST} bytes: ask about fewer inputs at a time"
                        )
        except (httpx.TransportError, httpx.DecodingError) as error:
            if isinstance(error, httpx.ConnectError) and self._names is None:  # it never answered
                raise RemoteError(f"nobody answers there ({error}): check the address, and start the server") from error
            if not late.is_set():
                raise RemoteError(str(error) or type(error).__name__, passing=True) from error
        finally:
            timer.cancel()
        if late.is_set():
            raise RemoteError(f"no whole answer within {self._timeout:g} s", passing=True)
        if self._key is not None and answer.status_code != 200:
            text = text.replace(self._key.encode(), b"***")
        return answer.status_code, answer.headers, bytes(text)


def given_key() -> str | None:
    """Return the key in the environment, if there is one."""
    return os.environ.get(KEY_VARIABLE, "").strip() or None


def _refusal(status: int, headers: Any, body: bytes) -> RemoteError:
    text = describe_status(status, body)
    if status in (401, 403):
        text += f"; the key is that of l2h.RemoteServer(..., key=...), or the variable {KEY_VARIABLE}"
    return RemoteError(text, passing=may_pass(status), retry_in=retry_after(headers.get("Retry-After")))


def may_pass(status: int) -> bool:
    """Return whether a request that got this HTTP status may go well the next time."""
    return status in (408, 429) or status >= 500
