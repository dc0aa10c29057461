"""A request to infer, from its headers to its answer: who asks, whether it can be taken, and what it costs."""

import asyncio
import hashlib
import time
from typing import Any

import numpy.typing as npt

from l2h import protocol
from l2h.json_lists import LONG
from l2h.serving.accounts.key import ANONYMOUS, Key
from l2h.serving.accounts.store import Charge, ChargeResult, Room
from l2h.serving.errors import GoneError, RefusalError, StoreDownError, malformed
from l2h.serving.http.body import BodyReader
from l2h.serving.http.exchange import HUNG_UP, Exchange, Header, Receive, authenticate, clean_id
from l2h.serving.http.ratelimit import limit_fields
from l2h.serving.model.batching import PendingRequest
from l2h.serving.model.model import ServedModel
from l2h.serving.process.service import Service

_LENGTH = protocol.LENGTH_HEADER.lower().encode()
_CHARGED = {"charged": (b"l2h-charged", b"1"), "repeated": (b"l2h-charged", b"0")}


async def infer(service: Service, exchange: Exchange, path: str, receive: Receive) -> None:
    """Answer one request to infer."""
    service.in_flight += 1
    if service.tracer is not None:
        exchange.trace = service.tracer.begin(exchange.headers, path)
    try:
        pending, request = await _compute(service, exchange, path, receive)
        assert pending.scores is not None
        assert pending.result is not None
        body, headers = pending.model.encode(pending.scores, request)
        result, key = pending.result, pending.charge.key
        charged, inputs = result.outcome == "charged", len(pending.x)
        seconds = exchange.seconds()
        service.metrics.answered(key, seconds, inputs, pending.charge.units if charged else 0)
        more: tuple[Header, ...] = (_CHARGED[result.outcome], *exchange.told)
        if key.quota is not None or key.rate is not None:
            left = None if result.used is None else result.quota_left
            more += limit_fields(key, left, result.retry_after, exchange.spare)
        await exchange.answer(200, body, headers, more)
        if result.row is not None and pending.cycle is not None:
            service.deliveries.note(result.row, pending.cycle)
        exchange.log(200, seconds, batch=pending.batch, charged=charged)
    except RefusalError as refusal:
        await _refuse(service, exchange, refusal)
    except StoreDownError:
        await _refuse(service, exchange, _store_down())
    except GoneError:
        service.metrics.refuse(exchange.key, HUNG_UP, "gone")
        exchange.log(HUNG_UP, reason="gone")
    finally:
        service.in_flight -= 1


async def _refuse(service: Service, exchange: Exchange, refusal: RefusalError) -> None:
    service.metrics.refuse(exchange.key, refusal.status, refusal.reason)
    await exchange.refuse(refusal)
    exchange.log(refusal.status, reason=refusal.reason)


async def _compute(
    service: Service, exchange: Exchange, path: str, receive: Receive
) -> tuple[PendingRequest, protocol.Request]:
    """The request with its scores, charged; else what is raised says why not."""
    headers = exchange.headers
    key = authenticate(service.accounts.keys, headers.get(b"authorization"))
    exchange.key = key
    exchange.noted["key"] = key.id
    exchange.noted["key_name"] = key.name
    if key is not ANONYMOUS:
        exchange.state["known"] = True
    exchange.hear_device(key)
    _admit(service)
    if key.rate is not None:  # whatever the headers and the body are, the request counts as one input
        exchange.spare = _require_rate(key, await service.accounts.take_rate(key, 1))
    idempotency_key = clean_id(headers.get(b"idempotency-key"))
    if idempotency_key is None and b"idempotency-key" in headers:
        raise malformed("Idempotency-Key: 1 to 128 printable ASCII characters")
    left = 0.0 if key.quota is None else service.accounts.used_up(key)
    if left and not (idempotency_key and await service.accounts.was_charged(key, idempotency_key)):
        fields = limit_fields(key, 0, left, exchange.spare)
        raise RefusalError(429, f"the quota of {key.quota} is used up", "quota", left, fields)
    with BodyReader(service) as reader:
        body = await reader.read(receive, headers.get(b"content-length"))
        encoding = headers.get(b"content-encoding")
        if encoding is not None:
            body = await reader.unpack(body, encoding)
        model = service.current.model
        if path not in service.current.infer_paths:
            raise RefusalError(404, f"this version of {model.name!r} was replaced by {model.version!r}", "no_model")
        given = body, headers.get(_LENGTH), model, idempotency_key is not None
        if len(body) > LONG:
            request, x, fingerprint = await reader.work(_read_inputs, *given)
        else:
            request, x, fingerprint = _read_inputs(*given)
        exchange.noted["n"] = len(x)
        if key.rate is not None and len(x) > 1:
            exchange.spare = _require_rate(key, await service.accounts.take_rate(key, len(x), paid=1))
        units = len(x) * service.config.price
        charge = Charge(
            key, exchange.request_id, idempotency_key, fingerprint, model.name, model.version, len(x), units
        )
        future = asyncio.get_running_loop().create_future()
        pending = PendingRequest(model, x, charge, future, getattr(receive, "__self__", None), exchange.trace)
        await _run(service, pending)
    if pending.failure is not None:
        raise pending.failure()
    assert pending.result is not None
    if pending.result.outcome not in _CHARGED:
        raise _not_charged(charge, pending.result)
    if pending.result.outcome == "charged" and idempotency_key is not None:
        service.charging.give_credit(key, len(x))
    return pending, request


