"""Asking: which inputs of a call go to which servers, and what becomes of their requests."""

import logging
import time
from typing import NamedTuple

import numpy as np

from l2h.answers import NOT_WORTH_ASKING, OVER_LIMIT, WITHIN_LIMIT, WORTH_ASKING
from l2h.columns import numbers_of
from l2h.decision import Policy, Proposal
from l2h.edge import reasons
from l2h.edge.auditing import Auditor
from l2h.edge.breaker import Admission
from l2h.edge.call import PredictCall, Rows, SentRequest
from l2h.edge.dispatch import Inquiry
from l2h.edge.reasons import CODE
from l2h.edge.servers import AskedServer
from l2h.errors import L2HError
from l2h.telemetry import event

log = logging.getLogger("l2h.edge")
#: The part of the time left in which a limiter must decide: what it permits is still to be sent and answered.
_PERMIT_SHARE = 0.5
#: The reason by 2 * asked + wanted.
_DECIDED = np.array([CODE[reason] for reason in (NOT_WORTH_ASKING, OVER_LIMIT, WITHIN_LIMIT, WORTH_ASKING)])


class ByChance(NamedTuple):
    """The inputs of a call that are asked about by chance if they would be kept: the server of each, -1 for none."""

    drawn: Rows  # (n,)
    admitted: Rows  # (n,), without those that a breaker does not admit
    permitted: Rows  # (n,), and once limits have decided without those that they do not permit
    admissions: list[list[Admission]]  # of each server


