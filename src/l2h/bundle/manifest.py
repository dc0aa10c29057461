"""``manifest.json``: what a bundle holds, how its parts fit together, and the hash of every file, which is verified."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from l2h.bundle import parts
from l2h.bundle.parts import BundleError, ClientPart, FilePart, InputPart, ServerPart, read_values
from l2h.bundle.signing import check_signature
from l2h.columns import Columns
from l2h.costs import Costs
from l2h.decision import CLIENT, STUDENT, Answerer, AnyCosts
from l2h.errors import DataError, shown
from l2h.files import parse_json, read_whole, write_atomically
from l2h.labels import LabelCodec

SCHEMA = 3
#: Keys of schema 2. A bundle without them is written as one of schema 1, which older versions read. Schema 3 is for
#: servers with names and a second opinion: ``servers`` and ``prices`` stand where ``server`` and ``costs`` stood.
_SECOND = ("columns", "labels")
_NAMED = {"server": "servers", "costs": "prices"}
#: What a server is called that was given no name.
SERVER_NAME = "server"
MANIFEST = "manifest.json"
CALIBRATION = "calibration.npz"
#: Held-out scores kept for bounds on asking.
HELD_OUT = 2000
_LARGEST = 16 * 2**20
_BLANK = "0" * 64


@dataclass(frozen=True)
class Manifest:
    """What a bundle is."""

    name: parts.PlainName  # of the model, on the wire too
    version: parts.PlainName  # 12 hexadecimal digits over the hashes of the files and the calibration: one per content
    created: parts.Text  # when, in ISO form
    l2h: parts.Text  # the version that wrote it
    input: InputPart
    classes: Annotated[tuple[str, ...], Meta(min_length=2)]  # names in the order of the labels
    preprocessing: parts.Text  # "inside": the files take raw samples, and scaling is part of them
    client: ClientPart
    rejector: parts.RejectorPart
    calibration: parts.CalibrationPart | None  # held-out scores, for bounds on asking; None without
    prices: Mapping[parts.PlainName, Costs]  # those it was made for, by server
    servers: Annotated[Mapping[parts.PlainName, ServerPart], Meta(min_length=1)]  # by name, in their order
    files: Mapping[str, FilePart]  # by name
    # Largest difference of each exported file from the original, in units of its largest output.
    agreement: Mapping[str, parts.Finite] = field(default_factory=dict)
    columns: Columns | None = None  # of the training table, which inputs are encoded by; None where they are arrays
    labels: tuple[str | int | bool, ...] | None = None  # the user's label of each class; None where they are 0 .. K - 1
    second_opinion: bool = False  # whether the rejector's student may answer

    def __repr__(self) -> str:
        about = f"inputs {tuple(self.input.shape)} {self.input.dtype}, {len(self.classes)} classes"
        return f"Manifest({self.name!r}, version {self.version}: {about}, files {', '.join(self.files)})"

    @classmethod
    def read(cls, folder: str | Path, verify_key: bytes | None = None) -> Manifest:
        """Read and check the manifest of a bundle; :func:`l2h.bundle.verify` looks at its files.

        Where a key is given, as :func:`l2h.bundle.signing.read_verify_key` returns it, the signature must fit.
        """
        path = Path(folder) / MANIFEST
        try:
            data = read_whole(path, _LARGEST)
        except FileNotFoundError:
            raise BundleError(f"{folder} holds no bundle: {MANIFEST} is missing; l2h export writes one") from None
        except OSError as error:
            raise BundleError(f"cannot read {path}: {error.strerror or error}") from error
        if verify_key is not None:
            check_signature(data, folder, verify_key)
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
        values = asdict(self)
        values["rejector"]["specs"] = [spec.as_dict() for spec in self.rejector.specs]
        values["client"] = _with_plain_preprocessing(self.client)
        servers = {name: _with_plain_preprocessing(part) for name, part in self.servers.items()}
        values["servers"] = {
            name: {key: value for key, value in part.items() if key not in ("gives", "feed") or value is not None}
            for name, part in servers.items()
        }
        values["prices"] = {name: costs.as_dict() for name, costs in self.prices.items()}
        if self.input.size is None:
            del values["input"]["size"]
        if self.columns is not None:
            values["columns"] = self.columns.as_list()
        for key in _SECOND:
            if values[key] is None:
                del values[key]
        schema = 1 if not any(key in values for key in _SECOND) else 2
        if self.named or self.second_opinion:
            schema = SCHEMA
        else:
            del values["second_opinion"]
            old = {several: one for one, several in _NAMED.items()}
            values = {old.get(key, key): value[SERVER_NAME] if key in old else value for key, value in values.items()}
        plain: dict[str, Any] = json.loads(json.dumps({"schema": schema, **values}))  # lists for tuples
        return plain

    @property
    def named(self) -> bool:
        """Whether the servers have names: there are several, or the only one was given one."""
        return tuple(self.servers) != (SERVER_NAME,)

    @property
    def costs(self) -> AnyCosts:
        """The prices that it was made for, by server where there are several."""
        return next(iter(self.prices.values())) if len(self.prices) == 1 else self.prices

    @property
    def answerers(self) -> tuple[Answerer, ...]:
        """Those who may answer, one per column of the rejector's scores."""
        local = [CLIENT, *([STUDENT] if self.second_opinion else [])]
        return (*local, *(Answerer(name, remote=True) for name in self.servers))

    def which_server(self, name: str | None) -> str:
        """Return the name of a server, None for the only one; raise where there is no such server."""
        names = ", ".join(self.servers)
        if name is None and len(self.servers) > 1:
            raise BundleError(f"{self.name} has several servers: say which, of {names}")
        if name is not None and name not in self.servers:
            raise BundleError(f"{self.name} has no server {shown(name)}; it has: {names}")
        return next(iter(self.servers)) if name is None else name

    def model_of(self, server: str) -> str:
        """Return the name of a server's model on the wire."""
        return f"{self.name}-{server}" if self.named else self.name

    @cached_property
    def codec(self) -> LabelCodec:
        """The classes: their names, and the user's label of each."""
        return LabelCodec(self.classes, self.labels)

    def files_of(self, side: str, server: str | None = None) -> dict[str, FilePart]:
        """Return the files that a side needs: ``device`` or ``server``; of the servers those of one, if it is named."""
        if side not in parts.SIDES:
            raise BundleError(f"side={side!r} is unknown; known: {', '.join(parts.SIDES)}")
        others = {part.file for name, part in self.servers.items() if server not in (None, name)}
        return {name: part for name, part in self.files.items() if part.side == side and name not in others}


