"""Torch modules as ONNX graphs, and two graphs as one."""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from l2h.classifiers import FLOOR, TorchClassifier
from l2h.export.errors import ExportError
from l2h.models import client_view

if TYPE_CHECKING:
    from onnx import ModelProto

#: Prefix of the rejector's names in a fused graph.
PREFIX = "rejector/"
_LOWEST = float(np.log(FLOOR))


class ClientGraph(nn.Module):
    """A torch client on raw samples: its log-probabilities (n, K) and, where the rejector reads them, its features.

    Args:
        client: on the CPU.
        reads: what its output is: ``scores`` (n, K), ``probability`` (n, K), ``margin`` (n,) of two classes, or
            ``label`` (n,).
        classes: K.
        features: whether its features are wanted.
    """

    def __init__(self, client: TorchClassifier, reads: str, classes: int, features: bool) -> None:
        super().__init__()
        self.module = client.callable_module
        self.layer = client.feature_layer
        self.reads, self.classes, self.features = reads, classes, features

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """One or two outputs."""
        if x.dtype == torch.uint8:
            x = x.float() / 127.5 - 1
        kept: list[Tensor] = []
        hook = None
        if self.features and self.layer is not None:
            layer = dict(self.module.named_modules())[self.layer]
            hook = layer.register_forward_hook(lambda _m, _i, out: kept.append(out))
        scores = self.module(x)
        if hook is not None:
            hook.remove()
        elif self.features:
            kept.append(self.module.embed(x))
        log_probability = self._log_probability(scores)
        return (log_probability, kept[0].flatten(1).float()) if self.features else (log_probability,)

    def _log_probability(self, scores: Tensor) -> Tensor:
        """By the rules of :class:`l2h.classifiers.Classifier`."""
        if self.reads == "label":
            label = scores.reshape(-1, 1).long()
            one_hot = label == torch.arange(self.classes)
            return torch.where(one_hot, 0.0, _LOWEST)
        if self.reads == "margin":
            margin = scores.reshape(-1, 1).float()
            return torch.log_softmax(torch.cat([torch.zeros_like(margin), margin], dim=1), dim=1)
        if self.reads == "probability":
            return scores.float().clamp(min=FLOOR).log()
        return torch.log_softmax(scores.float(), dim=1)


class RejectorGraph(nn.Module):
    """R rejectors as one graph, (n, R, 2), on samples and what the client said of them; without students' scores."""

    def __init__(self, rejectors: Sequence[nn.Module]) -> None:
        super().__init__()
        self.rejectors = nn.ModuleList(rejectors)
        self.uses_client = bool(getattr(rejectors[0], "uses_client", False))

    def forward(self, x: Tensor, log_probability: Tensor | None = None, embedding: Tensor | None = None) -> Tensor:
        """Scores."""
        if not self.uses_client:
            return torch.stack([rejector(x)[:, :2] for rejector in self.rejectors], dim=1)
        assert log_probability is not None
        view = client_view(log_probability, embedding)
        return torch.stack([rejector(x, view)[:, :2] for rejector in self.rejectors], dim=1)


def on_cpu(client: TorchClassifier) -> TorchClassifier:
    """The same client, its weights copied to the CPU: what is measured on a GPU is rounded otherwise."""
    with quiet():
        module: Any = copy.deepcopy(client.module)
        if client.kind != "exported program":
            module = module.cpu()
        elif any(tensor.device.type != "cpu" for tensor in module.state_dict.values()):
            from torch.export.passes import move_to_device_pass

            module = move_to_device_pass(module, "cpu")
        moved = TorchClassifier(module, client.feature_layer)
    moved.probabilities = client.probabilities
    return moved


def to_onnx(module: nn.Module, example: Sequence[Tensor], inputs: Sequence[str], outputs: Sequence[str]) -> ModelProto:
    """A module as an ONNX graph whose first axis is free.

    Args:
        module: any; put into evaluation mode.
        example: a batch of two for each input.
        inputs: their names.
        outputs: names of what it gives.

    Raises:
        ExportError: the exporter could not.
    """
    for part in module.modules():
        part.training = False  # not eval(), which an exported program refuses
    scripted = any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())
    try:
        with quiet(), torch.no_grad():
            try:
                model = _by_export(module, example, inputs, outputs)
            except Exception:  # the exporter's own errors have no common base
                if not scripted:
                    raise
                model = _by_tracing(module, example, inputs, outputs)
    except Exception as error:  # as above
        reason = str(error).strip().splitlines()
        raise ExportError(f"it cannot be exported to ONNX: {type(error).__name__}: {' '.join(reason)[:500]}") from error
    return stripped(model)


def stripped(model: ModelProto) -> ModelProto:
    """Without notes on where each node came from: paths of this machine are nobody's business."""
    graph = model.graph
    del graph.value_info[:]
    for entry in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        entry.ClearField("doc_string")
        if hasattr(entry, "metadata_props"):
            del entry.metadata_props[:]
    return model


def can_fuse(client: ModelProto, rejector: ModelProto) -> bool:
    """Whether both are written in the same operator sets."""
    sets: list[dict[str, int]] = [{o.domain: o.version for o in model.opset_import} for model in (client, rejector)]
    return all(sets[1].get(domain, version) == version for domain, version in sets[0].items())


def fuse(client: ModelProto, rejector: ModelProto) -> ModelProto:
    """One graph of ``x`` that runs the client once: its ``log_probability``, and the rejector's ``scores``."""
    from onnx import ModelProto, checker, compose

    joined = ModelProto()
    joined.CopyFrom(client)
    other = compose.add_prefix(rejector, PREFIX)
    # The rejector reads the client's tensors by the client's names, and gives its own under their plain one.
    plain = {f"{PREFIX}{entry.name}": entry.name for entry in (*rejector.graph.input, *rejector.graph.output)}
    for node in other.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = plain.get(name, name)
    joined.graph.node.extend(other.graph.node)
    joined.graph.initializer.extend(other.graph.initializer)
    kept = [entry for entry in joined.graph.output if entry.name == "log_probability"]
    del joined.graph.output[:]
    joined.graph.output.extend([*kept, *rejector.graph.output])
    there = {entry.domain for entry in joined.opset_import}
    joined.opset_import.extend([entry for entry in other.opset_import if entry.domain not in there])
    joined.functions.extend(other.functions)
    joined.ir_version = max(client.ir_version, rejector.ir_version)
    checker.check_model(joined)
    return joined


def _by_export(
    module: nn.Module, example: Sequence[Tensor], inputs: Sequence[str], outputs: Sequence[str]
) -> ModelProto:
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        module,
        tuple(example),
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_shapes=tuple({0: batch} for _ in example),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    return program.model_proto


def _by_tracing(
    module: nn.Module, example: Sequence[Tensor], inputs: Sequence[str], outputs: Sequence[str]
) -> ModelProto:
    """For TorchScript, which ``torch.export`` cannot look into where it was not traced."""
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traced.onnx"
        torch.onnx.export(
            torch.jit.trace(module, tuple(example)),
            tuple(example),
            path,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes={name: {0: "batch"} for name in (*inputs, *outputs)},
            opset_version=20,
            dynamo=False,
        )
        return onnx.load(path)


@contextmanager
def quiet() -> Iterator[None]:
    """The exporter warns of operators of packages that are not installed, and of itself."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
