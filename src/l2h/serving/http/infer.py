"""A request to infer, from its headers to its answer: whose it is, whether there is room, what it asks and costs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from typing import Any

from l2h import protocol
from l2h.serving.accounts.keys import Key
from l2h.serving.errors import GoneError, RefusalError
from l2h.serving.http.http import (
    CLOSE,
    JSON,
    Receive,
    Scope,
    Send,
    read_body,
    retry_header,
    send_answer,
    too_large,
    unpack,
)
from l2h.serving.http.ids import clean_id, new_id
from l2h.serving.model.job import CHARGED, CONFLICT, FAILED, GONE, LEDGER, NOT_FINITE, QUOTA, REPEATED, Job
from l2h.serving.model.model import bad
from l2h.serving.process.service import Service

_LENGTH = protocol.LENGTH_HEADER.lower().encode()
_CHARGED = {CHARGED: (b"l2h-charged", b"1"), REPEATED: (b"l2h-charged", b"0")}
#: What the log says of a peer that hung up; it is never sent.
HUNG_UP = 499


async def infer(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request to infer."""
    start = time.perf_counter()
    headers: dict[bytes, bytes] = dict(scope["headers"])
    request_id = clean_id(headers.get(b"x-request-id")) or new_id()
    echo = (b"x-request-id", request_id.encode())
    told: dict[str, Any] = {"request_id": request_id}
    service.in_flight += 1
    try:
        job, request = await _compute(service, scope["path"], headers, receive, request_id, told)
        body, answer = job.model.answer(job, request)
        assert job.outcome is not None
        answer += (echo, _CHARGED[job.outcome])
        if service.draining:
            answer.append(CLOSE)
        seconds = time.perf_counter() - start
        service.metrics.answered(seconds, job.inputs, job.units if job.outcome == CHARGED else 0)
        await send_answer(send, 200, body, answer)
        if service.requests.on:
            told |= {"status": 200, "ms": round(seconds * 1e3, 2), "n": job.inputs, "batch": job.batch}
            told["charged"] = job.outcome == CHARGED
            service.requests.add(time.time(), told)
    except RefusalError as refusal:
        service.metrics.refuse(refusal.status, refusal.reason)
        await send_refusal(send, refusal, echo, service.draining)
        _note(service, told, refusal.status, refusal.reason, start)
    except GoneError:
        service.metrics.refuse(HUNG_UP, "gone")
        _note(service, told, HUNG_UP, "gone", start)
    finally:
        service.in_flight -= 1


async def send_refusal(send: Send, refusal: RefusalError, echo: tuple[bytes, bytes], closing: bool) -> None:
    """An error as an answer."""
    headers = [JSON, echo, *refusal.headers]
    if refusal.retry_after is not None:
        headers.append(retry_header(refusal.retry_after))
    if closing and CLOSE not in headers:
        headers.append(CLOSE)
    await send_answer(send, refusal.status, json.dumps({"error": refusal.sentence}).encode(), headers)


async def _compute(
    service: Service,
    path: str,
    headers: dict[bytes, bytes],
    receive: Receive,
    request_id: str,
    told: dict[str, Any],
) -> tuple[Job, protocol.Request]:
    """The job with its scores, charged; else a refusal."""
    key = service.ring.find(headers.get(b"authorization"))
    told["key"] = key.id
    idempotency = _idempotency(headers.get(b"idempotency-key"))
    _admit(service, key, idempotency)
    most = service.max_body
    length = headers.get(b"content-length")
    if length is not None and int(length) > most:
        raise too_large(most)
    body, held = await read_body(receive, most, service.config.body_timeout, service.room)
    try:
        encoding = headers.get(b"content-encoding")
        if encoding is not None:
            body, more = await unpack(body, encoding, most, service.room)
            held += more
        model = service.slot.model
        if path not in service.slot.infer_paths:
            raise RefusalError(404, f"this version of {model.name!r} was replaced by {model.version!r}", "no_model")
        try:
            request = protocol.decode_request(body, protocol.header_length(headers.get(_LENGTH)), model.limits)
        except protocol.WireError as error:
            raise bad(str(error)) from error
        x = model.accept(request)
        told["n"] = len(x)
        if key.rate is not None:
            _require_rate(service.rates.take(key.id, key.rate, len(x)), key)
        job = Job(
            model,
            x,
            key,
            request_id,
            asyncio.get_running_loop().create_future(),
            units=len(x) * service.config.price,
            idempotency=idempotency,
            fingerprint=None if idempotency is None else _fingerprint(x),
            cycle=getattr(receive, "__self__", None),
        )
        service.batcher.submit(job)
        await job.future
    finally:
        service.room.give(held)
    if job.outcome not in _CHARGED:
        raise _failure(job)
    return job, request


