"""Clients that are networks: torch modules and programs, and ONNX files, with the tensors inside them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.classifiers.base import Array, Classifier, Inputs, fixed_batch, in_batches, to_array
from l2h.classifiers.external import class_labels, external_files, open_model
from l2h.classifiers.features import EMBED, give_out, inner_tensors, listening, pool, spread_evenly, unknown_tensor
from l2h.classifiers.preprocessing import Preprocessing
from l2h.classifiers.tabular import model_feeds
from l2h.columns import EncodedTable
from l2h.errors import ClientError, shown
from l2h.files import read_whole

#: The output that an export adds to a file whose columns were put into the order of the labels.
PLACED = "all_probabilities"


class TorchClassifier(Classifier):
    """A torch module, TorchScript program or ``torch.export`` program, called with a float32 batch.

    ``feature_layer`` is the dotted name of the submodule whose output is its last features; where None, the module's
    own method ``embed(x)`` is used if it has one. ``pooled`` features are averaged over the image, or over the tokens.
    """

    usual_scale = "-1..1"
    tries_scales = True

    def __init__(self, module: Any, feature_layer: str | None = None, pooled: bool = False) -> None:
        super().__init__()
        import torch

        self.module = module
        self.kind = "torch module"
        if isinstance(module, torch.export.ExportedProgram):
            self.kind = "exported program"
        elif isinstance(module, torch.jit.ScriptModule):
            self.kind = "TorchScript program"
        #: The torch module to call: that of an exported program, else ``module`` itself.
        self.callable_module = module.module() if self.kind == "exported program" else module
        self.feature_layer, self.pooled = feature_layer, pooled
        #: Whether it gives out the features that it has.
        self.shows_features = True
        if feature_layer is not None and feature_layer not in self.layers:
            raise ClientError(f"the client has no layer {feature_layer!r}; known: {', '.join(self.layers)}")

    @property
    def has_features(self) -> bool:
        return self.shows_features and (self.feature_layer is not None or self._has_embed)

    @property
    def _has_embed(self) -> bool:
        return callable(getattr(self.callable_module, EMBED, None))

    @property
    def layers(self) -> dict[str, Any]:
        return {name: layer for name, layer in self.callable_module.named_modules() if name}

    @property
    def _readable(self) -> dict[str, Any]:
        return self.layers if self.kind == "torch module" else {}  # a program does not run its parts by their names

    def with_features(self, name: str | None) -> TorchClassifier:
        chosen = copy.copy(self)
        chosen.shows_features, chosen.pooled = name is not None, True
        chosen.feature_layer = None if name == EMBED and self._has_embed else name
        if chosen.feature_layer is not None and name not in self._readable:
            raise unknown_tensor(str(name), [EMBED] * self._has_embed + list(self._readable))
        return chosen

    def inner_features(self, X: Inputs) -> dict[str, Array]:
        def run(x: Any) -> dict[str, Any]:
            with listening(self._readable) as kept:
                self.callable_module(x)
            return kept | ({EMBED: self.callable_module.embed(x)} if self._has_embed else {})

        found = {}
        for name, tensor in self._run(run, self.prepared(X)).items():
            with suppress(ClientError):  # what is no tensor of numbers
                found[name] = pool(tensor, name).cpu().numpy()
        return found

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        """Return scores and features in evaluation mode; the module's own mode is put back afterwards."""
        scores, features = self._run(self.forward, X)
        return scores.detach().cpu().numpy(), None if features is None else features.cpu().numpy()

    def _run(self, function: Callable[[Any], Any], X: Array) -> Any:
        import torch

        module = self.callable_module
        first = next(iter(module.parameters()), None)
        x = torch.from_numpy(X).to("cpu" if first is None else first.device)
        modes = [(m, m.training) for m in module.modules()]
        if self.kind != "exported program":
            module.eval()
        try:
            with torch.no_grad():
                return function(x)
        except (RuntimeError, TypeError, AssertionError) as error:
            raise ClientError(f"the {self.kind} failed on inputs of shape {X.shape}: {error}") from error
        finally:
            for m, training in modes:
                m.training = training

    def forward(self, x: Any, features: bool = True) -> tuple[Any, Any]:
        """Return the module's output for a batch of tensors, and its features as float32 (n, E) or None."""
        module = self.callable_module
        if not (features and self.has_features):
            return module(x), None
        if self.feature_layer is None:
            scores, found = module(x), module.embed(x)
        else:
            name = self.feature_layer
            with listening({name: self.layers[name]}) as kept:
                scores = module(x)
            if name not in kept:
                raise ClientError(f"the client does not run its layer {name!r}, or not by its name: choose another")
            found = kept[name]
        return scores, pool(found, self.feature_layer or EMBED) if self.pooled else found.flatten(1).float()

    def weights(self) -> list[bytes]:
        state = self.module.state_dict if self.kind == "exported program" else self.module.state_dict()
        out = []
        for name, tensor in sorted(state.items()):
            out += [name.encode(), tensor.detach().cpu().contiguous().numpy().tobytes()]
        return out


