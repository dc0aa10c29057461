"""``manifest.json``: what a bundle holds, how its parts fit together, and the hash of every file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

from l2h.bundle.errors import BundleError
from l2h.bundle.reading import Entry, is_number, shown
from l2h.costs import Costs
from l2h.decision import RejectorSpec
from l2h.errors import CostError, SettingsError
from l2h.files import write_atomically

SCHEMA = 1
MANIFEST = "manifest.json"
DEVICE, SERVER = "device", "server"
SIDES = (DEVICE, SERVER)
DTYPES = ("uint8", "float32")
FEEDS = ("as_is", "unit_range", "flat")
GIVES = ("log_probability", "probability", "logits", "label")
REJECTORS = ("attached", "separate", "given")
#: A name goes into addresses, the name of a file must not leave the folder.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LARGEST = 16 * 2**20
_HASH = re.compile(r"[0-9a-f]{64}")
_BLANK = "0" * 64


@dataclass(frozen=True)
class InputPart:
    """One sample: its shape, and ``uint8`` or ``float32``."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class ClientPart:
    """The client.

    Attributes:
        file: its ONNX file; None where it could not be exported and must be given.
        kind: what it was, for people.
        input: name of the file's input.
        feed: what that gets: the raw batch ``as_is``; float32 with uint8 scaled to [-1, 1] (``unit_range``); or one
            ``flat`` float32 row a sample, unscaled.
        output: name of the output with its answers.
        gives: what the answers are: ``log_probability``, ``probability``, ``logits`` or ``label``.
        features: name of the output with its last features, which the rejector reads; None without.
    """

    file: str | None
    kind: str
    input: str | None
    feed: str
    output: str | None
    gives: str
    features: str | None


@dataclass(frozen=True)
class RejectorPart:
    """The rejectors, in one file.

    Attributes:
        file: takes ``x`` and gives ``scores`` (n, R, 2). Where fused it gives the client's ``log_probability`` (n, K)
            as well; where not, and ``uses_client``, it takes that and the client's ``embedding``.
        kind: ``attached``, ``separate`` or ``given``.
        fused: whether the client is inside, and runs once for both.
        int8: whether it was quantised.
        uses_client: whether it reads what the client said.
        specs: one a rejector.
        platt: scale and shift of both logits, one pair of pairs a rejector; (1, 0) where there is nothing to apply.
        int8_measured: what was measured of the quantised form, kept or not; None where none was asked for.
    """

    file: str
    kind: str
    fused: bool
    int8: bool
    uses_client: bool
    specs: tuple[RejectorSpec, ...]
    platt: tuple[tuple[tuple[float, float], tuple[float, float]], ...]
    int8_measured: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class CalibrationPart:
    """The rejectors' scores on held-out samples: ``scores`` (R, n, 2) in an ``.npz``."""

    file: str
    n: int


@dataclass(frozen=True)
class ServerPart:
    """The server's file, None where it could not be exported; names of its input and its output (n, K)."""

    file: str | None
    input: str
    output: str


@dataclass(frozen=True)
class FilePart:
    """A file of the bundle, and the side that needs it: ``device`` or ``server``."""

    sha256: str
    bytes: int
    side: str


