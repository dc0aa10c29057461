"""``EdgeClient``: the device's side, for callers that wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import CancelledError, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy.typing as npt

from l2h.answers import Answers
from l2h.bundle import DeviceBundle
from l2h.costs import Costs
from l2h.decision import Judgement
from l2h.edge.core import Call, Core
from l2h.edge.errors import EdgeError
from l2h.edge.stats import EdgeStats
from l2h.limits import Limiter, RateLimit


class EdgeClient:
    """Answers on the device, and asks the server where it pays: always an answer, within the deadline.

    **Whatever the server does, the answer comes.** Where no good answer of the server is there in time, the device's
    own is given, with the reason; :mod:`l2h.edge.reasons` lists them. ``predict`` raises for inputs that do not fit the
    bundle (:class:`l2h.bundle.BundleError`), for prices that the rejector does not know, and on a closed client, and
    for nothing else. The deadline is for the whole call; what the device itself needs is not cut short, and the server
    gets what is left.

    **A request is safe to repeat.** It carries an ``Idempotency-Key``, the same in every repeat, so that a server that
    keeps them neither answers nor charges twice. Repeated are requests that found no connection or lost it, and those
    that a busy server (429, 503) asks to repeat within the deadline.

    **A server that fails is left alone.** After ``failures`` failures in a row (no connection, no answer in time, a
    5xx, an answer that is none) it is not asked for ``rest`` seconds; then one request tries it, while all others are
    answered locally. A request that was not sent says nothing of the server, nor does a time-out where it had less
    than half of the client's deadline, or 0.25 seconds.

    Any number of threads may call one client. It does not outlive a fork: in the child every call raises
    :class:`EdgeError`; make the client after the fork.

    Args:
        bundle: the folder of an exported system, or a loaded one.
        server: ``http://HOST:PORT`` or ``https://HOST``, with or without a path before ``/v2``; None: never asked.
            It is not contacted before the first request.
        deadline: seconds for a whole ``predict``.
        costs: the prices; those that the bundle was made for where None. Under a limit and without prices asking is
            free, and the limit is used up.
        limit: a bound on asking. A share is met by a threshold from the bundle's calibration samples; a share of a
            window, or a number in a time, by a :class:`l2h.Limiter` (give one of your own for permits that outlive
            the process; with ``min_score``, or it may spend permits on what does not pay). A permit counts from the
            moment it is given: one whose request brought no answer stays spent.
        key: sent as ``Authorization: Bearer KEY``. Never logged nor shown.
        client: stands in for the client's graph where the bundle has none.
        binary: send tensors as bytes; False for servers that know JSON alone.
        retries: at most so many repeats of a request, beside those on connections that the server closed while idle.
        max_batch: at most so many inputs a request; more of one call travel in requests side by side.
        failures: in a row after which the server is left alone.
        rest: for so many seconds.
        model: its name on the wire; the bundle's where None.
        input_name: of the model's input, for servers of others; None: read from the server's metadata.
        output_name: of its scores (n, K), or of labels (n,); None likewise.
        connections: at most so many requests at a time.
        verify_tls: True, or the path of the certificates to trust in the place of the system's.

    Raises:
        EdgeSettingsError: an option out of its range, an address that is none.
        BundleError: the bundle is damaged, or has no calibration samples for the limit.

    Example:
        >>> edge = EdgeClient("bundle/", server="http://host:8080", deadline=0.2)  # doctest: +SKIP
        >>> edge.predict(x)[0]  # doctest: +SKIP
        Answer(label=8, source='remote', reason='worth_asking', cost=0.1, latency=0.0093)
    """

    def __init__(
        self,
        bundle: str | Path | DeviceBundle,
        server: str | None = None,
        *,
        deadline: float = 0.2,
        costs: Costs | None = None,
        limit: RateLimit | Limiter | None = None,
        key: str | None = None,
        client: Callable[..., Any] | None = None,
        binary: bool = True,
        retries: int = 1,
        max_batch: int = 64,
        failures: int = 5,
        rest: float = 5.0,
        model: str | None = None,
        input_name: str | None = "x",
        output_name: str | None = "scores",
        connections: int = 16,
        verify_tls: bool | str | Path = True,
    ) -> None:
        self._core = Core(
            bundle,
            server,
            deadline=deadline,
            costs=costs,
            limit=limit,
            key=key,
            client=client,
            binary=binary,
            retries=retries,
            max_batch=max_batch,
            failures=failures,
            rest=rest,
            model=model,
            input_name=input_name,
            output_name=output_name,
            connections=connections,
            verify_tls=verify_tls,
        )

    @property
    def bundle(self) -> DeviceBundle:
        """The device's half of the system."""
        return self._core.bundle

    @property
    def costs(self) -> Costs:
        """The prices in use; may be set at any time, None for those of the beginning.

        Raises:
            L2HError: the rejector was trained for other prices and knows no others.
        """
        return self._core.prices.costs

    @costs.setter
    def costs(self, costs: Costs | None) -> None:
        self._core.set_prices(costs)

    @property
    def classes_compared(self) -> bool:
        """Whether the server gave names of classes when :meth:`check` last compared it with the bundle."""
        return self._core.classes_compared

    @property
    def server_versions(self) -> list[str]:
        """The versions of its model that the server named when :meth:`check` last looked; none before."""
        return self._core.server_versions

    def predict(self, X: npt.ArrayLike, costs: Costs | None = None, deadline: float | None = None) -> Answers:
        """Answer every input, asking the server where it pays.

        Args:
            X: one input or many, (n, ...), of the bundle's shape and type.
            costs: prices of this call; the client's where None.
            deadline: seconds of this call; the client's where None.

        Returns:
            The answers; ``latency`` is that of the whole call.

        Raises:
            BundleError: inputs of another shape or type.
            EdgeError: the client is closed, or was made before a fork.
        """
        core = self._core
        draft = core.begin(X, costs, deadline, Call())
        if isinstance(draft, Answers):
            return draft
        try:
            wait([part.future for part in draft.parts], timeout=max(0.0, draft.at - time.monotonic()))
        except BaseException:
            draft.give_up()
            raise
        return core.finish(draft)

    def judge(self, X: npt.ArrayLike, costs: Costs | None = None) -> Judgement:
        """What the rejector thinks of every input, without asking anyone."""
        return self._core.judge(X, costs)

    def check(self, timeout: float = 5.0) -> None:
        """See that the server can be reached, is ready, takes the key, and has a model for this bundle.

        Compared are the model's name, shapes, type and number of classes, and their names where the server gives them.
        Its version may be another than the bundle's: :attr:`server_versions`. Nothing is charged.

        Raises:
            EdgeError: it is not so; the message says what differs.
        """
        future = self._core.start_check(timeout)
        try:
            future.result(timeout + 0.5)
        except (TimeoutError, CancelledError):
            raise EdgeError(f"{self._core.options.server} gave no answer in time") from None

    def stats(self) -> EdgeStats:
        """Counters since the client was made."""
        return self._core.stats()

    def close(self) -> None:
        """Close the connections; calls under way get their local answers, later ones raise :class:`EdgeError`."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        options = self._core.options
        return f"EdgeClient({self.bundle.manifest.name!r}, server={options.server!r}, deadline={options.deadline:g})"
