"""Audits: a random share of what would be kept is asked about, and the pairs of both answers are kept.

One number per input, drawn before the decision, says whether it is part of the sample: below the share, an input that
would be kept is asked about; below ten times the share, one that is asked about anyway is kept as a pair, which costs
nothing more. A request that fails is not repeated with another server.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from l2h.answers import OVER_LIMIT
from l2h.audits import AuditError, AuditHeader, AuditLog, AuditPair
from l2h.bundle import DeviceBundle
from l2h.costs import BoolArray, Costs, FloatArray
from l2h.decision import Judgement
from l2h.edge import reasons
from l2h.edge.options import EdgeSettingsError
from l2h.edge.reasons import REASONS

if TYPE_CHECKING:
    from l2h.edge.call import PredictCall
    from l2h.edge.transport import Reply

Rows = npt.NDArray[np.intp]
#: Of the inputs that are asked about anyway, so many times the share of audits is kept.
_ASKED = 10
#: The smallest share but 0.
_LEAST = 1e-6


class AuditedCall:
    """What a call's pairs are made of."""

    def __init__(self, luck: FloatArray, label: Rows, student: Rows | None, judgement: Judgement) -> None:
        n = len(luck)
        self.luck, self.judgement = luck, judgement
        self.client, self.student = label.copy(), student  # the call's own are replaced by what servers answer
        self.audited = np.zeros(n, dtype=np.bool_)  # asked about by chance
        self.by = np.full(n, -1)  # the server that was asked last
        self.server = np.full(n, -1)  # its answer
        self.fault: list[str | None] = [None] * n
        self.codes: npt.NDArray[np.int8] | None = None  # the reasons of the decisions

    def settle(self, rows: Rows, server: int, reply: Reply) -> None:
        """Note what a server said about some inputs."""
        if reply.reason == reasons.CROWDED:  # it was not sent
            return
        self.by[rows] = server
        if reply.label is not None:
            self.server[rows] = reply.label
        for row in rows.tolist():
            self.fault[row] = reply.reason


