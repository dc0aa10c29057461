"""``manifest.json``: what a bundle holds, how its parts fit together, and the hash of every file, which is verified."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from sys import float_info
from typing import Annotated, Any, TypeVar

from msgspec import Meta, ValidationError, convert

from l2h.classifiers import UNIT_RANGE, Preprocessing
from l2h.columns import Columns, TableColumn
from l2h.costs import Costs
from l2h.decision import RejectorSpec
from l2h.errors import CostError, DataError, L2HError, SettingsError, shown
from l2h.files import parse_json, read_whole, write_atomically
from l2h.labels import LabelCodec

SCHEMA = 2
#: Keys of schema 2. A bundle without them is written as one of schema 1, which older versions read.
_SECOND = ("columns", "labels")
MANIFEST = "manifest.json"
SIDES = ("device", "server")
#: A name goes into addresses, and the name of a file must not leave the folder.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LARGEST = 16 * 2**20
_BLANK = "0" * 64
_FEEDS = {"as_is": Preprocessing(), "unit_range": UNIT_RANGE, "flat": Preprocessing(flat=True)}
_T = TypeVar("_T")
_Text = Annotated[str, Meta(min_length=1)]
_Whole = Annotated[int, Meta(ge=0)]
_Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
_Name = Annotated[str, Meta(pattern=rf"^{NAME.pattern}\Z")]
_Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Pair = tuple[_Finite, _Finite]


class BundleError(L2HError, ValueError):
    """A bundle that is missing, damaged, of a newer version or lacks a part; or inputs that do not fit it."""


def _one_of(*known: str) -> Meta:
    return Meta(pattern=rf"^({'|'.join(known)})\Z")


def feed_of(inputs: Preprocessing) -> dict[str, Any]:
    """Return the keys of a :class:`ClientPart` that say what is done to samples."""
    named = [name for name, feed in _FEEDS.items() if feed == inputs]
    return {"feed": named[0]} if named else {"feed": "prepared", "preprocessing": inputs}


@dataclass(frozen=True)
class InputPart:
    """One sample: its shape, and ``uint8`` or ``float32``."""

    shape: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1)]
    dtype: Annotated[str, _one_of("uint8", "float32")]
    # What the shorter side of a picture was resized to, of which the centre was cut out; None where they were taken as
    # they are.
    size: Annotated[int, Meta(ge=1)] | None = None


@dataclass(frozen=True)
class ClientPart:
    """The client."""

    file: _Text | None  # its ONNX file; None where it could not be exported and must be given
    kind: _Text  # what it was, for people
    input: _Text | None  # name of the file's input
    # What the input gets: the columns of a table by their names ("columns": the file then has an input for each, and
    # this is the first); the raw batch "as_is"; float32 with uint8 scaled to [-1, 1] ("unit_range"); one "flat"
    # float32 row per sample, unscaled; or the batch "prepared" as ``preprocessing`` says.
    feed: Annotated[str, _one_of(*_FEEDS, "prepared", "columns")]
    output: _Text | None  # name of the output with its answers
    gives: Annotated[str, _one_of("log_probability", "probability", "logits", "label")]  # what the answers are
    features: _Text | None  # name of the output with its last features, which the rejector reads; None without
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

    The file takes ``x`` and gives ``scores`` (n, R, 2). Where fused it gives the client's ``log_probability`` (n, K) as
    well; where not, and ``uses_client``, it takes that and the client's ``embedding``.
    """

    file: _Text
    kind: Annotated[str, _one_of("attached", "separate", "given")]
    fused: bool  # whether the client is inside, and runs once for both
    int8: bool  # whether it was quantised
    uses_client: bool  # whether it reads the client's outputs
    specs: Annotated[tuple[RejectorSpec, ...], Meta(min_length=1)]  # one per rejector
    # Scale and shift of both logits, one pair of pairs per rejector; (1, 0) where there is nothing to apply.
    platt: Annotated[tuple[tuple[_Pair, _Pair], ...], Meta(min_length=1)]
    int8_measured: Mapping[str, Any] | None = None  # of the quantised form, kept or not; None where none was asked for


@dataclass(frozen=True)
class CalibrationPart:
    """The rejectors' scores on held-out samples: ``scores`` (R, n, 2) in an ``.npz``."""

    file: _Text
    n: Annotated[int, Meta(ge=1)]