async def _run(service: Service, pending: PendingRequest) -> None:
    """Have the scores computed and charged, where the quota has room; a repeat, where not too many were for nothing."""
    charge = pending.charge
    key, named = charge.key, charge.idempotency_key is not None
    first = not named or service.charging.begin(charge)
    held = False
    try:
        if key.quota is not None:
            room = await service.accounts.reserve(key, charge.inputs)
            held = room.held
            if not room.granted:
                await _require_repeat(service, charge, room, first)
        _admit(service)  # others came while the body was read
        if named and not service.charging.take_credit(key, charge.inputs):
            if not first:
                raise _under_way()
            foreseen = await service.accounts.foresee(charge)
            if foreseen.outcome != "charged":
                raise _not_charged(charge, foreseen)
        service.batcher.submit(pending)
        await pending.future
        if pending.trace is not None:
            pending.trace.charged = time.monotonic()
    finally:
        if held:
            service.accounts.settle(key, charge.inputs, pending.result)
        if first and named:
            service.charging.end(charge)


async def _require_repeat(service: Service, charge: Charge, room: Room, first: bool) -> None:
    """Raise where a request that its quota has no room for was not charged before."""
    if not first:
        raise _under_way()
    named = charge.idempotency_key is not None
    foreseen = await service.accounts.foresee(charge) if named else ChargeResult("over_quota")
    if foreseen.outcome != "repeated":
        conflict = foreseen.outcome == "conflict"
        raise _not_charged(charge, foreseen if conflict else ChargeResult("over_quota", room.left, room.retry_after))


def _read_inputs(
    body: bytes | bytearray, length: bytes | None, model: ServedModel, repeatable: bool
) -> tuple[protocol.Request, npt.NDArray[Any], bytes | None]:
    """The request of a body, its inputs, and what tells them from others, however they were sent."""
    try:
        request = protocol.decode_request(body, protocol.header_length(length), model.limits)
    except protocol.WireError as error:
        raise malformed(str(error)) from error
    x = model.accept(request)
    if not repeatable:
        return request, x, None
    return request, x, hashlib.blake2b(x.reshape(-1).data, digest_size=16, person=b"l2h").digest()


def _admit(service: Service) -> None:
    """Refuse at once, before the body is read, what would be refused later."""
    charging = service.charging
    if charging.trouble is not None:
        raise _store_down()
    wait = service.batcher.wait(service.current.model.timing) + charging.lag()
    if wait > service.config.max_wait:
        sentence = f"the server is busy: the wait would be about {wait:.1f} s, more than {service.config.max_wait:g} s"
        raise RefusalError(503, sentence, "busy", wait)


def _require_rate(key: Key, wait: float) -> float:
    """Return what the store said of the key's rate; raise where the request has to wait."""
    if wait > 0.0 and key.rate is not None:
        sentence = f"faster than the key's {key.rate.per_second:g} inputs a second, {key.rate.burst} at once"
        raise RefusalError(429, sentence, "rate", wait, limit_fields(key, None, 0.0, wait))
    return wait


def _under_way() -> RefusalError:
    return RefusalError(503, "the same request is being answered: repeat it afterwards", "busy", 1.0)


def _not_charged(charge: Charge, result: ChargeResult) -> RefusalError:
    if result.outcome == "store_down":
        return _store_down()
    if result.outcome == "conflict":
        return RefusalError(422, "the Idempotency-Key was used for another request: use a new one", "conflict")
    if result.outcome == "repeated":
        sentence = "the request was charged and answered before, and the key has had its free repeats: "
        return RefusalError(422, sentence + "use a new Idempotency-Key, which is charged", "repeats")
    quota, inputs = charge.key.quota, charge.inputs
    if quota is not None and inputs > quota.count:  # to wait would not help
        sentence = f"{inputs} inputs are more than the whole quota of {quota}: send fewer in a request"
        return RefusalError(413, sentence, "too_large")
    sentence = f"the quota of {quota} has {result.quota_left} left, the request has {inputs} inputs"
    fields = limit_fields(charge.key, result.quota_left, result.retry_after, None)
    return RefusalError(429, sentence, "quota", result.retry_after, fields)


def _store_down() -> RefusalError:
    sentence = "the ledger cannot be written: nothing was charged, try again later"
    return RefusalError(503, sentence, "ledger", 1.0)