def _admit(service: Service, key: Key, idempotency: str | None) -> None:
    """Refuse at once, before the body is read, what would be refused later.

    Raises:
        RefusalError: 503 where the ledger is in trouble or the wait too long, 429 where the key has used up its part.
    """
    cashier = service.cashier
    if cashier.trouble is not None:
        raise RefusalError(503, "the ledger cannot be written: nothing was charged, try again later", "ledger", 1.0)
    wait = service.batcher.wait(service.slot.model.timing) + cashier.lag()
    if wait > service.config.max_wait:
        sentence = f"the server is busy: the wait would be about {wait:.1f} s, more than {service.config.max_wait:g} s"
        raise RefusalError(503, sentence, "busy", wait)
    if key.rate is not None:
        _require_rate(service.rates.peek(key.id, key.rate), key)
    if key.quota is not None:
        left = cashier.spent(key)
        if left and (idempotency is None or not cashier.holds(key, idempotency)):
            raise RefusalError(429, f"the quota of {key.quota} is used up", "quota", left)


def _require_rate(wait: float, key: Key) -> None:
    if wait > 0.0 and key.rate is not None:
        rate = key.rate
        sentence = f"faster than the key's {rate.per_second:g} inputs a second, {rate.burst} at once"
        raise RefusalError(429, sentence, "rate", wait)


def _failure(job: Job) -> Exception:
    """Why a job has no answer."""
    if job.outcome == QUOTA:
        return _over_quota(job)
    if job.outcome == CONFLICT:
        return RefusalError(422, "the Idempotency-Key was used for another request: use a new one", "conflict")
    if job.outcome == LEDGER:
        return RefusalError(503, "the ledger cannot be written: nothing was charged, try again later", "ledger", 1.0)
    if job.outcome == NOT_FINITE:
        return bad("the model has no finite scores for these inputs: their values are beyond what it was made for")
    if job.outcome == GONE:
        return GoneError()
    assert job.outcome == FAILED
    return RefusalError(500, "the model failed on this request; nothing was charged", "failed")


def _over_quota(job: Job) -> RefusalError:
    if job.key.quota is not None and job.inputs > job.key.quota.count:  # to wait would not help
        sentence = f"{job.inputs} inputs are more than the whole quota of {job.key.quota}: send fewer in a request"
        return RefusalError(413, sentence, "too_large")
    sentence = f"the quota of {job.key.quota} has {job.quota_left} left, the request has {job.inputs} inputs"
    return RefusalError(429, sentence, "quota", job.retry_after)


def _idempotency(value: bytes | None) -> str | None:
    if value is None:
        return None
    found = clean_id(value)
    if found is None:
        raise bad("Idempotency-Key: 1 to 128 printable ASCII characters")
    return found


def _fingerprint(x: Any) -> bytes:
    """Tells one request from another, however they were sent."""
    return hashlib.blake2b(x.tobytes(), digest_size=16, person=b"l2h").digest()


def _note(service: Service, told: dict[str, Any], status: int, reason: str, start: float) -> None:
    if service.requests.on:
        told |= {"status": status, "ms": round((time.perf_counter() - start) * 1e3, 2), "reason": reason}
        service.requests.add(time.time(), told)