class Asker:
    """Sends the inputs of calls to servers, as limits permit and breakers admit, and takes in the replies."""

    def __init__(self, servers: list[AskedServer], local: int, auditor: Auditor | None) -> None:
        self._servers, self._local, self._auditor = servers, local, auditor
        self._limiter_failed = False
        self.closed = False

    def ask(self, call: PredictCall, rows: Rows | None) -> None:
        """Send what the policy permits and the breakers admit, and note the reasons of the rest.

        ``rows`` are inputs whose server failed, which keep that reason where no other is asked; None for all.
        """
        proposal = call.proposal if rows is None else call.proposal.rows(rows)
        unable = [each.unable(call.until) for each in self._servers]
        # The breakers are asked before the limiters: no permit is spent on what is then not sent.
        admissions: list[list[Admission]] = []
        chance: ByChance | None = None
        try:
            for s, each in enumerate(self._servers):
                admissions.append([] if unable[s] else each.admit(int(proposal.able[:, s].sum())))
            room = [len(admissions[s]) * each.options.max_batch for s, each in enumerate(self._servers)]
            reachable = [None if unable[s] else most for s, most in enumerate(room)]
            if rows is None:
                chance = self._draw(call, unable)
            extra = None if chance is None else chance.permitted
            choice, decided = self._permit(call.live.policy, proposal, reachable, call.until, rows is not None, extra)
            if rows is None:
                call.codes = _DECIDED[2 * (choice >= 0) + proposal.wanted]
                if decided < len(choice):
                    call.codes[decided:][proposal.able[decided:].any(axis=1)] = CODE[reasons.DEADLINE]
            for s, most in enumerate(room):
                chosen = np.flatnonzero(choice == s)
                sent, left = chosen[:most], chosen[most:]
                if rows is None and len(left):
                    why = unable[s] or reasons.CIRCUIT_OPEN
                    call.codes[left] = CODE[why]
                    self._servers[s].recorder.settled(len(left), why)
                if rows is not None:
                    sent = rows[sent]
                    call.codes[sent] = _DECIDED[2 + call.proposal.wanted[sent]]
                if len(sent) and not call.abandoned:
                    self._send_all(call, s, sent, admissions[s], unable)
            if chance is not None:
                self._ask_by_chance(call, choice, decided, chance, unable)
        except BaseException:
            call.abandon()
            raise
        finally:
            spare = [] if chance is None else chance.admissions
            for admission in [left for each in [*admissions, *spare] for left in each]:
                admission.report(None)

    def ask_again(self, call: PredictCall, failed: list[Rows]) -> None:
        """Ask the next best servers about inputs whose servers failed."""
        if failed and not (call.abandoned or self.closed) and time.monotonic() < call.until:
            self.ask(call, np.sort(np.concatenate(failed)))

    def settle(self, call: PredictCall) -> list[Rows]:
        """Take in the replies that came, and return the inputs of those requests that failed while time is left."""
        now = time.monotonic()
        requests, call.requests, failed = call.requests, [], []
        for request in requests:
            if request.is_under_way(now):
                call.requests.append(request)
                continue
            reply, rows = request.reply(), request.rows
            self._servers[request.server].recorder.settled(len(rows), reply.reason)
            if call.audit is not None:
                call.audit.settle(rows, request.server, reply)
            if request.by_chance:
                assert self._auditor is not None
                self._auditor.settle(call, rows, request.server, reply)
            elif reply.label is not None:
                call.label[rows], call.column[rows] = reply.label, self._local + request.server
            elif reply.reason is not None:
                call.codes[rows] = CODE[reply.reason]
                failed.append(self._next_best(call, rows, request.server))
        return [rows for rows in failed if len(rows)]

    def _permit(
        self,
        policy: Policy,
        proposal: Proposal,
        room: list[int | None],
        until: float,
        again: bool,
        by_chance: Rows | None,
    ) -> tuple[Rows, int]:
        now = time.monotonic()
        try:
            return policy.permit(proposal, room, now + _PERMIT_SHARE * (until - now), again, by_chance)
        except L2HError as error:  # a limiter's clock or file; no permit, no request
            if not self._limiter_failed:
                log.warning(
                    "the limiter fails, so the server is not asked: %s",
                    error,
                    extra=event("limiter_failed", error=str(error)),
                )
            self._limiter_failed = True
            if by_chance is not None:
                by_chance[:] = -1
            return np.full(len(proposal.able), -1), len(proposal.able)

    def _draw(self, call: PredictCall, unable: list[str | None]) -> ByChance | None:
        """Return which inputs are to be asked about by chance if they would be kept, as far as breakers admit it."""
        if self._auditor is None or call.audit is None:
            return None
        drawn = self._auditor.choose(call.audit.luck)
        admissions: list[list[Admission]] = []
        admitted = drawn.copy()
        for s, each in enumerate(self._servers):
            rows = np.flatnonzero(drawn == s)
            admissions.append([] if unable[s] else each.admit(len(rows)))
            admitted[rows[len(admissions[s]) * each.options.max_batch :]] = -1
        return ByChance(drawn, admitted, admitted.copy(), admissions)

    def _ask_by_chance(
        self, call: PredictCall, choice: Rows, decided: int, chance: ByChance, unable: list[str | None]
    ) -> None:
        """Ask about the inputs of an audit that would be kept, of which the policy has decided."""
        assert self._auditor is not None
        audited, before = (chance.drawn >= 0) & (choice < 0), len(call.requests)
        audited[decided:] = False
        self._auditor.begin(call, audited)
        codes = call.codes.copy()
        for s in range(len(self._servers)):
            rows = np.flatnonzero(audited & (chance.drawn == s))
            admitted, permitted = chance.admitted[rows] == s, chance.permitted[rows] == s
            self._auditor.refuse(rows[~admitted], unable[s] or reasons.CIRCUIT_OPEN)
            self._auditor.refuse(rows[admitted & ~permitted], OVER_LIMIT)
            if permitted.any() and not call.abandoned:
                self._send_all(call, s, rows[permitted], chance.admissions[s], unable)
        call.codes = codes  # a failure to send is no reason of an answer that would be kept
        for request in call.requests[before:]:
            request.by_chance = True

    def _send_all(
        self, call: PredictCall, s: int, rows: Rows, admissions: list[Admission], unable: list[str | None]
    ) -> None:
        """Send inputs to a server, in as many requests as it takes."""
        server = self._servers[s]
        inputs = call.inputs = call.live.bundle.check(call.inputs)
        if server.options.function is None:  # what travels; a function gets the rows of a table themselves
            inputs = numbers_of(inputs)
        size = server.options.max_batch
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            until = call.until - self._reserved(call, s, part, unable)
            if self._send(call, s, Inquiry(inputs[part], part, until), admissions[-1]):
                admissions.pop()

    def _reserved(self, call: PredictCall, s: int, rows: Rows, unable: list[str | None]) -> float:
        """Return the seconds that a server must leave to those which could be asked about its inputs next."""
        if len(self._servers) == 1:
            return 0.0
        left = call.until - time.monotonic()
        able = np.flatnonzero(call.proposal.able[rows].any(axis=0)).tolist()
        reserved = max((self._servers[o].reserve(left) for o in able if o != s and not unable[o]), default=0.0)
        return min(reserved, self._servers[s].spare(left))

    def _send(self, call: PredictCall, s: int, inquiry: Inquiry, admission: Admission) -> bool:
        """Send some inputs; False where the loop has ended, and the admission was not used."""
        dispatcher = self._servers[s].dispatcher
        inquiry.scope.trace = call.trace
        try:
            dispatcher.send(inquiry)
        except RuntimeError:  # closed by another thread meanwhile, or no thread could be started
            call.codes[inquiry.rows] = CODE[reasons.SERVER_UNREACHABLE]
            return False
        ends = inquiry.scope.until + (call.deadline - call.until)
        call.requests.append(SentRequest(inquiry, admission, s, dispatcher, ends))
        return True

    def _next_best(self, call: PredictCall, rows: Rows, failed: int) -> Rows:
        """Leave a server that failed out of the decision about some inputs; return those that another may answer."""
        if len(self._servers) == 1:
            return rows[:0]
        able = call.proposal.able.copy()
        able[rows, failed] = False
        call.proposal = call.proposal._replace(able=able)
        return rows[able[rows].any(axis=1)]
