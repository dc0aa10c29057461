"""What a server of the Open Inference Protocol says: of its model, compared with what is expected, and of errors."""

import ipaddress
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from l2h.errors import L2HError, shown


class MetadataError(L2HError, ValueError):
    """Metadata that are none, or of a model that does not fit; the message begins with "it" or "its"."""


@dataclass(frozen=True)
class ExpectedModel:
    """What a model must take and give."""

    whose: str  # who expects it, for messages: "the bundle"
    name: str
    shape: tuple[int, ...]  # of one input
    datatype: str  # of the input, in the protocol's words
    classes: Sequence[str] | int  # their names in their order, or only how many there are

    @property
    def count(self) -> int:
        return self.classes if isinstance(self.classes, int) else len(self.classes)


def tensor_names(
    metadata: Any, expected: ExpectedModel, input_name: str | None, output_name: str | None
) -> tuple[str, str]:
    """Return the names of the model's input and output; raise where the server's metadata does not fit.

    A name that is None is that of the only tensor there is.
    """
    whose, shape = expected.whose, expected.shape
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise MetadataError("it gives no metadata of a model: is it a server of the Open Inference Protocol?")
    if metadata["name"] != expected.name:
        theirs = _short(metadata["name"])
        raise MetadataError(f"it gives the model {theirs}, not {expected.name!r}: give model=, or another server")
    name, entry = _entry(metadata, "inputs", input_name, "input_name")
    if entry is not None:
        wanted, theirs, size = expected.datatype, _short(entry.get("datatype")), entry.get("shape")
        if entry.get("datatype") != wanted:
            raise MetadataError(f"its input {name!r} takes {theirs}, {whose}'s is {wanted}")
        if not _fits(size, shape):
            raise MetadataError(f"its input {name!r} has shape {_short(size)}, {whose}'s is {[-1, *shape]}")
    out, entry = _entry(metadata, "outputs", output_name, "output_name")
    if entry is not None:
        labels = str(entry.get("datatype")).lstrip("U").startswith(("INT", "BOOL", "BYTES"))
        given = entry.get("shape")
        if not (_fits(given, (expected.count,)) or (labels and (_fits(given, ()) or _fits(given, (1,))))):
            raise MetadataError(f"its output {out!r} has shape {_short(given)}, {whose} has {expected.count} classes")
    _compare_classes(class_names(metadata), expected)
    return name, out


def class_names(metadata: dict[str, Any]) -> list[str] | None:
    """Return the names of the classes that the metadata gives, as a server of ours does; None where there are none."""
    parameters = metadata.get("parameters")
    names = parameters.get("classes") if isinstance(parameters, dict) else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return None
    return names


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, not a name."""
    return _address(host) is not None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    address = _address(host)
    if address is None:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def retry_after(value: object) -> float | None:
    """Return the seconds that a header ``Retry-After`` asks to wait, at most 1e9; None where it says none.

    Example:
        >>> retry_after("2"), retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), retry_after("soon"), retry_after(None)
        (2.0, 0.0, None, None)
    """
    try:
        seconds = float(str(value))
    except ValueError:
        try:
            at = parsedate_to_datetime(str(value))
            seconds = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError, OverflowError):
            return None
    return None if math.isnan(seconds) else min(max(0.0, seconds), 1e9)


def describe_status(status: int, body: bytes, secret: str | None = None) -> str:
    """Return the status and the server's own message, on one line and without the key should it repeat that.

    Example:
        >>> describe_status(429, b'{"error": "quota of s3cret\\\\nused up"}', "s3cret")
        'status 429, quota of *** used up'
        >>> describe_status(500, b"<html>")
        'status 500'
    """
    try:
        message = json.loads(body).get("error")
    except (ValueError, RecursionError, AttributeError):
        message = None
    if not isinstance(message, str):
        return f"status {status}"
    if secret:
        message = message.replace(secret, "***")
    plain = "".join(c if c.isprintable() else " " for c in message[:300])
    return ", ".join(part for part in (f"status {status}", " ".join(plain.split())) if part)


def _compare_classes(theirs: list[str] | None, expected: ExpectedModel) -> None:
    whose, ours = expected.whose, expected.classes
    if theirs is None or (not isinstance(ours, int) and theirs == list(ours)):
        return
    if len(theirs) != expected.count:
        raise MetadataError(f"its model has {len(theirs)} classes, {whose} has {expected.count}")
    if isinstance(ours, int):
        return
    differ = [i for i, (their, our) in enumerate(zip(theirs, ours, strict=True)) if their != our]
    first = differ[0]
    what = f"{whose}'s in another order" if sorted(theirs) == sorted(ours) else f"not {whose}'s"
    raise MetadataError(
        f"its classes are {what}: {len(differ)} of {len(ours)} differ, the first is class {first}, "
        f"{_short(theirs[first])} there and {_short(ours[first])} in {whose}"
    )


def _entry(metadata: dict[str, Any], key: str, name: str | None, option: str) -> tuple[str, dict[str, Any] | None]:
    """Return the tensor of that name, or the only one; None where the server does not describe its tensors."""
    given = metadata.get(key) or []
    if not isinstance(given, list) or not all(isinstance(e, dict) and isinstance(e.get("name"), str) for e in given):
        raise MetadataError(f"the {key} in its metadata of the model are no list of named tensors")
    names = ", ".join(entry["name"] for entry in given)
    if name is None:
        if len(given) != 1:
            raise MetadataError(f"its metadata names {len(given)} {key} ({_short(names)}): say which with {option}=")
        return given[0]["name"], given[0]
    found = next((entry for entry in given if entry["name"] == name), None)
    if found is None and given:
        raise MetadataError(f"its model has no {key[:-1]} {name!r}; it has {_short(names)}: give {option}=")
    return name, found


def _fits(given: Any, shape: tuple[int, ...]) -> bool:
    """Return whether a shape on the wire, with or without the axis of the batch, can be this one; -1 is any size."""
    if not isinstance(given, list) or not all(isinstance(size, int) for size in given):
        return False
    if len(given) == len(shape) + 1:
        return all(g in (-1, s) for g, s in zip(given[1:], shape, strict=True))
    return given == list(shape)


def _short(value: object) -> str:
    return shown(value, 80)