class OnnxClassifier(Classifier):
    """An ONNX file, run by onnxruntime.

    If the file has several inputs, or one of texts, they get the columns of a table by their names. Else its first
    input gets the batch: as it is where it takes uint8, else as float32; ``flat`` rows, unscaled, are what models
    exported from scikit-learn want (where None, the file's own input shape decides). A file that takes a fixed number
    of samples at once is run as often as it needs. ``scores`` and ``features`` name outputs; where ``scores`` is None,
    it is the first floating output of two axes, or else the first.
    """

    kind = "ONNX model"

    def __init__(
        self, path: str | Path, scores: str | None = None, features: str | None = None, flat: bool | None = None
    ) -> None:
        super().__init__()
        self.path = Path(path)
        if not self.path.is_file():
            raise ClientError(f"no ONNX file at {path}")
        try:
            self.data = self.path.read_bytes()
            #: The files beside it that hold its weights, by name; none where it holds them itself.
            self.beside = {name: self._read_beside(name) for name in sorted(external_files(self.data))}
            self.session = self._open(self.data)
        except Exception as error:  # onnxruntime raises many types of its own, all plain Exceptions
            raise ClientError(f"cannot load {path}: {error}") from error
        self.inputs = self.session.get_inputs()
        self.input = self.inputs[0]
        outputs = {o.name: o for o in self.session.get_outputs()}
        for name in (scores, features):
            if name is not None and name not in outputs:
                raise ClientError(f"{path} has no output {name!r}; known: {', '.join(outputs)}")
        floats = [o.name for o in outputs.values() if o.type == "tensor(float)" and len(o.shape) == 2]
        # skl2onnx gives one dictionary per sample unless it is told not to.
        maps = [o.name for o in outputs.values() if o.type.startswith("seq(map(")]
        self.scores = scores or (floats or maps or list(outputs))[0]
        named = self.scores in floats and self.scores != PLACED
        #: The labels of the scores' columns, where they are text and the file has them.
        self.classes = (
            class_labels(self.data) if named and "tensor(string)" in (o.type for o in outputs.values()) else ()
        )
        self.features = features
        self.flat = len(self.input.shape) == 2 if flat is None else flat
        self.tries_scales = self.input.type != "tensor(uint8)"
        self.usual_scale = "-1..1" if self.tries_scales and not self.flat else None

    def _open(self, data: bytes) -> Any:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        return open_model(data, options, self.beside)

    def with_features(self, name: str | None) -> OnnxClassifier:
        chosen = copy.copy(self)
        chosen.features = None
        if name is not None:
            tensors = inner_tensors(self.data, self.scores)
            if name not in tensors:
                raise unknown_tensor(name, tensors)
            chosen.data, (chosen.features,) = give_out(self.data, {name: tensors[name]})
            chosen.session = self._open(chosen.data)
        return chosen

    def inner_features(self, X: Inputs) -> dict[str, Array]:
        tensors = inner_tensors(self.data, self.scores)
        names = spread_evenly(list(tensors))
        if not names:  # a tree, for one; onnxruntime would give everything that was not asked for
            return {}
        data, outputs = give_out(self.data, {name: tensors[name] for name in names})
        session, given = self._open(data), self.prepared(X)
        found = self._run_session(session, outputs, given)
        return {name: values for name, values in zip(names, found, strict=True) if len(values) == len(X)}

    @property
    def places(self) -> npt.NDArray[np.int64] | None:
        """The class number of each column of its scores, where the file says it; else None."""
        if self.labels is None or sorted(self.classes) != sorted(map(str, self.labels.values or ())):
            return None
        return self.labels.places(self.classes, self.kind)

    def feed(self, shape: Sequence[int]) -> Preprocessing:
        wanted = replace(self.preprocessing, flat=True) if self.flat else self.preprocessing
        return wanted.completed(shape, self.input.shape[1:], self.usual_scale)

    def from_table(self, X: EncodedTable) -> Any:
        feeds = model_feeds(X, self.inputs)
        first = feeds[self.input.name]
        return feeds if len(feeds) > 1 or first.dtype == object else first

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        names = [self.scores] + ([self.features] if self.features else [])
        out = self._run_session(self.session, names, X)
        scores, places = to_array(out[0], self.labels), self.places
        if places is not None and scores.shape[1:] == places.shape:
            scores = scores[:, np.argsort(places)]
        return scores, out[1] if self.features else None

    def _run_session(self, session: Any, names: list[str], X: Any) -> list[Any]:
        feeds = X if isinstance(X, dict) else {self.input.name: X}
        batch = None if isinstance(X, dict) else fixed_batch(self.input.shape)

        def run(x: Array) -> Any:
            return session.run(names, {**feeds, self.input.name: x})

        try:
            return list(run(feeds[self.input.name]) if batch is None else in_batches(run, X, batch))
        except ClientError:
            raise
        except Exception as error:  # as above
            shapes = ", ".join(f"{name} {values.shape}" for name, values in feeds.items())
            hint = (
                "; layout, size and scale can be given (--client-layout NHWC, ...)"
                if len(X) and np.ndim(X) == 4
                else ""
            )
            raise ClientError(f"{self.path.name} failed on inputs {shapes}: {error}{hint}") from error

    def weights(self) -> list[bytes]:
        """Return the file, as it was loaded, and the files beside it that hold its weights, if any."""
        return [self.data, *self.beside.values()]

    def _read_beside(self, name: str) -> bytes:
        path = self.path.parent / name
        if path.name != name:
            raise ClientError(f"it keeps weights in {shown(name)}, which does not lie beside it")
        return read_whole(path, path.stat().st_size)
