"""``RemoteServer``: a server that is asked, not trained, whose answers may cost money."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from l2h.classifiers import CallableClassifier, Classifier, ClassifierAnswers
from l2h.classifiers.base import Array, Inputs
from l2h.columns import EncodedTable
from l2h.errors import ClientError, L2HError, SettingsError
from l2h.functions import function_name, has_own_name, is_function, load_function
from l2h.labels import LabelCodec
from l2h.metadata import retry_after
from l2h.remote.cache import AnswerCache, Output
from l2h.remote.oip import OipCaller, RemoteError, may_pass
from l2h.rows import Rows

log = logging.getLogger("l2h")
#: What stands before the name of a classifier of scikit-learn's own, which is trained.
SKLEARN = "sklearn:"
#: Seconds before the first repeat of a call, tripled for every further one up to the second number.
_PAUSE, _LONGEST_PAUSE = 0.2, 60.0
#: Seconds that are waited where the server says how long; if it says more, it is not asked again.
_LONGEST_WAIT = 7200.0
#: What a function raises because of the network: a repeat may help.
_NETWORK = (OSError, HTTPException, httpx.TransportError)


def is_remote(server: Any) -> bool:
    """Return whether a text is an address, or names a function: what :class:`RemoteServer` takes."""
    if not isinstance(server, str) or server.startswith(SKLEARN):
        return False
    return _is_address(server) or is_function(server)


class RemoteServer(Classifier):
    """Somebody's API, or any function, as the server: asked in batches, about each input once, never trained.

    Every answer is kept by the bytes of its input and the version. With a folder the answers of a call are on the disk
    before the next call is made: whatever fails, nothing that was answered is asked again. Without one they are kept in
    memory until the system is saved or fitted with a run folder, which then holds them.

    A call is repeated after at most 0.2, 0.6, 1.8, ... seconds, or when the server says, where the network failed, time
    ran out, or the status was 408, 429 or 5xx. A function marks another failure that will pass by an exception with
    ``passing`` True, and seconds to wait as its ``retry_in``. Nothing else is repeated, nor is an answer that cannot be
    used, nor an address at which nobody ever answered.

    Args:
        target: a function of a batch (n, ...), or of a pandas DataFrame where the inputs are a table, that returns
            scores (n, K) or labels (n,); the address of a server of the Open Inference Protocol (``https://HOST``, or
            ``https://HOST/v2/models/NAME`` where it has several models); or a text ``module:function`` or
            ``file.py:function``.
        version: your word for the version of the API. Change it when its answers change: those kept under another
            version are not used. A lambda, a ``functools.partial``, a method, an object, or a function inside another
            needs one with ``cache``: their names do not tell them apart.
        batch: inputs per call.
        cache: a folder for the answers.
        retries: how often a call is repeated.
        key: sent to an address as ``Authorization: Bearer KEY``; never stored or shown.
        timeout: seconds for one call of an address.

    Attributes:
        calls: how many calls were answered through this object.
        paid: how many inputs these calls had.
        progress: called with how many of how many inputs are asked; None for nobody.

    Raises:
        SettingsError: a target or an option that cannot be used.

    Example:
        >>> asked = []
        >>> def api(X):
        ...     asked.append(len(X))
        ...     return X.argmax(axis=1)
        >>> server = RemoteServer(api, batch=2)
        >>> X = np.eye(3, dtype=np.float32)[[0, 1, 2, 2, 0]]
        >>> server.answers(X, 3).label.tolist(), server.answers(X[::-1], 3).label.tolist(), asked
        ([0, 1, 2, 2, 0], [0, 2, 2, 1, 0], [2, 1])
    """

    kind = who = "remote server"

    def __init__(
        self,
        target: Callable[[Array], Any] | str,
        *,
        version: str = "",
        batch: int = 64,
        cache: str | Path | None = None,
        retries: int = 5,
        key: str | None = None,
        timeout: float = 60.0,
    ) -> None:
        super().__init__()
        for name, value, least in (("batch", batch, 1), ("retries", retries, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SettingsError(f"{name}={value!r} must be a whole number of {least} or more")
        if not isinstance(version, str):
            raise SettingsError(f"version={version!r} must be text")
        self.version, self.batch, self.retries = version, batch, retries
        self.cache = AnswerCache(cache)
        self.calls = self.paid = 0
        self.progress: Callable[[int, int], None] | None = None
        self.class_names: Sequence[str] | None = None
        self._num_classes = 0
        self._told = False  # whether the log has a line about what was asked
        self.is_vague = False  # whether other functions may have its name, and it has no version
        self._ask: Callable[[Array], Any]
        if isinstance(target, str):
            if not is_remote(target):
                raise SettingsError(f"server={target!r} is neither an address (https://HOST) nor module:function")
            self.target = target
            self._ask = OipCaller(target, key, timeout) if _is_address(target) else load_function(target)
        elif callable(target):
            self.target = target.name if isinstance(target, _NotGiven) else function_name(target)
            self._ask = target
            self.is_vague = not version and not isinstance(target, _NotGiven) and not has_own_name(target)
            if self.is_vague and cache is not None:
                raise SettingsError(
                    f"the answers of {self.target} cannot be kept in cache={str(cache)!r}: others may have this name; "
                    "give version=, or a function of a module"
                )
        else:
            raise SettingsError(f"server={target!r} cannot be asked: give a function or an address")

    def with_labels(self, labels: LabelCodec) -> RemoteServer:
        """Take these classes, and return the server itself, which counts what it was asked."""
        self.labels = None if labels.values is None else labels
        if self.labels is not None:
            self.class_names = labels.names
        return self

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, without the key; :meth:`from_dict` makes a server of them."""
        calls, inputs = self.cache.counts()
        values = {"target": self.target, "version": self.version, "batch": self.batch, "retries": self.retries}
        return values | {"probabilities": self.probabilities, "calls": calls, "inputs": inputs}

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], cache: Path, given: Any = None, key: str | None = None
    ) -> RemoteServer:
        """Return the server that :meth:`as_dict` described, with its answers; nobody is asked and no code is run.

        Inputs that were not asked before go to ``given``, a target, or else to the address. A function is not run
        unless it is given, since a file could name any.
        """
        target = str(values["target"])
        options = {name: values[name] for name in ("version", "batch", "retries")}
        if given is None:
            given = target if _is_address(target) else _NotGiven(target)
        out = cls(given, key=key, **options)
        out.cache, out.is_vague = AnswerCache(cache), False
        out.target, out.probabilities = target, values["probabilities"]
        return out

    def answers(self, X: Inputs | Rows, num_classes: int, batch: int = 4096) -> ClassifierAnswers:
        """Return the answers to every input, asking for those that are not kept; see the class."""
        self._num_classes = num_classes
        # All at once: what its output means is seen on all. Rows that are stored are read a call at a time.
        return self.read(self.raw(self.prepared(X))[0], len(X), num_classes)

    def from_table(self, X: EncodedTable) -> Any:
        """Return the rows themselves, which a function gets as a data frame; for an address, their numbers."""
        return X.x if isinstance(self._ask, OipCaller) else X

    def raw(self, X: Inputs | Rows) -> tuple[Array, Array | None]:
        keys = self._keys(X)
        known = self.cache.read(keys)
        rows = {key: row for row, key in reversed(list(enumerate(keys))) if key not in known}
        wanted = sorted(rows.values())
        if self.is_vague and known and not self._told and self.cache.folder is not None:
            log.warning(
                "%s: %d answers of a function of this name are taken from %s; give version= if it was another one",
                *(self.target, len(known), self.cache.place),
            )
        if wanted:
            self._complete(X, keys, known, wanted)
            calls, inputs = self.cache.counts()
            log.info(
                "%s: %d of %d inputs asked now, the rest kept from before; in all %d inputs in %d calls so far (%s)",
                *(self.target, len(wanted), len(X), inputs, calls, self.cache.place),
            )
        elif not self._told:
            log.info("%s: nothing is asked: all %d inputs are in %s", self.target, len(X), self.cache.place)
        self._told = True
        return _one_array([known[key] for key in keys]), None

    def weights(self) -> list[bytes]:
        """Return the name and the version: what the server holds cannot be seen."""
        return [self.target.encode(), self.version.encode()]

    def _complete(self, X: Inputs | Rows, keys: list[bytes], known: dict[bytes, Output], wanted: list[int]) -> None:
        """Ask about rows of X, a batch at a time, and keep the answers of each call."""
        if isinstance(self._ask, OipCaller):
            self._ask.classes = self.class_names or self._num_classes
        if known:
            self._check([*known.values()], f"{self.target}: give it another version=, what is kept is of no use: ")
        for start in range(0, len(wanted), self.batch):
            part = wanted[start : start + self.batch]
            try:
                outputs = self._call(X[part], part)
                self._check([*outputs, *islice(known.values(), 1)])
            except RemoteError as error:
                if isinstance(self._ask, _NotGiven):
                    raise RemoteError(f"{self.target}: {error}") from error
                kept = f"{start} of {len(wanted)} inputs are answered and kept in {self.cache.place}"
                raise RemoteError(f"{self.target}: {error}. {kept}; the same again asks for the rest") from error
            new = {keys[row]: output for row, output in zip(part, outputs, strict=True)}
            self.cache.add(new, self.target, self.version)
            known.update(new)
            self.calls += 1
            self.paid += len(part)
            if self.progress is not None:
                self.progress(start + len(part), len(wanted))

    def _call(self, X: Inputs, rows: list[int]) -> list[Output]:
        """Return the answers of one call, which is repeated where that may help."""
        pause, given = _PAUSE, X.table.to_frame() if isinstance(X, EncodedTable) else X
        for left in range(self.retries, -1, -1):
            try:
                return self._checked(CallableClassifier(self._ask).raw(given)[0], rows)
            except Exception as error:  # whatever the user's function raises
                if not _may_pass(error):
                    if isinstance(error, L2HError):
                        raise
                    raise RemoteError(
                        f"it fails on inputs of shape {X.shape}: {type(error).__name__}: {error}"
                    ) from error
                why = str(error) if isinstance(error, RemoteError) else f"{type(error).__name__}: {error}"
                headers: Any = getattr(_response(error), "headers", None)
                said = headers.get("Retry-After") if hasattr(headers, "get") else None
                wait = getattr(error, "retry_in", retry_after(said))
                if wait is not None and wait > _LONGEST_WAIT:
                    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() + wait))
                    raise RemoteError(f"it is to be asked again at {when} UTC, in {wait:.0f} s ({why})") from error
                if not left:
                    raise RemoteError(f"no answer after {self.retries} repeats ({why})") from error
            seconds = min(_LONGEST_PAUSE, random.uniform(pause / 2, pause)) if wait is None else max(wait, 0.1)
            repeat = f"repeat {self.retries - left + 1} of {self.retries}"
            log.warning("%s: %s; asked again in %.1f s (%s)", self.target, why, seconds, repeat)
            time.sleep(seconds)
            pause *= 3
        raise AssertionError

    def _checked(self, output: Array, rows: list[int]) -> list[Output]:
        """Return one answer per input; refuse what cannot be used before more of it is paid for."""
        n, classes = len(rows), self._num_classes
        if output.shape == (n, 1):
            output = output[:, 0]
        if output.shape == (n,) and output.dtype.kind in "iubU":
            return [value if isinstance(value, str) else int(value) for value in output.tolist()]
        if output.ndim not in (1, 2) or len(output) != n or output.dtype.kind not in "fiub":
            raise RemoteError(
                f"it gives {output.dtype} {output.shape} for {n} inputs: expected ({n}, {classes}) or ({n},)"
            )
        if output.ndim == 2 and classes and output.shape[1] not in (1, classes):
            raise RemoteError(f"it gives {output.shape[1]} scores per input, the labels have {classes} classes")
        bad = ~np.isfinite(output.reshape(n, -1)).all(axis=1)
        if bad.any():
            raise RemoteError(f"its answer to input {rows[int(np.argmax(bad))]} is not finite")
        return list(output.astype(np.float64))

    def _check(self, outputs: list[Output], prefix: str = "") -> None:
        """Refuse answers that cannot be read, before they are kept and more are paid for."""
        before = self.probabilities
        try:
            self.read(_one_array(outputs), len(outputs), self._num_classes)
        except ClientError as error:
            raise RemoteError(f"{prefix}{error}") from error
        finally:
            if np.shape(outputs[0]):  # whether these are probabilities is seen on all inputs at the end
                self.probabilities = before

    def _keys(self, X: Inputs | Rows) -> list[bytes]:
        """Return the hash of each input: of its bytes, or of the values in a row of a table."""
        what = str(X.table.names) if isinstance(X, EncodedTable) else f"{X.dtype}\0{X.shape[1:]}"
        head = "\0".join([self.target, self.version, what, ""]).encode()
        if isinstance(X, EncodedTable):
            columns = map(_plain, X.table.columns.values())
            inputs = (json.dumps(row).encode() for row in zip(*columns, strict=True))
        else:
            inputs = (np.ascontiguousarray(X[row]).tobytes() for row in range(len(X)))
        return [hashlib.sha256(head + data).digest() for data in inputs]


