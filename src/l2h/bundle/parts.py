"""The parts of a manifest, whose annotations say what is accepted, and how values of somebody else's become them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from sys import float_info
from typing import Annotated, Any, TypeVar

from msgspec import Meta, ValidationError, convert

from l2h.classifiers import UNIT_RANGE, Preprocessing
from l2h.columns import Columns, TableColumn
from l2h.costs import Costs
from l2h.decision import RejectorSpec
from l2h.errors import CostError, DataError, L2HError, SettingsError, shown

SIDES = ("device", "server")
#: A name goes into addresses, and the name of a file must not leave the folder.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FEEDS = {"as_is": Preprocessing(), "unit_range": UNIT_RANGE, "flat": Preprocessing(flat=True)}
_T = TypeVar("_T")
Text = Annotated[str, Meta(min_length=1)]
Whole = Annotated[int, Meta(ge=0)]
Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
PlainName = Annotated[str, Meta(pattern=rf"^{NAME.pattern}\Z")]
Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Pair = tuple[Finite, Finite]


class BundleError(L2HError, ValueError):
    """A bundle that is missing, damaged, of a newer version or lacks a part; or inputs that do not fit it."""


def one_of(*known: str) -> Meta:
    """Return the annotation of a text that is one of those known."""
    return Meta(pattern=rf"^({'|'.join(known)})\Z")


def feed_of(inputs: Preprocessing) -> dict[str, Any]:
    """Return the keys of a :class:`ClientPart` that say what is done to samples."""
    named = [name for name, feed in _FEEDS.items() if feed == inputs]
    return {"feed": named[0]} if named else {"feed": "prepared", "preprocessing": inputs}


@dataclass(frozen=True)
class InputPart:
    """One sample: its shape, and ``uint8`` or ``float32``."""

    shape: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1)]
    dtype: Annotated[str, one_of("uint8", "float32")]
    # What the shorter side of a picture was resized to, of which the centre was cut out; None where they were taken as
    # they are.
    size: Annotated[int, Meta(ge=1)] | None = None


@dataclass(frozen=True)
class ClientPart:
    """The client."""

    file: Text | None  # its ONNX file; None where it could not be exported and must be given
    kind: Text  # what it was, for people
    input: Text | None  # name of the file's input
    # What the input gets: the columns of a table by their names ("columns": the file then has an input for each, and
    # this is the first); the raw batch "as_is"; float32 with uint8 scaled to [-1, 1] ("unit_range"); one "flat"
    # float32 row per sample, unscaled; or the batch "prepared" as ``preprocessing`` says.
    feed: Annotated[str, one_of(*_FEEDS, "prepared", "columns")]
    output: Text | None  # name of the output with its answers
    gives: Annotated[str, one_of("log_probability", "probability", "logits", "label")]  # what the answers are
    features: Text | None  # name of the output with its last features, which the rejector reads; None without
    # What is done to a batch that is "prepared". Of a client that must be given: what is done to the inputs of a torch
    # module or of a file, where it is not the usual.
    preprocessing: Preprocessing | None = None

    @property
    def inputs(self) -> Preprocessing:
        """What is done to samples before the file gets them."""
        return _FEEDS.get(self.feed, Preprocessing()) if self.preprocessing is None else self.preprocessing


@dataclass(frozen=True)
class RejectorPart:
    """The rejectors, in one file.

    The file takes ``x`` and gives ``scores`` (n, R, J), with a column per answerer, and where the student may answer
    its labels, ``student`` (n, R). Where fused it gives the client's ``log_probability`` (n, K) as well; where not, and
    ``uses_client``, it takes that and the client's ``embedding``.
    """

    file: Text
    kind: Annotated[str, one_of("attached", "separate", "given")]
    fused: bool  # whether the client is inside, and runs once for both
    int8: bool  # whether it was quantised
    uses_client: bool  # whether it reads the client's outputs
    specs: Annotated[tuple[RejectorSpec, ...], Meta(min_length=1)]  # one per rejector
    # Scale and shift of each answerer's logit, J pairs per rejector; (1, 0) where there is nothing to apply.
    platt: Annotated[tuple[tuple[_Pair, ...], ...], Meta(min_length=1)]
    int8_measured: Mapping[str, Any] | None = None  # of the quantised form, kept or not; None where none was asked for


@dataclass(frozen=True)
class CalibrationPart:
    """The rejectors' scores on held-out samples: ``scores`` (R, n, J) in an ``.npz``."""

    file: Text
    n: Annotated[int, Meta(ge=1)]


@dataclass(frozen=True)
class ServerPart:
    """A server's file, None where it could not be exported; names of its input and its output (n, K)."""

    file: Text | None
    input: Text
    output: Text
    preprocessing: Preprocessing | None = None  # what is done to samples first; None where the file takes them raw
    # What one number per input of two classes is, where the server is no file and gave scores in the training.
    gives: Annotated[str, one_of("probability", "logits")] | None = None
    # "columns" where the file takes columns of the table by their names, which the numbers on the wire are decoded to;
    # ``input`` is then the first. None where it takes the numbers.
    feed: Annotated[str, one_of("columns")] | None = None

    @property
    def inputs(self) -> Preprocessing:
        """What is done to samples before the file gets them."""
        return self.preprocessing or Preprocessing()