def content_version(files: Mapping[str, FilePart], platt: Any, labels: tuple[str | int | bool, ...] | None) -> str:
    """Return the version of a bundle with these files, scales and shifts, and labels."""
    content = {"files": {name: part.sha256 for name, part in files.items()}, "platt": platt}
    if labels is not None:
        content["labels"] = labels
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def read_files(folder: str | Path, manifest: Manifest, side: str, server: str | None = None) -> dict[str, bytes]:
    """Return the bytes of every file that a side (``device`` or ``server``) needs, or one of the servers; verified."""
    return {name: read_file(folder, manifest, name) for name in manifest.files_of(side, server)}


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


@dataclass(frozen=True)
class _Header:
    schema: Annotated[int, Meta(ge=1)]
    digest: parts.Hash


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
    found = {key: value for key, value in values.items() if key not in head}
    for key, read in parts.READERS.items():
        if key in found:
            found[key] = read(found[key], f"{where}, {key}")
    manifest = read_values(_with_names(found, header.schema, where), Manifest, where)
    _check_answerers(manifest, where)
    if manifest.columns is not None and manifest.input != InputPart((manifest.columns.width,), "float32"):
        raise BundleError(f"{where} is damaged: its columns become {manifest.columns.width} numbers of float32")
    if manifest.columns is None and any(part.feed is not None for part in manifest.servers.values()):
        raise BundleError(f"{where} is damaged: its server takes columns, and 'columns' is missing")
    try:
        _ = manifest.codec
    except DataError as error:
        raise BundleError(f"{where} is damaged: 'labels' is {shown(manifest.labels)} ({error})") from error
    used = [(manifest.client.file, "device"), (manifest.rejector.file, "device")]
    used += [(part.file, "server") for part in manifest.servers.values()]
    if manifest.calibration is not None:
        used.append((manifest.calibration.file, "device"))
    for name, side in used:
        if name is not None and (name not in manifest.files or manifest.files[name].side != side):
            raise BundleError(f"{where} is damaged: {shown(name)} is not among the files of the {side}")
    return manifest


def _with_names(found: dict[str, Any], schema: int, where: str) -> dict[str, Any]:
    """Return the keys of schema 3, in which every server has a name."""
    for one, several in _NAMED.items():
        key, other = (several, one) if schema == SCHEMA else (one, several)
        if other in found:
            raise BundleError(f"{where} is damaged: unknown key {other!r}")
        if key not in found:
            raise BundleError(f"{where} is damaged: {key!r} is missing")
    if schema == SCHEMA:
        return found
    return {_NAMED.get(key, key): {SERVER_NAME: value} if key in _NAMED else value for key, value in found.items()}


def _check_answerers(manifest: Manifest, where: str) -> None:
    """See that every server has its prices, and every answerer its place."""
    if set(manifest.prices) != set(manifest.servers):
        names = [", ".join(each) for each in (manifest.prices, manifest.servers)]
        raise BundleError(f"{where} is damaged: 'prices' are those of {names[0]}, and 'servers' are {names[1]}")
    count = len(manifest.answerers)
    if len({answerer.name for answerer in manifest.answerers}) != count:
        raise BundleError(f"{where} is damaged: 'servers' has the name of an answerer on the device")
    if any(len(pairs) != count for pairs in manifest.rejector.platt):
        raise BundleError(
            f"{where}, rejector is damaged: 'platt' is {shown(manifest.rejector.platt)}, expected one pair for each of "
            f"{count} answerers"
        )


def _with_plain_preprocessing(part: ClientPart | ServerPart) -> dict[str, Any]:
    """Return the values of a part; a bundle without preprocessing is read by version 0.1, too."""
    values = asdict(part)
    del values["preprocessing"]
    return values if part.preprocessing is None else values | {"preprocessing": part.preprocessing.as_dict()}
