"""Many trunks as one network: convolutions with a group for each, matrix products with a batch for each.

``vmap`` does the same, but moves the axis of the nets about between layers and copies what lies in between. Here the
nets' channels lie beside each other all the way, and the first layer, whose input all nets share, is one convolution.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from l2h.models.rejectors import AttachedRejector, SeparateRejector

#: Layers that need no weights and act on every channel alike.
_PLAIN = (nn.ReLU, nn.MaxPool2d)


def can_group(rejector: nn.Module) -> bool:
    """Whether the rejector is one of ours with a trunk of convolutions, plain layers, a flattening and linear maps."""
    if not isinstance(rejector, AttachedRejector | SeparateRejector) or not isinstance(rejector.trunk, nn.Module):
        return False
    layers = [layer for _, layer in _layers(rejector.trunk)]
    return isinstance(layers[0], nn.Conv2d) and all(
        isinstance(layer, (*_PLAIN, nn.Flatten, nn.Linear)) or _plain_convolution(layer) for layer in layers
    )


def without_trunk(rejector: nn.Module) -> nn.Module:
    """A copy that takes the trunk's features in the place of the inputs."""
    out = copy.deepcopy(rejector)
    out.trunk, out.input = nn.Identity(), nn.Identity()
    return out


def grouped_features(trunk: nn.Module, tensors: Mapping[str, Tensor], x: Tensor, nets: int) -> Tensor:
    """Features (R, n, F) of R trunks.

    Args:
        trunk: one of them, for its layers.
        tensors: the stacked parameters by their names within the trunk, each (R, ...).
        x: the scaled inputs (n, C, H, W), the same for all.
        nets: R.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    shared = True
    for name, layer in _layers(trunk):
        if isinstance(layer, nn.Conv2d):
            weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
            x = F.conv2d(
                x,
                weight.flatten(0, 1),
                None if bias is None else bias.flatten(),
                stride=layer.stride,
                padding=layer.padding,
                groups=1 if shared else nets,
            )
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


def _layers(trunk: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers one after the other: our trunks are sequences of sequences."""
    return [(name, layer) for name, layer in trunk.named_modules() if not isinstance(layer, nn.Sequential) and name]


def _plain_convolution(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros"
