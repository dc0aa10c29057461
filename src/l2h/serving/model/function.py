"""A Python function behind the server, in place of a bundle's model."""

import json
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from l2h.bundle import InputPart, Manifest
from l2h.bundle.manifest import MANIFEST
from l2h.classifiers import CallableClassifier
from l2h.classifiers.base import read_output
from l2h.columns import Columns
from l2h.errors import ClientError
from l2h.files import read_json, write_json
from l2h.functions import load_function, source_of
from l2h.labels import LabelCodec
from l2h.serving.errors import ServingError

#: What stands in place of a bundle's manifest and its model, in the private copy that workers load.
DESCRIPTION, SOURCE = "function.json", "function.py"


@dataclass(frozen=True)
class FunctionManifest:
    """What a function takes and gives; the names are those of a bundle's :class:`l2h.bundle.Manifest`."""

    name: str
    version: str  # 12 hexadecimal digits over all of the rest, and over the source of its module
    input: InputPart
    classes: tuple[str, ...]
    function: str  # module:function, or file.py:function
    source: str | None  # the file of its module; None where it is no Python source
    labels: tuple[str | int | bool, ...] | None = None  # those of the bundle
    gives: str | None = None  # what one number per input of two classes is, by the bundle
    columns: Columns | None = None  # of the bundle's table, which the function gets

    @property
    def codec(self) -> LabelCodec:
        """The classes: their names, and the user's label of each."""
        return LabelCodec(self.classes, self.labels)

    @classmethod
    def read(cls, folder: Path) -> "FunctionManifest":
        """Read what :func:`copy_function` wrote."""
        values = read_json(folder / DESCRIPTION)
        part = InputPart(tuple(values["input"]["shape"]), values["input"]["dtype"])
        labels = values.get("labels")
        columns = None if "columns" not in values else Columns.from_list(values["columns"])
        given = {"input": part, "classes": tuple(values["classes"]), "columns": columns}
        return cls(**values | given | {"labels": None if labels is None else tuple(labels)})

    @property
    def texts(self) -> list[str]:
        """The names of columns that the function does not get: their texts are hashed before they are sent."""
        return [column.name for column in self.columns or () if column.kind == "text"]


@dataclass(frozen=True)
class ModelSource:
    """Where the model comes from: a bundle; or a function, whose inputs and classes a bundle or the rest describes."""

    bundle: str  # its folder; empty for none
    function: str | None = None
    name: str | None = None
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    classes: tuple[str, ...] = ()
    server: str | None = None  # its name, where the bundle has several

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the object that :meth:`to_json` wrote; values that it does not know are left out."""
        values, known = json.loads(text), {field.name for field in fields(cls)}
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**{name: plain[name] for name in known & plain.keys()})

    def to_json(self) -> str:
        """Return text for :meth:`from_json` in another process."""
        return json.dumps(asdict(self))

    def model_name(self, manifest: "Manifest | FunctionManifest") -> str:
        """Return the name on the wire of the model that was copied."""
        if isinstance(manifest, FunctionManifest):
            return manifest.name
        return manifest.model_of(manifest.which_server(self.server))

    def files(self) -> list[Path]:
        """Return the files whose change is a new model, those that a model cannot be without first."""
        manifest = [Path(self.bundle) / MANIFEST] if self.bundle else []
        if self.function is None:
            # The models, for a copy that was not finished when we looked.
            return [*manifest, *sorted(Path(self.bundle).glob("server*"))]
        source = source_of(self.function)
        return manifest + ([] if source is None else [source])


def copy_function(source: ModelSource, target: Path) -> FunctionManifest:
    """Write the source of a function and what it takes and gives into a new folder."""
    assert source.function is not None
    path = source_of(source.function)
    code = b"" if path is None else path.read_bytes()
    name, part, classes, labels = source.name, InputPart(source.shape, source.dtype), source.classes, None
    gives = columns = None
    if source.bundle:
        bundle = Manifest.read(source.bundle)
        server = bundle.which_server(source.server)
        name, part, classes, labels = name or bundle.model_of(server), bundle.input, bundle.classes, bundle.labels
        gives, columns = bundle.servers[server].gives, bundle.columns
    values = {
        "name": name or source.function.rpartition(":")[2].replace(".", "-"),
        "input": asdict(part),
        "classes": list(classes),
        "function": source.function,
        "source": None if path is None else str(path),
        **({} if labels is None else {"labels": list(labels)}),
        **({} if gives is None else {"gives": gives}),
        **({} if columns is None else {"columns": columns.as_list()}),
    }
    version = sha256(json.dumps(values, sort_keys=True).encode() + b"\0" + code).hexdigest()[:12]
    target.mkdir()
    (target / SOURCE).write_bytes(code)
    write_json(target / DESCRIPTION, values | {"version": version})
    return FunctionManifest.read(target)


class FunctionModel:
    """A function of a batch that returns scores (n, K), or labels (n,) as numbers or as names of classes.

    Of a table it gets a pandas DataFrame, as in training, but without its columns of texts.
    """

    def __init__(self, folder: Path) -> None:
        self.manifest = manifest = FunctionManifest.read(folder)
        self.name, self.version, self.classes = manifest.name, manifest.version, manifest.classes
        self.input_shape, self.input_dtype = manifest.input.shape, manifest.input.dtype
        if manifest.source is None:
            function = load_function(manifest.function)
        else:
            function = load_function(manifest.function, Path(manifest.source), (folder / SOURCE).read_bytes())
        self._function = CallableClassifier(function)
        self.labels, self.columns, self.decoded = manifest.codec, manifest.columns, manifest.columns
        self._numbers = {label: k for k, label in enumerate(self.classes)}

    def run(self, X: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return scores (n, K), the largest of which is the answer; a ServingError where the function gives none."""
        output = self._function.raw(X if self.decoded is None else self.decoded.decode(X).to_frame())[0]
        n, classes, gives = len(X), len(self.classes), self.manifest.gives
        if output.shape == (n, 1):
            output = output[:, 0]
        if output.shape == (n,) and output.dtype.kind == "f" and gives is not None:
            try:
                return read_output(output.astype(np.float64), gives, n, classes, "function")[1]
            except ClientError as error:
                raise ServingError(f"{self.manifest.function}: {error}") from error
        if output.shape == (n, classes) and output.dtype.kind in "fiub":
            return output.astype(np.float32)
        if output.shape == (n,) and output.dtype.kind in "iubUO" and self.labels.values is not None:
            try:
                output = self.labels.numbers(output, self.manifest.function)
            except ClientError as error:
                raise ServingError(str(error)) from error
        if output.shape == (n,) and output.dtype.kind in "UO":
            output = np.array([self._numbers.get(label, -1) for label in output.tolist()])
        if output.shape != (n,) or output.dtype.kind not in "iub":
            raise ServingError(
                f"{self.manifest.function} gives {output.dtype} {output.shape} for {n} inputs: expected scores "
                f"({n}, {classes}) or labels ({n},)"
            )
        if ((output < 0) | (output >= classes)).any():
            raise ServingError(f"{self.manifest.function} gives a label that is none of the {classes} classes")
        return np.eye(classes, dtype=np.float32)[output.astype(np.int64)]