@dataclass(frozen=True)
class FilePart:
    """A file of the bundle, and the side that needs it: ``device`` or ``server``."""

    sha256: Hash
    bytes: Whole
    side: Annotated[str, one_of(*SIDES)]


def read_values(values: Any, kind: type[_T], where: str) -> _T:
    """Return values that somebody else wrote as a dataclass or another type, whose annotations say what is accepted.

    A value that is missing, of another type, out of its range or unknown is refused; the message names it and
    ``where`` it stands, such as ``manifest.json, client``.
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


@dataclass(frozen=True)
class _SpecPart:
    loss: Text
    costs: Costs | None
    seed: Whole = 0
    sync: int | str = 1


def _client(values: Any, where: str) -> ClientPart:
    part = read_values(_with_preprocessing(values, where), ClientPart, where)
    for name, value in (("input", part.input), ("output", part.output)):
        if part.file is not None and value is None:
            raise BundleError(f"{where} is damaged: {name!r} is None, expected a name: the client has a file")
    if part.feed == "prepared" and part.preprocessing is None:
        raise BundleError(f"{where} is damaged: 'preprocessing' is missing, and the client is fed as it says")
    return part


def _with_preprocessing(values: Any, where: str) -> Any:
    if not isinstance(values, dict) or values.get("preprocessing") is None:
        return values
    found = read_values(values["preprocessing"], Preprocessing, f"{where}, preprocessing")
    return {**values, "preprocessing": found}


def _rejector(values: Any, where: str) -> RejectorPart:
    if isinstance(values, dict) and isinstance(values.get("specs"), list):
        values = {**values, "specs": [read_spec(spec, f"{where}, specs") for spec in values["specs"]]}
    part = read_values(values, RejectorPart, where)
    if len(part.platt) != len(part.specs):
        raise BundleError(
            f"{where} is damaged: 'platt' is {shown(values['platt'])}, expected one for each of {len(part.specs)} specs"
        )
    return part


def read_spec(values: Any, where: str) -> RejectorSpec:
    """Return the spec of a rejector that somebody else wrote; raise a :class:`BundleError` as :func:`read_values`."""
    if isinstance(values, dict) and values.get("costs") is not None:
        values = {**values, "costs": _costs(values["costs"], f"{where}, costs")}
    part = read_values(values, _SpecPart, where)
    try:
        return RejectorSpec(part.loss, part.costs, part.seed, part.sync)
    except SettingsError as error:
        raise BundleError(f"{where} is damaged: 'costs' is {part.costs}, expected prices ({error})") from error


def _costs(values: Any, where: str) -> Costs:
    try:
        return Costs.from_dict(read_values(values, dict[str, Finite], where))
    except (CostError, KeyError) as error:
        raise BundleError(f"{where} is damaged: found {shown(values)}, expected costs ({error})") from error


def _server(values: Any, where: str) -> ServerPart:
    return read_values(_with_preprocessing(values, where), ServerPart, where)


def _each(read: Callable[[Any, str], Any], values: Any, where: str) -> dict[str, Any]:
    parts = read_values(values, dict[str, Any], where)
    return {name: read(part, f"{where}, {shown(name)}") for name, part in parts.items()}


def _files(values: Any, where: str) -> dict[str, FilePart]:
    parts = read_values(values, dict[str, Any], where)
    for name in parts:
        if not NAME.fullmatch(name):
            raise BundleError(
                f"{where} is refused: {shown(name)} is no plain name of a file: a bundle's files lie in its own folder"
            )
    return {name: read_values(part, FilePart, f"{where}, {name}") for name, part in parts.items()}


@dataclass(frozen=True)
class _ColumnPart:
    name: str
    kind: Annotated[str, one_of("number", "category", "text")]
    missing: bool
    fill: Finite
    spread: Annotated[float, Meta(ge=0, le=float_info.max)]
    categories: tuple[str | int | bool | Finite, ...]
    declared: bool


def read_columns(values: Any, where: str) -> Columns:
    """Return the columns of a table that somebody else wrote; raise a :class:`BundleError` as :func:`read_values`."""
    if not isinstance(values, list):
        raise BundleError(f"{where} is damaged: found {shown(values)}, expected a list")
    parts = [read_values(value, _ColumnPart, where) for value in values]
    try:
        columns = Columns(tuple(TableColumn(**vars(part)) for part in parts))
    except DataError as error:
        raise BundleError(f"{where} is damaged: {error}") from error
    if not parts or len(set(columns.names)) != len(parts):
        raise BundleError(f"{where} is damaged: found {shown(columns.names)}, expected names that differ")
    return columns


#: How the values of some keys of a manifest become its parts; they are given where these values stand.
READERS: dict[str, Callable[[Any, str], Any]] = {
    "columns": read_columns,
    "files": _files,
    "input": lambda values, where: read_values(values, InputPart, where),
    "client": _client,
    "rejector": _rejector,
    "calibration": lambda values, where: None if values is None else read_values(values, CalibrationPart, where),
    "costs": _costs,
    "server": _server,
    "prices": partial(_each, _costs),
    "servers": partial(_each, _server),
}