@dataclass(frozen=True)
class Manifest:
    """What a bundle is.

    Attributes:
        name: of the model, on the wire too.
        version: 12 hexadecimal digits over the files' hashes and the calibration: the same for the same content.
        created: when, in ISO form.
        l2h: the version that wrote it.
        input: one sample.
        classes: names in the order of the labels.
        client: the classifier that cannot change.
        rejector: who decides.
        calibration: held-out scores, for bounds on asking; None without.
        costs: the prices it was made for.
        server: the other half.
        files: by name.
        agreement: largest difference of each exported file from the original, in units of its largest output.
        preprocessing: ``inside``: the files take raw samples, and scaling is part of them.
    """

    name: str
    version: str
    created: str
    l2h: str
    input: InputPart
    classes: tuple[str, ...]
    client: ClientPart
    rejector: RejectorPart
    calibration: CalibrationPart | None
    costs: Costs
    server: ServerPart
    files: Mapping[str, FilePart]
    agreement: Mapping[str, float] = field(default_factory=dict)
    preprocessing: str = "inside"

    @classmethod
    def read(cls, folder: str | Path) -> Manifest:
        """Read and check the manifest of a bundle; its files are looked at by :func:`l2h.bundle.verify`.

        Raises:
            BundleError: there is none, it is damaged, or a newer version wrote it.
        """
        path = Path(folder) / MANIFEST
        try:
            if path.stat().st_size > _LARGEST:
                raise BundleError(f"{path} has {path.stat().st_size} bytes: no manifest is above {_LARGEST}")
            data = path.read_bytes()
        except FileNotFoundError:
            raise BundleError(f"{folder} holds no bundle: {MANIFEST} is missing; l2h export writes one") from None
        except OSError as error:
            raise BundleError(f"cannot read {path}: {error.strerror or error}") from error
        try:
            values = json.loads(data.decode(), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise BundleError(f"{path} is damaged: {error}; copy the bundle again") from error
        top = Entry(values, str(path))
        schema = top.whole("schema", 1)
        if schema > SCHEMA:
            raise BundleError(
                f"{path} was written by a newer version of l2h (schema {schema}, this one reads up to {SCHEMA}): "
                "upgrade l2h"
            )
        if "digest" in values:
            digest = top.text("digest")
            if sha256(data.replace(digest.encode(), _BLANK.encode(), 1)).hexdigest() != digest:
                raise BundleError(f"{path} is damaged: it was changed after it was written; copy the bundle again")
        return _manifest(top)

    def write(self, folder: str | Path) -> Path:
        """Write ``manifest.json``, with a digest of its own text."""
        text = json.dumps({**self.as_dict(), "digest": _BLANK}, indent=2, allow_nan=False) + "\n"
        digest = sha256(text.encode()).hexdigest()
        start = text.rindex(_BLANK)
        whole = text[:start] + digest + text[start + len(_BLANK) :]
        return write_atomically(Path(folder) / MANIFEST, whole.encode())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as in the file."""
        rejector = {
            **{name: getattr(self.rejector, name) for name in ("file", "kind", "fused", "int8", "uses_client")},
            "specs": [spec.as_dict() for spec in self.rejector.specs],
            "platt": [[list(pair) for pair in pairs] for pairs in self.rejector.platt],
            "int8_measured": None if self.rejector.int8_measured is None else dict(self.rejector.int8_measured),
        }
        return {
            "schema": SCHEMA,
            "name": self.name,
            "version": self.version,
            "created": self.created,
            "l2h": self.l2h,
            "input": {"shape": list(self.input.shape), "dtype": self.input.dtype},
            "classes": list(self.classes),
            "preprocessing": self.preprocessing,
            "client": asdict(self.client),
            "rejector": rejector,
            "calibration": None if self.calibration is None else asdict(self.calibration),
            "costs": self.costs.as_dict(),
            "server": asdict(self.server),
            "files": {name: asdict(part) for name, part in self.files.items()},
            "agreement": dict(self.agreement),
        }

    def of(self, side: str) -> dict[str, FilePart]:
        """The files that a side needs.

        Raises:
            BundleError: a side that is neither ``device`` nor ``server``.
        """
        if side not in SIDES:
            raise BundleError(f"side={side!r} is unknown; known: {', '.join(SIDES)}")
        return {name: part for name, part in self.files.items() if part.side == side}


def _manifest(top: Entry) -> Manifest:
    files = {name: _file(name, top) for name in top.entry("files").values}
    rejector = _rejector(top.entry("rejector"))
    manifest = Manifest(
        name=_name(top, "name"),
        version=_name(top, "version"),
        created=top.text("created"),
        l2h=top.text("l2h"),
        input=_input(top.entry("input")),
        classes=_classes(top),
        client=_client(top.entry("client")),
        rejector=rejector,
        calibration=top.optional("calibration", lambda key: _calibration(top.entry(key))),
        costs=_costs(top, "costs"),
        server=_server(top.entry("server")),
        files=files,
        agreement=_agreement(top) if "agreement" in top.values else {},
        preprocessing=top.text("preprocessing"),
    )
    top.finish()
    used = [(manifest.client.file, DEVICE), (rejector.file, DEVICE), (manifest.server.file, SERVER)]
    if manifest.calibration is not None:
        used.append((manifest.calibration.file, DEVICE))
    for name, side in used:
        if name is not None and (name not in files or files[name].side != side):
            raise BundleError(f"{top.where} is damaged: {shown(name)} is not among the files of the {side}")
    return manifest


def _file(name: str, top: Entry) -> FilePart:
    if not NAME.fullmatch(name):
        raise BundleError(
            f"{top.where} is refused: {shown(name)} is no plain name of a file: a bundle's files lie in its own folder"
        )
    entry = Entry(top.values["files"][name], f"{top.where}, files, {name}")
    part = FilePart(entry.text("sha256"), entry.whole("bytes"), entry.text("side", SIDES))
    if not _HASH.fullmatch(part.sha256):
        raise entry.wrong("sha256", "64 hexadecimal digits")
    entry.finish()
    return part


def _input(entry: Entry) -> InputPart:
    shape = entry.items("shape")
    if not all(isinstance(edge, int) and not isinstance(edge, bool) and edge > 0 for edge in shape):
        raise entry.wrong("shape", "whole numbers above 0")
    part = InputPart(tuple(shape), entry.text("dtype", DTYPES))
    entry.finish()
    return part


def _classes(top: Entry) -> tuple[str, ...]:
    names = top.items("classes", 2)
    if not all(isinstance(name, str) for name in names):
        raise top.wrong("classes", "texts")
    return tuple(names)


def _client(entry: Entry) -> ClientPart:
    part = ClientPart(
        file=entry.optional("file", entry.text),
        kind=entry.text("kind"),
        input=entry.optional("input", entry.text),
        feed=entry.text("feed", FEEDS),
        output=entry.optional("output", entry.text),
        gives=entry.text("gives", GIVES),
        features=entry.optional("features", entry.text),
    )
    entry.finish()
    if part.file is not None and (part.input is None or part.output is None):
        raise entry.wrong("input" if part.input is None else "output", "a name: the client has a file")
    return part


def _rejector(entry: Entry) -> RejectorPart:
    specs = tuple(_spec(Entry(one, f"{entry.where}, specs")) for one in entry.items("specs"))
    part = RejectorPart(
        file=entry.text("file"),
        kind=entry.text("kind", REJECTORS),
        fused=entry.flag("fused"),
        int8=entry.flag("int8"),
        uses_client=entry.flag("uses_client"),
        specs=specs,
        platt=tuple(_pairs(entry, one) for one in entry.items("platt")),
        int8_measured=entry.optional("int8_measured", lambda key: entry.entry(key).values)
        if "int8_measured" in entry.values
        else None,
    )
    entry.finish()
    if len(part.platt) != len(specs):
        raise entry.wrong("platt", f"one for each of {len(specs)} specs")
    return part


def _spec(entry: Entry) -> RejectorSpec:
    seed = entry.whole("seed") if "seed" in entry.values else 0
    sync = entry.value("sync") if "sync" in entry.values else 1
    if isinstance(sync, bool) or not isinstance(sync, int | str):
        raise entry.wrong("sync", "a number or text")
    try:
        part = RejectorSpec(entry.text("loss"), entry.optional("costs", lambda key: _costs(entry, key)), seed, sync)
    except SettingsError as error:
        raise entry.wrong("costs", f"prices ({error})") from error
    entry.finish()
    return part


def _pairs(entry: Entry, one: Any) -> tuple[tuple[float, float], tuple[float, float]]:
    good = isinstance(one, list) and len(one) == 2
    good = good and all(isinstance(pair, list) and len(pair) == 2 and all(map(is_number, pair)) for pair in one)
    if not good:
        raise entry.wrong("platt", "two pairs of numbers a rejector")
    (a, b), (c, d) = one
    return (float(a), float(b)), (float(c), float(d))


def _calibration(entry: Entry) -> CalibrationPart:
    part = CalibrationPart(entry.text("file"), entry.whole("n", 1))
    entry.finish()
    return part


def _server(entry: Entry) -> ServerPart:
    part = ServerPart(entry.optional("file", entry.text), entry.text("input"), entry.text("output"))
    entry.finish()
    return part


def _costs(entry: Entry, key: str) -> Costs:
    values = entry.entry(key)
    try:
        return Costs.from_dict({name: values.number(name) for name in values.values})
    except (CostError, KeyError) as error:
        raise entry.wrong(key, f"costs ({error})") from error


def _agreement(top: Entry) -> dict[str, float]:
    entry = top.entry("agreement")
    return {name: entry.number(name) for name in entry.values}


def _name(top: Entry, key: str) -> str:
    found = top.text(key)
    if not NAME.fullmatch(found):
        raise top.wrong(key, "letters, digits, '.', '_' and '-', beginning with a letter or digit")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
