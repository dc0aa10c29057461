"""Many rejectors at once, as one stack of weights; one rejector is the stack of one.

The rejectors of a stack share architecture and samples and differ in weights (their seeds), costs, loss and, under
Algorithm 2, sync interval. Each gets exactly the update it would get alone: the stack's loss is the sum of theirs,
and the optimizers work element by element.

The trunks of L2H's own rejectors run as one network: convolutions with one group per net, matrix products with one
batch per net. ``vmap`` computes the same, but it moves the axis of the nets between layers and copies the activations.
Here the channels of the nets stay side by side, and the first layer, whose input all nets share, is one convolution.
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from l2h.errors import ModelError
from l2h.models.rejectors import AttachedRejector, SeparateRejector
from l2h.models.separable import Residual
from l2h.rows import batch_rows
from l2h.training.checkpoint import under
from l2h.training.loop import Context
from l2h.training.streaming import BATCH, Inputs

#: Layers that need no weights and act on every channel alike.
_PLAIN = (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)


class RejectorBatch:
    """R rejectors of one architecture as stacked tensors, called all at once; the modules given are copied."""

    def __init__(self, modules: Sequence[nn.Module], device: torch.device) -> None:
        self.template = copy.deepcopy(modules[0])
        self.template.requires_grad_(False)
        params, buffers = stack_module_state(list(modules))
        self.params: dict[str, Tensor] = {n: p.detach().to(device).requires_grad_() for n, p in params.items()}
        self.buffers: dict[str, Tensor] = {n: b.detach().to(device) for n, b in buffers.items()}
        self.size = len(modules)
        self._groupable = self.size > 1 and _can_group(self.template)
        # A GPU is quickest with the channels last, but for convolutions of each channel by itself.
        layers = [layer for layer in self.template.modules() if isinstance(layer, nn.Conv2d)]
        alone = any(layer.groups > 1 for layer in layers)
        self._memory = torch.contiguous_format if alone else torch.channels_last
        self._rest = self.template  # what takes the features of the trunks, where they are run together
        if self._groupable:
            self._rest = copy.deepcopy(self.template)
            self._rest.trunk, self._rest.input = nn.Identity(), nn.Identity()
        self.common = self._common()

    def __call__(self, x: Tensor, view: Tensor, train: bool = False) -> Tensor:
        """Outputs (R, n, heads), or (R, n, heads + K) of rejectors with a student."""
        self.template.train(train)
        if self.size == 1:
            # Without vmap, so that a module of the user's may hold layers that vmap cannot batch.
            return self._one(self.template, {name: t[0] for name, t in self.state_dict().items()}, x, view).unsqueeze(0)
        own = {name: t for name, t in self.state_dict().items() if name not in self.common}
        common = {name: self.buffers[name][0] for name in self.common}
        if self.grouped:
            return self._grouped(own, common, x, view)

        def one(own: dict[str, Tensor]) -> Tensor:
            return self._one(self.template, {**own, **common}, x, view)

        try:
            out: Tensor = vmap(one, randomness="different")(own)
        except RuntimeError as error:
            raise ModelError(
                f"this rejector cannot be trained as a batch of {self.size}: {error}. Layers that keep running "
                "statistics, such as BatchNorm, are the usual cause: use GroupNorm, or train one rejector at a time"
            ) from error
        return out

    @property
    def grouped(self) -> bool:
        """Whether the trunks are run as one net of groups: where they are of such layers and see the same inputs."""
        return self._groupable and {"input.shift", "input.scale"} <= self.common

    def _grouped(self, own: dict[str, Tensor], common: dict[str, Tensor], x: Tensor, view: Tensor) -> Tensor:
        scaled = (x.float() - common["input.shift"]) * common["input.scale"]
        scaled = scaled.contiguous(memory_format=self._memory)
        features = _run_grouped(self.template.get_submodule("trunk"), "", under("trunk.", own), scaled, self.size)
        heads = {name: t for name, t in own.items() if not name.startswith("trunk.")}
        fixed = {name: t for name, t in common.items() if not name.startswith("input.")}

        def one(heads: dict[str, Tensor], features: Tensor) -> Tensor:
            return self._one(self._rest, {**heads, **fixed}, features, view)

        return vmap(one, randomness="different")(heads, features)

    def _one(self, net: nn.Module, state: dict[str, Tensor], x: Tensor, view: Tensor) -> Tensor:
        args = (x, view) if getattr(self.template, "uses_client", False) else (x,)
        out: Tensor = functional_call(net, state, args)
        return out

    def scores(self, x: Inputs, view: Tensor, context: Context, *, student: bool = False) -> Tensor:
        """Scores (R, n, heads) in evaluation mode, without gradients; with ``student``, its K scores after them."""
        part, batch = slice(None) if student else slice(self.heads), batch_rows(tuple(x.shape), BATCH)
        with torch.no_grad(), context.autocast():
            parts = [self(a, b)[..., part].float() for a, b in zip(x.split(batch), view.split(batch), strict=True)]
        return torch.cat(parts, dim=1)

    @property
    def heads(self) -> int:
        """How many numbers a rejector gives before its student's: 2, or one per answerer that is judged by a head."""
        return int(getattr(self.template, "heads", 2))

    @property
    def has_student(self) -> bool:
        return bool(getattr(self.template, "classes", 0))

    def state_dict(self) -> dict[str, Tensor]:
        return {**self.params, **self.buffers}

    def load_state_dict(self, tensors: Mapping[str, Tensor], /) -> None:
        with torch.no_grad():
            for name, own in self.state_dict().items():
                own.copy_(tensors[name])
        self.common = self._common()

    def _common(self) -> frozenset[str]:
        """Buffers that all rejectors share, the scalings: what needs them alone is computed once.

        Of a module of the user's none is taken for shared, since its training may change them.
        """
        if not isinstance(self.template, AttachedRejector | SeparateRejector):
            return frozenset()
        scalings = {n: b for n, b in self.buffers.items() if not n.startswith("trunk.")}
        return frozenset(name for name, buffer in scalings.items() if bool((buffer == buffer[:1]).all()))

    def part(self, start: int, stop: int) -> "RejectorBatch":
        """Return some of the rejectors, copied, as a batch of their own."""
        device = next(iter(self.params.values())).device
        return RejectorBatch([self.module(i) for i in range(start, stop)], device)

    def module(self, i: int) -> nn.Module:
        module = copy.deepcopy(self.template)
        module.load_state_dict({name: tensor[i].detach().clone() for name, tensor in self.state_dict().items()})
        return module.to(next(iter(self.params.values())).device).eval()


