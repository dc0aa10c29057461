"""The efficient trunk of a rejector: depthwise-separable convolutions with batch norm, which an export folds away.

A stem shrinks the image by its stride. Blocks of a depthwise 3x3 and a pointwise convolution then halve the image and
double the channels until the longer side is at most :data:`LOWEST` pixels. Further blocks add depth, most of it there,
where it is cheapest, and around them the input is added to the output. The mean over the image gives the features.
"""

import copy
import math
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from l2h.errors import ModelError

LOWEST = 5
CHANNELS = 16  # of the stem at width 1
SMALLEST, LARGEST = 8, 1024  # sides of an image, in pixels


@dataclass(frozen=True)
class Convolution:
    """One convolution of a trunk; its padding keeps the size of the image, divided by the stride."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    groups: int
    positions: int  # pixels of its output

    @property
    def multiply_adds(self) -> int:
        return self.positions * self.outputs * (self.inputs // self.groups) * self.kernel**2

    def layers(self) -> list[nn.Module]:
        convolution = nn.Conv2d(
            self.inputs, self.outputs, self.kernel, self.stride, self.kernel // 2, groups=self.groups, bias=False
        )
        return [convolution, nn.BatchNorm2d(self.outputs), nn.ReLU()]


@dataclass(frozen=True)
class TrunkPlan:
    """What a separable trunk consists of."""

    pool: int  # the side of the squares that are averaged before the stem; 1 averages nothing
    stem: Convolution  # the convolution that sees the image
    blocks: tuple[tuple[Convolution, Convolution], ...]  # a depthwise and a pointwise convolution each
    features: int  # how many the trunk gives

    @property
    def multiply_adds(self) -> int:
        """Of one input; the sums of the poolings are not counted, as torch's counter does not."""
        return self.stem.multiply_adds + sum(one.multiply_adds for block in self.blocks for one in block)

    def build(self) -> nn.Sequential:
        """Return a fresh trunk: scaled images (n, C, H, W) to features (n, F)."""
        layers: list[nn.Module] = [nn.AvgPool2d(self.pool)] if self.pool > 1 else []
        layers += self.stem.layers()
        for block in self.blocks:
            own = [layer for convolution in block for layer in convolution.layers()]
            layers += own if block[0].stride > 1 else [Residual(*own)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Residual(nn.Sequential):
    """A sequence of layers whose input is added to its output."""

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for layer in self:
            out = layer(out)
        return x + out


def plan_trunk(input_shape: tuple[int, ...], width: float, depth: int, stem: int, middle: int = 0) -> TrunkPlan:
    """Return the plan of a trunk for images with sides of 8 pixels and more.

    ``width`` multiplies the channels; the stem has 16 at width 1, and shrinks each side by ``stem``: 1, 2, 4, ... Above
    2, squares of pixels are averaged first. ``depth`` blocks follow at the lowest size, and ``middle`` at each size
    between.
    """
    if len(input_shape) != 3 or not SMALLEST <= min(input_shape[1:]) <= max(input_shape[1:]) <= LARGEST:
        raise ModelError(
            f"the separable trunk needs images (channels, height, width) with sides from {SMALLEST} to {LARGEST} "
            f"pixels; got {input_shape}"
        )
    if stem < 1 or stem & (stem - 1) or stem > min(input_shape[1:]) // 2:
        raise ModelError(f"stem={stem} must be 1 or a power of 2, at most half of the side; the image is {input_shape}")
    if min(depth, middle) < 0 or not width > 0:
        raise ModelError(f"depth={depth} and middle={middle} must be 0 or more, and width={width} above 0")
    pool, stride = max(1, stem // 2), min(stem, 2)
    height, side = (math.ceil((edge // pool) / stride) for edge in input_shape[1:])
    channels = max(1, round(CHANNELS * width))
    first = Convolution(input_shape[0], channels, 3, stride, 1, height * side)
    blocks = []
    while max(height, side) > LOWEST:
        height, side = math.ceil(height / 2), math.ceil(side / 2)
        blocks.append(_block(channels, 2 * channels, 2, height * side))
        channels *= 2
        if max(height, side) > LOWEST:
            blocks += [_block(channels, channels, 1, height * side)] * middle
    blocks += [_block(channels, channels, 1, height * side)] * depth
    return TrunkPlan(pool, first, tuple(blocks), channels)


def _block(inputs: int, outputs: int, stride: int, positions: int) -> tuple[Convolution, Convolution]:
    return Convolution(inputs, inputs, 3, stride, inputs, positions), Convolution(inputs, outputs, 1, 1, 1, positions)


def fold_batch_norm(module: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode in which every batch norm is part of the convolution before it."""
    folded = copy.deepcopy(module).eval()
    for sequence in (m for m in folded.modules() if isinstance(m, nn.Sequential)):
        for at, (layer, after) in enumerate(pairwise(list(sequence))):
            if isinstance(layer, nn.Conv2d) and isinstance(after, nn.BatchNorm2d):
                sequence[at], sequence[at + 1] = fuse_conv_bn_eval(layer, after), nn.Identity()
    return folded