class _NotGiven:
    """Stands for a function of which only the name is known."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, X: Array) -> Any:
        raise RemoteError(
            "it was never asked about these inputs, and a run folder does not run functions: give it again, with "
            f"--server {self.name}, of several servers --server NAME={self.name}; in Python with "
            "l2h.load(folder, servers={'NAME': ...}) or l2h.load(folder, server=...)"
        )


def _one_array(outputs: list[Output]) -> Array:
    if len({np.shape(output) for output in outputs}) > 1:
        raise RemoteError(
            "the remote server gave scores for some inputs and labels for others: give it another version="
        )
    return np.array(outputs)


def _plain(values: Array) -> list[Any]:
    """Return the values of a column, every number as a float that is no other number's."""
    exact: list[Any] = values.tolist()
    if values.dtype == object:
        return exact
    floats = values.astype(float).tolist()
    if values.dtype.kind in "iu":
        return [x if abs(n) <= 2**53 else n for n, x in zip(exact, floats, strict=True)]
    return list(floats)


def _response(error: BaseException) -> Any:
    """Return what has the status and the headers that an error of an HTTP library is about."""
    response = getattr(error, "response", None)
    return error if response is None else response


def _may_pass(error: BaseException | None) -> bool:
    """Return whether a call may go well the next time, after what it raised, or what that came from."""
    if error is None:
        return False
    status = getattr(_response(error), "status_code", getattr(error, "code", None))
    if isinstance(status, int):
        return may_pass(status)
    passing = getattr(error, "passing", None)
    return isinstance(error, _NETWORK) or _may_pass(error.__cause__) if passing is None else bool(passing)


def _is_address(text: str) -> bool:
    return re.match(r"https?://", text) is not None