def _can_group(rejector: nn.Module) -> bool:
    """Return whether the rejector is one of L2H's own, and its trunk has only layers that can be grouped."""
    if not isinstance(rejector, AttachedRejector | SeparateRejector) or not isinstance(rejector.trunk, nn.Module):
        return False
    layers = [layer for layer in rejector.trunk.modules() if not isinstance(layer, nn.Sequential)]
    return any(isinstance(layer, nn.Conv2d) for layer in layers) and all(
        isinstance(layer, (*_PLAIN, nn.Flatten, nn.Linear, nn.BatchNorm2d)) or _plain_convolution(layer)
        for layer in layers
    )


def _run_grouped(layer: nn.Module, name: str, tensors: Mapping[str, Tensor], x: Tensor, nets: int) -> Tensor:
    """Return what a layer of R trunks makes of the channels of all of them, in the end features (R, n, F).

    ``tensors`` are the stacked parameters (R, ...) by their names within the trunk.
    """
    if isinstance(layer, nn.Sequential):
        out = x
        for child, inner in layer.named_children():
            out = _run_grouped(inner, f"{name}.{child}" if name else child, tensors, out, nets)
        return x + out if isinstance(layer, Residual) else out
    if isinstance(layer, nn.Flatten):
        # (n, R * channels, H, W) to (R, n, channels * H * W)
        separate: Tensor = x.unflatten(1, (nets, -1))
        return separate.flatten(2).transpose(0, 1)
    if isinstance(layer, nn.Conv2d):
        return _convolve(layer, x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))
    if isinstance(layer, nn.BatchNorm2d):
        if layer.training:
            tensors[f"{name}.num_batches_tracked"].add_(1)
        # (R, C) as (R * C), which are views: the statistics of the stack are updated in place.
        mean, variance, weight, bias = (
            tensors[f"{name}.{which}"].view(-1) for which in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, variance, weight, bias, layer.training, layer.momentum or 0.0, layer.eps)
    if isinstance(layer, nn.Linear):
        x = x @ tensors[f"{name}.weight"].transpose(1, 2)
        return x + tensors[f"{name}.bias"][:, None] if f"{name}.bias" in tensors else x
    plain: Tensor = layer(x)
    return plain


def _convolve(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve the channels of all nets, with a group per net; of the first layer they share the inputs."""
    nets = len(weight)
    shared = x.shape[1] == layer.in_channels
    if layer.groups == 1 and not shared and x.is_cuda and (nets > len(x) or layer.kernel_size == (1, 1)):
        return _convolve_windows(layer, x, weight, bias)
    groups = 1 if shared else nets * layer.groups
    flat = None if bias is None else bias.flatten()
    return F.conv2d(x, weight.flatten(0, 1), flat, stride=layer.stride, padding=layer.padding, groups=groups)


def _convolve_windows(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve each net's channels by one batch of matrix products over the windows that the kernel sees.

    A grouped convolution on a GPU launches a few kernels per group, one after the other. With many nets and few samples
    that takes three times as long as copying the windows out, and a kernel of one pixel has no more windows than
    pixels. With x (n, R * C, H, W), weight (R, O, C, h, w) and bias
    (R, O) the result is (n, R * O, H', W').
    """
    nets, outputs, _, height, width = weight.shape
    if isinstance(layer.padding, tuple) and any(layer.padding):
        rows, columns = layer.padding
        x = F.pad(x, (columns, columns, rows, rows))
    seen = x.unflatten(1, (nets, -1)).unfold(3, height, layer.stride[0]).unfold(4, width, layer.stride[1])
    n, down, across = len(x), seen.shape[3], seen.shape[4]
    # (n, R, C, H', W', h, w) to (R, C * h * w, n * H' * W')
    windows = seen.permute(1, 2, 5, 6, 0, 3, 4).reshape(nets, -1, n * down * across)
    out = weight.flatten(2) @ windows
    if bias is not None:
        out = out + bias[:, :, None]
    convolved: Tensor = out.reshape(nets * outputs, n, down, across).transpose(0, 1)
    return convolved.contiguous() if layer.kernel_size == (1, 1) else convolved


def _plain_convolution(layer: nn.Module) -> bool:
    return (
        isinstance(layer, nn.Conv2d)
        and layer.groups in (1, layer.in_channels)
        and layer.padding_mode == "zeros"
        and layer.dilation == (1, 1)
        and not isinstance(layer.padding, str)
    )
