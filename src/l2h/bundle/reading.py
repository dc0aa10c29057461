"""Reading plain values that somebody else wrote: every one is of its type and in its range, and none is left over."""

import re
from dataclasses import fields, is_dataclass
from sys import float_info
from typing import Annotated, Any, TypeVar

from msgspec import Meta, ValidationError, convert

from l2h.errors import L2HError, shown

T = TypeVar("T")
Text = Annotated[str, Meta(min_length=1)]
Whole = Annotated[int, Meta(ge=0)]
Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]


class BundleError(L2HError, ValueError):
    """A bundle that is missing, damaged, of a newer version or lacks a part; or inputs that do not fit it."""


def one_of(*known: str) -> Meta:
    """Return the constraint of a text that is one of these."""
    return Meta(pattern=rf"^({'|'.join(known)})\Z")


def read_part(values: Any, kind: type[T], where: str) -> T:
    """Return values as a dataclass or another type, whose annotations say what is accepted.

    A value that is missing, of another type, out of its range or unknown is refused; the message names it and
    ``where`` it stands, such as ``manifest.json, client``.

    Example:
        >>> read_part({"n": 3}, dict[str, Whole], "here")
        {'n': 3}
    """
    try:
        part = convert(values, kind)
    except (ValidationError, UnicodeEncodeError) as error:  # the latter for half a surrogate pair
        text, _, place = str(error).partition(" - at ")
        key = re.match(r"`\$\.(\w+)", place)
        found = f"found {shown(values)}" if key is None else f"{key[1]!r} is {shown(values[key[1]])}"
        raise BundleError(f"{where} is damaged: {found}, {text[0].lower()}{text[1:]}") from error
    known = {field.name for field in fields(kind)} if is_dataclass(kind) else values
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise BundleError(f"{where} is damaged: unknown key {shown(unknown[0])}")
    return part
