"""The lines of an audit file: a header, pairs of local and remote answers, and labels that came later."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from l2h.errors import L2HError

SCHEMA = 1
#: How the names of audit files begin and end.
PREFIX, SUFFIX = "audit-", ".jsonl"
#: The longest line that is read, in bytes: a header with very many classes.
LONGEST_LINE = 16 * 2**20
#: Larger numbers are no scores or costs, and what is computed of them would not be finite.
Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]
#: Seconds since 1970, up to the year 9999.
Time = Annotated[float, Meta(ge=0, lt=253_402_300_800)]
Number = Annotated[int, Meta(ge=0)]
Id = Annotated[str, Meta(min_length=1, max_length=64)]
#: What is shown of a line: a terminal would obey control characters.
Name = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f]{1,200}\Z")]


class AuditError(L2HError, RuntimeError):
    """Audit files that cannot be written or read, or an id that no pair has."""


class AuditHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the pairs below it belong to: the bundle, its classes, and those who may answer."""

    l2h: Literal["audit"] = "audit"
    schema: int = SCHEMA
    bundle: Name  # its version
    name: Name  # of the bundle's model
    classes: tuple[str, ...]
    answerers: Annotated[tuple[Name, ...], Meta(min_length=2)]  # one per head; those on the device first
    local: Annotated[int, Meta(ge=1)]  # how many of them are on the device
    #: Of each rejector the scale and shift of every head; None where it was trained for one price and states none.
    platt: tuple[tuple[tuple[Finite, Finite], ...] | None, ...]
    device: Name | None = None
    time: Time = 0.0  # when the file was begun, in seconds since 1970

    def describes_the_same(self, other: AuditHeader) -> bool:
        """Return whether pairs of both can be put together."""
        mine, theirs = (
            (each.bundle, each.name, each.classes, each.answerers, each.local, each.platt) for each in (self, other)
        )
        return mine == theirs


class AuditPair(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An input of which both answers were asked for; the classes are numbers from 0."""

    kind: Literal["audit", "asked"]  # asked by chance, although it would be kept; or asked anyway
    id: Id
    time: Time  # seconds since 1970
    probability: Annotated[float, Meta(ge=1e-9, le=1)]  # of being among the pairs, for an input like this
    reason: Name  # of the decision: not_worth_asking, over_limit, worth_asking or within_limit
    which: Number  # the number of the rejector
    heads: tuple[Finite, ...]  # its raw scores, before the scale and shift of the calibration
    client: Number  # the client's answer
    student: Number | None = None  # the student's, where it may answer
    local: Number = 0  # whose answer is the best of the device: a place among the answerers
    by: Name  # name of the server
    server: Number | None = None  # its answer; None where none came in time
    fault: Name | None = None  # why none came
    costs: dict[str, Finite]  # the prices of asking this server, as ``Costs.as_dict`` gives them


class LabelLine(msgspec.Struct, frozen=True, kw_only=True, tag="label", tag_field="kind"):
    """The true class of an input, given after its answer."""

    id: Id
    label: Number
    time: Time


encode = msgspec.json.Encoder().encode
_HEADER = msgspec.json.Decoder(AuditHeader)
_PAIR = msgspec.json.Decoder(AuditPair)
_LABEL = msgspec.json.Decoder(LabelLine)
_KIND = msgspec.json.Decoder(dict[str, Any])


def decode(line: bytes) -> AuditHeader | AuditPair | LabelLine:
    """Return what a line holds; raise a ``ValueError`` that says what is wrong with it."""
    try:
        if line.startswith(b'{"kind":"audit"') or line.startswith(b'{"kind":"asked"'):  # as we write them
            return _PAIR.decode(line)
        values = _KIND.decode(line)
        if "l2h" in values:
            return _HEADER.decode(line)
        return _LABEL.decode(line) if values.get("kind") == "label" else _PAIR.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