class Auditor:
    """Draws the inputs of the sample, chooses whom they are asked of, and makes the pairs."""

    def __init__(self, share: float, log: AuditLog, servers: Sequence[int], local: int, device: str | None) -> None:
        self.share, self.log = share, log
        self._kept_share = min(1.0, _ASKED * share)
        self._servers, self._local, self._device = np.array(servers), local, device
        self._rng = np.random.default_rng(log.seed)
        self._lock = threading.Lock()
        self._count: Counter[str] = Counter()
        self._unanswered: Counter[str] = Counter()
        self._header: tuple[DeviceBundle | None, AuditHeader | None] = (None, None)

    def draw(self, n: int) -> FloatArray | None:
        """Return a number from 0 to 1 per input; None where none of them can be part of the sample."""
        if n == 1:  # the common case, without work on arrays
            one = self._rng.random()
            return np.array([one]) if one < self._kept_share else None
        luck = self._rng.random(n)
        return luck if luck.min() < self._kept_share else None

    def choose(self, luck: FloatArray) -> Rows:
        """Return the server that is asked about each input if it would be kept, -1 where that is not drawn.

        Of several servers each has the same chance: so there are pairs with every one of them.
        """
        # Among those below the share, the number is as random as before.
        places = np.minimum(luck / self.share, 1) * len(self._servers)
        servers = self._servers[np.minimum(places.astype(np.intp), len(self._servers) - 1)]
        return np.where(luck < self.share, servers, -1)

    def begin(self, call: PredictCall, audited: BoolArray) -> None:
        """Note which inputs would be kept and are to be asked about."""
        assert call.audit is not None
        call.audit.codes, call.audit.audited = call.codes.copy(), audited
        with self._lock:
            self._count["drawn"] += int(audited.sum())

    def refuse(self, rows: Rows, reason: str) -> None:
        """Count inputs that could not be asked about."""
        if len(rows):
            with self._lock:
                self._unanswered[reason] += len(rows)

    def settle(self, call: PredictCall, rows: Rows, server: int, reply: Reply) -> None:
        """Take the answers to inputs that were asked about by chance; a failure leaves the call as it was."""
        if reply.label is None:
            self.refuse(rows, reply.reason or reasons.SERVER_UNREACHABLE)
            return
        with self._lock:
            self._count["answered"] += len(rows)
        call.codes[rows] = reasons.CODE[reasons.AUDIT]
        better = self._is_better(call, rows, server)
        call.label[rows[better]], call.column[rows[better]] = reply.label[better], self._local + server

    def costs(self, call: PredictCall, cost: FloatArray) -> FloatArray:
        """Return what the answers cost: the price of a server that answered by chance, whoever's answer is given."""
        assert call.audit is not None
        rows = np.flatnonzero(call.codes == reasons.CODE[reasons.AUDIT])
        cost[rows] = np.array(call.terms.paid)[self._local + call.audit.by[rows]]
        return cost

    def pairs(self, call: PredictCall) -> tuple[npt.NDArray[np.str_], list[AuditPair]]:
        """Return the ids (n,) of a call's inputs, empty outside of the sample, and the pairs of the others."""
        audit, costs = call.audit, call.terms.costs
        assert audit is not None
        rows = (audit.by >= 0) & (audit.audited | (audit.luck < self._kept_share))
        ids, out, now = np.zeros(len(rows), dtype="<U16"), [], time.time()
        chance = self._chance()
        for i in np.flatnonzero(rows).tolist():
            ids[i] = id = token_hex(8)
            audited, name = bool(audit.audited[i]), call.live.bundle.answerers[self._local + audit.by[i]].name
            prices = costs if isinstance(costs, Costs) else costs[name]
            answered = audit.server[i] >= 0
            assert audit.codes is not None
            out.append(
                AuditPair(
                    kind="audit" if audited else "asked",
                    id=id,
                    time=now,
                    probability=chance if audited else self._kept_share,
                    reason=REASONS[audit.codes[i]],
                    which=call.terms.which,
                    heads=tuple(audit.judgement.scores[i].astype(float).tolist()),
                    client=int(audit.client[i]),
                    student=None if audit.student is None else int(audit.student[i]),
                    local=int(call.proposal.local[i]),
                    by=name,
                    server=int(audit.server[i]) if answered else None,
                    fault=None if answered else audit.fault[i],
                    costs=prices.as_dict(),
                )
            )
        return ids, out

    def write(self, bundle: DeviceBundle, pairs: list[AuditPair]) -> None:
        """Keep the pairs of a call that this bundle answered."""
        known, header = self._header
        if known is not bundle or header is None:
            header = _header(bundle, self._local, self._device)
            self._header = bundle, header
        self.log.write(pairs, header)

    def feedback(self, bundle: DeviceBundle, id: str, label: Any) -> None:
        """Keep the true label of an input."""
        number = int(bundle.labels.encode([label], "feedback")[0])
        self.log.feedback(str(id), number, _header(bundle, self._local, self._device))

    def stats(self) -> dict[str, Any]:
        """Return the counters."""
        with self._lock:
            count, unanswered = dict(self._count), dict(self._unanswered)
        return {
            "share": self.share,
            "drawn": count.get("drawn", 0),
            "answered": count.get("answered", 0),
            "unanswered": unanswered,
            "pairs": self.log.pairs,
            "labels": self.log.labels,
            "lost": self.log.lost,
        }

    def _chance(self) -> float:
        """Return the probability that an input that would be kept is asked of one server, and limits permit it.

        Limits refuse audits and not what is asked anyway: without this the pairs would stand for too few kept inputs.
        """
        with self._lock:
            drawn, refused = self._count["drawn"], self._unanswered[OVER_LIMIT]
        return self.share / len(self._servers) * ((1 + drawn - refused) / (1 + drawn))

    def _is_better(self, call: PredictCall, rows: Rows, server: int) -> BoolArray:
        """Return where the server's answer is expected to cost no more than the device's, its price being paid.

        A rejector that states no probabilities cannot say so: the device's answer stays.
        """
        assert call.audit is not None
        judgement, column = call.audit.judgement.rows(rows), self._local + server
        if judgement.probability is None:
            return np.zeros(len(rows), dtype=np.bool_)
        left = judgement.expected_costs(call.terms.costs) - np.array(call.terms.paid)
        return np.asarray(left[:, column] <= left[np.arange(len(rows)), call.proposal.local[rows]])


def make_auditor(
    share: Any, audits: Any, servers: Sequence[int], local: int, device: str | None = None
) -> Auditor | None:
    """Return what audits a share of the inputs; None where that is 0."""
    if isinstance(share, bool) or not isinstance(share, int | float | np.floating) or not 0 <= share <= 1:
        raise EdgeSettingsError(f"audit={share!r} must be a share from 0 to 1, such as 0.01")
    if not share:
        return None
    if share < _LEAST:
        raise EdgeSettingsError(f"audit={share!r} asks about nothing: give {_LEAST:g} or more, or 0")
    if not servers:
        raise EdgeSettingsError("audit= asks a server, and there is none: give server=, or leave out audit=")
    try:
        log = audits if isinstance(audits, AuditLog) else AuditLog(audits)
    except (AuditError, TypeError) as error:
        raise EdgeSettingsError(f"audits={audits!r} must be a folder: {error}") from error
    return Auditor(float(share), log, servers, local, device)


def _header(bundle: DeviceBundle, local: int, device: str | None) -> AuditHeader:
    rejector = bundle.manifest.rejector
    platt = [
        tuple((float(scale), float(shift)) for scale, shift in pairs) if spec.costs is None else None
        for pairs, spec in zip(rejector.platt, rejector.specs, strict=True)
    ]
    return AuditHeader(
        bundle=bundle.manifest.version,
        name=bundle.manifest.name,
        classes=tuple(bundle.classes),
        answerers=tuple(answerer.name for answerer in bundle.answerers),
        local=local,
        platt=tuple(platt),
        device=device,
    )
