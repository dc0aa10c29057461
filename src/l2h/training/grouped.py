"""Runs many trunks as one network: convolutions with one group per net, matrix products with one batch per net.

``vmap`` computes the same, but it moves the axis of the nets between layers and copies the activations. Here the
channels of the nets stay side by side, and the first layer, whose input all nets share, is one convolution. On a GPU,
where there are more nets than samples, the later convolutions are matrix products over windows instead.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from l2h.models.rejectors import AttachedRejector, SeparateRejector

#: Layers that need no weights and act on every channel alike.
_PLAIN = (nn.ReLU, nn.MaxPool2d)


def can_group(rejector: nn.Module) -> bool:
    """Return whether the rejector is one of L2H's own, and its trunk has only layers that can be grouped."""
    if not isinstance(rejector, AttachedRejector | SeparateRejector) or not isinstance(rejector.trunk, nn.Module):
        return False
    layers = [layer for _, layer in _layers(rejector.trunk)]
    return isinstance(layers[0], nn.Conv2d) and all(
        isinstance(layer, (*_PLAIN, nn.Flatten, nn.Linear)) or _plain_convolution(layer) for layer in layers
    )


def without_trunk(rejector: nn.Module) -> nn.Module:
    """Return a copy of the rejector that takes the trunk's features in place of the inputs."""
    out = copy.deepcopy(rejector)
    out.trunk, out.input = nn.Identity(), nn.Identity()
    return out


def grouped_features(trunk: nn.Module, tensors: Mapping[str, Tensor], x: Tensor, nets: int) -> Tensor:
    """Return the features (R, n, F) of R trunks on the scaled inputs (n, C, H, W) that all of them share.

    ``trunk`` gives the layers; ``tensors`` are the stacked parameters (R, ...) by their names within the trunk.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    shared = True
    for name, layer in _layers(trunk):
        if isinstance(layer, nn.Conv2d):
            weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
            if shared or nets <= len(x) or not x.is_cuda:
                x = F.conv2d(
                    x,
                    weight.flatten(0, 1),
                    None if bias is None else bias.flatten(),
                    stride=layer.stride,
                    padding=layer.padding,
                    groups=1 if shared else nets,
                )
            else:
                x = _convolve_windows(layer, x, weight, bias)
            shared = False
        elif isinstance(layer, nn.Flatten):
            # (n, R * channels, H, W) to (R, n, channels * H * W)
            x = x.unflatten(1, (nets, -1)).flatten(2).transpose(0, 1)
        elif isinstance(layer, nn.Linear):
            weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
            x = x @ weight.transpose(1, 2)
            x = x if bias is None else x + bias[:, None]
        else:
            x = layer(x)
    return x


def _convolve_windows(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve each net's channels by one batch of matrix products over the windows that the kernel sees.

    A grouped convolution on a GPU launches a few kernels per group, one after the other. With many nets and few samples
    that takes three times as long as copying the windows out. With x (n, R * C, H, W), weight (R, O, C, h, w) and bias
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
    return convolved


def _layers(trunk: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers in order: L2H's own trunks are sequences of sequences."""
    return [(name, layer) for name, layer in trunk.named_modules() if not isinstance(layer, nn.Sequential) and name]


def _plain_convolution(layer: nn.Module) -> bool:
    return (
        isinstance(layer, nn.Conv2d)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and layer.dilation == (1, 1)
        and not isinstance(layer.padding, str)
    )
