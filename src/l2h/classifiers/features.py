"""Tensors inside a client that a rejector can read as its features: their names, and a model that gives them out.

Maps (n, C, H, W) are averaged over the image and tokens (n, T, C) over the tokens, so that the features stay few.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from l2h.errors import ClientError

#: What a torch module's own method ``embed`` is called among its tensors.
EMBED = "embed"
#: How many tensors of a large model are looked at, spread evenly over it.
MOST = 32
_FLOAT = 1  # of ONNX
_OUTPUT = "l2h_features"


def unknown_tensor(name: str, known: Iterable[str]) -> ClientError:
    """Return the error about a tensor that a client does not have, with the names nearest to it."""
    import difflib

    names = list(known)
    near = difflib.get_close_matches(name, names, 8, 0.4)
    few = near or names[:8]
    more = f" and {len(names) - len(few)} more" if len(names) > len(few) else ""
    return ClientError(
        f"the client has no tensor {name!r}; {'near it are' if near else 'it has'} {', '.join(few)}{more}"
        if names
        else f"the client has no tensor {name!r}, and none that can be read by a name: export it as an ONNX file"
    )


def pool(tensor: Any, name: str) -> Any:
    """Return a torch tensor (n, E), (n, T, C) or (n, C, H, W) as features (n, E)."""
    axes = {2: None, 3: 1, 4: (2, 3)}
    if getattr(tensor, "ndim", 0) not in axes or not tensor.is_floating_point():
        raise ClientError(f"{name!r} of the client is no tensor of numbers (n, E), (n, T, C) or (n, C, H, W)")
    axis = axes[tensor.ndim]
    return (tensor if axis is None else tensor.mean(axis)).float()


def spread_evenly(names: list[str]) -> list[str]:
    """Return at most :data:`MOST` of the names, the last among them."""
    step = max(1, -(-len(names) // MOST))
    return names[::-1][::step][::-1]


@contextmanager
def listening(layers: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give a dictionary into which the first output of each layer goes while a torch module is run."""
    kept: dict[str, Any] = {}

    def keep(name: str, _module: Any, _inputs: Any, output: Any) -> None:
        kept.setdefault(name, output)

    hooks = [layer.register_forward_hook(partial(keep, name)) for name, layer in layers.items()]
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()


def inner_tensors(data: bytes, scores: str) -> dict[str, int]:
    """Return the number of axes of every tensor of an ONNX model that can be features, in the order of the model."""
    import onnx

    model = onnx.shape_inference.infer_shapes(onnx.load_model_from_string(data))
    graph = model.graph
    known = {entry.name: entry.type.tensor_type for entry in (*graph.value_info, *graph.output)}
    batch = _fixed_axis(graph.input[0].type.tensor_type)
    made = [name for node in graph.node for name in node.output if name in known and name != scores]
    return {
        name: len(known[name].shape.dim)
        for name in made
        if known[name].elem_type == _FLOAT
        and len(known[name].shape.dim) in (2, 3, 4)
        and _fixed_axis(known[name]) in (batch, 0)
        and not name.startswith(_OUTPUT)
    }


def _fixed_axis(kind: Any) -> int:
    """Return the size of a tensor's first axis; 0 where it is free or not known."""
    return int(kind.shape.dim[0].dim_value) if kind.shape.dim else 0


def give_out(data: bytes, tensors: Mapping[str, int]) -> tuple[bytes, list[str]]:
    """Return an ONNX model with further outputs, the features of these tensors, and the outputs' names.

    ``tensors`` has the number of axes of each.
    """
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load_model_from_string(data)
    taken = {name for node in model.graph.node for name in node.output}
    outputs = []
    for name, axes in tensors.items():
        number = 0
        while (output := f"{_OUTPUT}{number or ''}") in taken:
            number += 1
        source = name
        steps: list[tuple[str, dict[str, Any]]] = [("Transpose", {"perm": [0, 2, 1]})] if axes == 3 else []
        steps += [("GlobalAveragePool", {})] if axes > 2 else []
        for kind, attributes in steps:
            target = f"{output}_{kind}"
            model.graph.node.append(helper.make_node(kind, [source], [target], **attributes))
            source = target
        model.graph.node.append(helper.make_node("Flatten", [source], [output], axis=1))
        model.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, [None, None]))
        taken.add(output)
        outputs.append(output)
    return model.SerializeToString(), outputs