@dataclass(frozen=True)
class ServerPart:
    """The server's file, None where it could not be exported; names of its input and its output (n, K)."""

    file: _Text | None
    input: _Text
    output: _Text
    preprocessing: Preprocessing | None = None  # what is done to samples first; None where the file takes them raw
    # What one number per input of two classes is, where the server is no file and gave scores in the training.
    gives: Annotated[str, _one_of("probability", "logits")] | None = None
    # "columns" where the file takes columns of the table by their names, which the numbers on the wire are decoded to;
    # ``input`` is then the first. None where it takes the numbers.
    feed: Annotated[str, _one_of("columns")] | None = None

    @property
    def inputs(self) -> Preprocessing:
        """What is done to samples before the file gets them."""
        return self.preprocessing or Preprocessing()


@dataclass(frozen=True)
class FilePart:
    """A file of the bundle, and the side that needs it: ``device`` or ``server``."""

    sha256: _Hash
    bytes: _Whole
    side: Annotated[str, _one_of(*SIDES)]


@dataclass(frozen=True)
class Manifest:
    """What a bundle is."""

    name: _Name  # of the model, on the wire too
    version: _Name  # 12 hexadecimal digits over the files' hashes and the calibration: the same for the same content
    created: _Text  # when, in ISO form
    l2h: _Text  # the version that wrote it
    input: InputPart
    classes: Annotated[tuple[str, ...], Meta(min_length=2)]  # names in the order of the labels
    preprocessing: _Text  # "inside": the files take raw samples, and scaling is part of them
    client: ClientPart
    rejector: RejectorPart
    calibration: CalibrationPart | None  # held-out scores, for bounds on asking; None without
    costs: Costs  # the prices it was made for
    server: ServerPart
    files: Mapping[str, FilePart]  # by name
    # Largest difference of each exported file from the original, in units of its largest output.
    agreement: Mapping[str, _Finite] = field(default_factory=dict)
    columns: Columns | None = None  # of the training table, which inputs are encoded by; None where they are arrays
    labels: tuple[str | int | bool, ...] | None = None  # the user's label of each class; None where they are 0 .. K - 1

    @classmethod
    def read(cls, folder: str | Path) -> Manifest:
        """Read and check the manifest of a bundle; :func:`l2h.bundle.verify` looks at its files."""
        path = Path(folder) / MANIFEST
        try:
            data = read_whole(path, _LARGEST)
        except FileNotFoundError:
            raise BundleError(f"{folder} holds no bundle: {MANIFEST} is missing; l2h export writes one") from None
        except OSError as error:
            raise BundleError(f"cannot read {path}: {error.strerror or error}") from error
        try:
            values = parse_json(data.decode())
        except ValueError as error:
            raise BundleError(f"{path} is damaged: {error}; copy the bundle again") from error
        return _manifest(values, data, str(path))

    def write(self, folder: str | Path) -> Path:
        """Write ``manifest.json``, with a digest of its own text."""
        text = json.dumps({**self.as_dict(), "digest": _BLANK}, indent=2, allow_nan=False) + "\n"
        digest = sha256(text.encode()).hexdigest()
        start = text.rindex(_BLANK)
        whole = text[:start] + digest + text[start + len(_BLANK) :]
        return write_atomically(Path(folder) / MANIFEST, whole.encode())

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as in the file."""
        unused = {key for key in _SECOND if getattr(self, key) is None}
        parts = {key: value for key, value in asdict(self).items() if key not in unused}
        values = {"schema": 1 if len(unused) == len(_SECOND) else SCHEMA, **parts, "costs": self.costs.as_dict()}
        if self.columns is not None:
            values["columns"] = self.columns.as_list()
        values["rejector"]["specs"] = [spec.as_dict() for spec in self.rejector.specs]
        if self.input.size is None:
            del values["input"]["size"]
        for key in ("gives", "feed"):
            if values["server"][key] is None:
                del values["server"][key]
        for key, part in (("client", self.client), ("server", self.server)):
            del values[key]["preprocessing"]
            if part.preprocessing is not None:  # a bundle without is read by version 0.1, too
                values[key]["preprocessing"] = part.preprocessing.as_dict()
        plain: dict[str, Any] = json.loads(json.dumps(values))  # lists for tuples
        return plain

    @cached_property
    def codec(self) -> LabelCodec:
        """The classes: their names, and the user's label of each."""
        return LabelCodec(self.classes, self.labels)

    def files_of(self, side: str) -> dict[str, FilePart]:
        """Return the files that a side needs: ``device`` or ``server``."""
        if side not in SIDES:
            raise BundleError(f"side={side!r} is unknown; known: {', '.join(SIDES)}")
        return {name: part for name, part in self.files.items() if part.side == side}


