"""Named models: how to build one, and the training settings that suit it."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from l2h.errors import ModelError, UnknownNameError
from l2h.models.networks import MLP, AlexNet, InputScale, LeNet5, Scaled
from l2h.models.rejectors import require_known
from l2h.models.vit import ViT
from l2h.settings import StageSettings

_BUILDERS: dict[str, Callable[..., nn.Module]] = {"lenet5": LeNet5, "alexnet": AlexNet, "vit": ViT, "mlp": MLP}
_RECOMMENDED = {
    "lenet5": StageSettings(epochs=40, batch=128, optimizer="adamw", lr=2e-3, weight_decay=1e-2),
    "alexnet": StageSettings(epochs=40, batch=128, optimizer="sgd", lr=2e-2, weight_decay=5e-4),
    "vit": StageSettings(epochs=60, batch=256, optimizer="adamw", lr=1e-3, weight_decay=5e-2),
    "mlp": StageSettings(epochs=40, batch=128, optimizer="adamw", lr=2e-3, weight_decay=1e-2),
}
NAMES = tuple(_BUILDERS)


def build(name: str, input_shape: tuple[int, ...], outputs: int, **options: Any) -> nn.Module:
    """Return a fresh network of a name; ``options`` are its own, such as ``width=2`` for ``lenet5``.

    Example:
        >>> build("lenet5", (3, 32, 32), 10)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    builder = _BUILDERS.get(name)
    if builder is None:
        raise UnknownNameError(f"unknown model {name!r}; known: {', '.join(NAMES)}")
    known = [p for p in inspect.signature(builder).parameters if p not in ("input_shape", "outputs")]
    require_known(options, known, name)
    try:
        return builder(input_shape, outputs, **options)
    except (TypeError, RuntimeError, ZeroDivisionError) as error:  # raised by Python and torch for unusable values
        raise ModelError(f"{name} cannot be built with {options}: {error}") from error


def build_scaled(
    name: str, input_shape: tuple[int, ...], outputs: int, scale: InputScale | None = None, **options: Any
) -> Scaled:
    """Return a named network behind its input scaling, with the plan by which :func:`rebuild` builds it again."""
    plan = {"name": name, "input_shape": list(input_shape), "outputs": outputs, "options": dict(options)}
    return Scaled(scale or InputScale(input_shape), build(name, input_shape, outputs, **options), plan)


def rebuild(plan: Mapping[str, Any]) -> Scaled:
    """Return a network as :func:`build_scaled` made it; its weights and scaling are still to be loaded."""
    return build_scaled(plan["name"], tuple(plan["input_shape"]), plan["outputs"], **plan["options"])


def recommended(name: str | None) -> StageSettings:
    """Return training settings that suit the named model; those of ``mlp`` for a user's own module (None)."""
    return _RECOMMENDED.get(name or "mlp", _RECOMMENDED["mlp"])


def multiply_adds(model: nn.Module, *inputs: torch.Tensor) -> int:
    """Return the multiply-adds of one forward pass over ``inputs``, as torch's own counter counts them."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    modes = [(part, part.training) for part in model.modules()]
    for part, _ in modes:
        part.training = False  # not eval(), which an exported program refuses
    try:
        with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # the counter misses fused attention on a CPU
            model(*inputs)
    finally:
        for part, training in modes:
            part.training = training
    return int(counter.get_total_flops() // 2)
