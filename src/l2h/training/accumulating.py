"""SGD with momentum in few passes over a network's weights, for large servers on small batches.

torch's optimizer writes the gradient of every weight and then reads it, the momentum and the weight. Here ``grad`` *is*
the momentum buffer: it is decayed before a step, and gradients are added to it where they arise. In a large linear
layer one matrix product decays the buffer and adds the gradient, which is never written. On a GPU that product and the
update of the layer run on a stream of their own, beside the gradients of the layers below.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.sgd import sgd

from l2h.models import Scaled
from l2h.settings import StageSettings
from l2h.training.loop import Context, make_optimizer

#: Weights of a linear layer from which on a product of its own pays.
LARGE = 1_000_000


class AccumulatingSGD(torch.optim.SGD):
    """SGD with momentum and no weight decay, equal to torch's up to rounding; its state is torch's as well.

    A step is ``zero_grad``, one forward pass in which every large layer is called once, ``backward`` and ``step``.
    """

    def __init__(self, model: nn.Module, lr: float | Tensor, momentum: float, large: int = LARGE) -> None:
        super().__init__(model.parameters(), lr=lr, momentum=momentum)
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.layers = [m for m in model.modules() if type(m) is nn.Linear and m.weight.numel() >= large]
        own = {id(layer.weight) for layer in self.layers}
        self.others: list[Tensor] = [p for p in parameters if id(p) not in own]
        #: The buffers of the others, one after the other: they are decayed at once.
        self.decayed = torch.zeros(sum(p.numel() for p in self.others), device=parameters[0].device)
        parts = self.decayed.split([p.numel() for p in self.others])
        places = [part.as_strided(p.shape, p.stride()) for part, p in zip(parts, self.others, strict=True)]
        self.places = [(layer.weight, torch.zeros_like(layer.weight)) for layer in self.layers]
        self.places += zip(self.others, places, strict=True)
        cuda = parameters[0].is_cuda
        self.stream = torch.cuda.Stream(parameters[0].device) if cuda else None
        #: Streams that still read the weights of before the step: ``backward`` changes none before they are done.
        self.readers: tuple[torch.cuda.Stream, ...] = ()
        self._in_use: list[Tensor] = []  # what the own stream reads, so that its memory is not given to another tensor

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Decay the buffers, to which the next ``backward`` adds the gradients."""
        for parameter, place in self.places:
            state = self.state[parameter]
            restored = state.get("momentum_buffer")
            if restored is not None and restored is not place:
                place.copy_(restored)
            state["momentum_buffer"] = parameter.grad = place
        self.decayed.mul_(self.param_groups[0]["momentum"])
        for layer in self.layers:
            layer.forward = partial(self._forward, layer)  # type: ignore[method-assign]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update what ``backward`` has not updated."""
        for layer in self.layers:
            del layer.forward
        self._update(self.others)
        if self.stream is not None and self._in_use:
            # Only then: a recording must not wait for a stream that has no part in it.
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
            self._in_use.clear()

    def _forward(self, layer: nn.Linear, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return F.linear(x, layer.weight, layer.bias)
        out: Tensor = _Linear.apply(x, layer.weight, layer.bias, self._accumulate)  # type: ignore[no-untyped-call]
        return out

    @torch.no_grad()
    def _accumulate(self, weight: Tensor, gradient: Tensor, x: Tensor) -> None:
        """Add ``gradient^T x`` to the decayed buffer of a large weight, and update the weight."""
        gradient, x = gradient.flatten(0, -2), x.flatten(0, -2)
        if self.stream is None:
            self._product(weight, gradient, x)
            return
        self._in_use += [gradient, x]
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        for reader in self.readers:
            self.stream.wait_stream(reader)
        with torch.cuda.stream(self.stream):
            self._product(weight, gradient, x)

    def _product(self, weight: Tensor, gradient: Tensor, x: Tensor) -> None:
        (buffer,) = self._buffers([weight])
        buffer.addmm_(gradient.t(), x, beta=self.param_groups[0]["momentum"])
        self._update([weight])

    def _update(self, parameters: list[Tensor]) -> None:
        """Subtract the buffers times the learning rate."""
        options: dict[str, Any] = {"fused": True} if self.stream is not None else {"foreach": False}
        lr = self.param_groups[0]["lr"]
        none: list[Tensor | None] = [None] * len(parameters)
        plain = {"weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False}
        sgd(parameters, self._buffers(parameters), none, lr=lr, **plain, **options)  # type: ignore[arg-type]

    def _buffers(self, parameters: list[Tensor]) -> list[Tensor]:
        return [self.state[parameter]["momentum_buffer"] for parameter in parameters]


class _Linear(torch.autograd.Function):
    """A linear layer that hands the factors of its weight's gradient to a function and returns no such gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, take: Callable[..., None]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.take = take
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        below = gradient @ weight if ctx.needs_input_grad[0] else None
        ctx.take(weight, gradient, x)
        bias = gradient.flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
        return below, None, bias, None


def server_optimizer(settings: StageSettings, server: nn.Module, context: Context) -> torch.optim.Optimizer:
    """Return the optimizer of a server: an :class:`AccumulatingSGD` where it computes what the settings ask for.

    It does for L2H's own networks, which call each layer once a pass. A module of the user's may do otherwise.
    """
    usual = make_optimizer(settings, list(server.parameters()))
    own = isinstance(server, Scaled) and server.plan is not None
    plain = settings.optimizer == "sgd" and settings.momentum > 0 and not settings.weight_decay
    if not own or not plain or context.settings.precision == "bf16":
        return usual
    if context.device.type == "cuda":
        # In torch's usual order of channels a GPU's convolutions copy what they read and write.
        server.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return AccumulatingSGD(server, usual.param_groups[0]["lr"], settings.momentum)