def verify(folder: str | Path, side: str) -> Manifest:
    """Check the manifest, and the size and SHA-256 of every file that a side needs; the other side's may be missing.

    Args:
        folder: the bundle.
        side: ``device`` or ``server``.

    Raises:
        BundleError: a file is missing or changed, or the manifest is damaged; the message says which.
    """
    return read_side(folder, side)[0]


def read_side(folder: str | Path, side: str) -> tuple[Manifest, dict[str, bytes]]:
    """Return the manifest, and the verified bytes of every file that a side needs; raises as :func:`verify`."""
    manifest = Manifest.read(folder)
    return manifest, {name: read_file(folder, manifest, name) for name in manifest.files_of(side)}


def read_file(folder: str | Path, manifest: Manifest, name: str) -> bytes:
    """Return the bytes of a file, if they are those that the manifest describes."""
    path, part = Path(folder) / name, manifest.files[name]
    try:
        size = path.stat().st_size
        data = read_whole(path, part.bytes) if size == part.bytes else None
    except FileNotFoundError:
        raise BundleError(f"{folder} is not whole: {name} is missing; copy the bundle again") from None
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror or error}") from error
    if data is None:
        raise BundleError(
            f"{path} is damaged: it has {size} bytes, the manifest says {part.bytes}; copy the bundle again"
        )
    digest = sha256(data).hexdigest()
    if digest != part.sha256:
        raise BundleError(
            f"{path} is damaged: its SHA-256 begins {digest[:12]}, the manifest says {part.sha256[:12]}; "
            "copy the bundle again"
        )
    return data


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
class _Header:
    schema: Annotated[int, Meta(ge=1)]
    digest: _Hash


@dataclass(frozen=True)
class _SpecPart:
    loss: _Text
    costs: Costs | None
    seed: _Whole = 0
    sync: int | str = 1


def _manifest(values: Any, data: bytes, where: str) -> Manifest:
    head = {key: values[key] for key in ("schema", "digest") if key in values} if isinstance(values, dict) else values
    header = read_values(head, _Header, where)
    if header.schema > SCHEMA:
        raise BundleError(
            f"{where} was written by a newer version of l2h (schema {header.schema}, this one reads up to {SCHEMA}): "
            "upgrade l2h"
        )
    blank = data.replace(header.digest.encode(), _BLANK.encode(), 1)
    if sha256(blank).hexdigest() != header.digest:
        raise BundleError(f"{where} is damaged: it was changed after it was written; copy the bundle again")
    parts = {key: value for key, value in values.items() if key not in head}
    for key, read in _READERS.items():
        if key in parts:
            parts[key] = read(parts[key], f"{where}, {key}")
    manifest = read_values(parts, Manifest, where)
    if manifest.columns is not None and manifest.input != InputPart((manifest.columns.width,), "float32"):
        raise BundleError(f"{where} is damaged: its columns become {manifest.columns.width} numbers of float32")
    if manifest.columns is None and manifest.server.feed is not None:
        raise BundleError(f"{where} is damaged: its server takes columns, and 'columns' is missing")
    try:
        _ = manifest.codec
    except DataError as error:
        raise BundleError(f"{where} is damaged: 'labels' is {shown(manifest.labels)} ({error})") from error
    used = [(manifest.client.file, "device"), (manifest.rejector.file, "device"), (manifest.server.file, "server")]
    if manifest.calibration is not None:
        used.append((manifest.calibration.file, "device"))
    for name, side in used:
        if name is not None and (name not in manifest.files or manifest.files[name].side != side):
            raise BundleError(f"{where} is damaged: {shown(name)} is not among the files of the {side}")
    return manifest


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
        return Costs.from_dict(read_values(values, dict[str, _Finite], where))
    except (CostError, KeyError) as error:
        raise BundleError(f"{where} is damaged: found {shown(values)}, expected costs ({error})") from error


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
    kind: Annotated[str, _one_of("number", "category", "text")]
    missing: bool
    fill: _Finite
    spread: Annotated[float, Meta(ge=0, le=float_info.max)]
    categories: tuple[str | int | bool | _Finite, ...]
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


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "columns": read_columns,
    "files": _files,
    "input": lambda values, where: read_values(values, InputPart, where),
    "client": _client,
    "rejector": _rejector,
    "calibration": lambda values, where: None if values is None else read_values(values, CalibrationPart, where),
    "costs": _costs,
    "server": lambda values, where: read_values(_with_preprocessing(values, where), ServerPart, where),
}
