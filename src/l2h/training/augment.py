"""Random changes to images that leave their class as it is, drawn on the device of the images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Changes:
    """Shifts and flips drawn for n images, which may be applied long after they were drawn."""

    down: Tensor  # int (n,), by how many rows
    across: Tensor  # int (n,), by how many columns
    flipped: Tensor | None  # bool (n,), whether left and right change places; None where none do

    @classmethod
    def draw(cls, n: int, side: Sequence[int], kind: str, device: torch.device) -> Changes:
        """Draw ``shift`` or ``flip+shift`` for images of this height and width, from torch's global generator."""
        down, across = (_offsets(n, size, device) for size in side)
        return cls(down, across, torch.rand(n, device=device) < 0.5 if kind == "flip+shift" else None)

    @classmethod
    def join(cls, parts: Sequence[Changes]) -> Changes:
        """Return the changes of consecutive images as one."""
        flips = [torch.zeros_like(p.down, dtype=torch.bool) if p.flipped is None else p.flipped for p in parts]
        return cls(torch.cat([p.down for p in parts]), torch.cat([p.across for p in parts]), torch.cat(flips))

    def at(self, index: Any) -> Changes:
        flipped = None if self.flipped is None else self.flipped[index]
        return type(self)(self.down[index], self.across[index], flipped)

    def apply(self, x: Tensor) -> Tensor:
        """Return the changed images of (n, C, H, W), edges repeated."""
        height, width = x.shape[2:]
        rows, columns = _shifted(self.down, height), _shifted(self.across, width)
        if self.flipped is not None:
            columns = torch.where(self.flipped[:, None], width - 1 - columns, columns)
        places = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)[:, None]  # of one image, for all channels
        return x.flatten(2).gather(2, places.expand(-1, x.shape[1], -1)).reshape(x.shape)


def augment(x: Tensor, kind: str) -> Tensor:
    """Return a randomly changed copy of a batch of images (n, C, H, W); draws from torch's global generator.

    ``shift`` is by up to an eighth of the side each way, edges repeated. Inputs of another shape stay as they are.
    """
    if kind == "none" or x.ndim != 4:
        return x
    return Changes.draw(len(x), x.shape[2:], kind, x.device).apply(x)


def mix(x: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """With probability ``share`` mix each image of a batch (n, C, H, W) with the one before it, by CutMix or MixUp.

    Return the batch, and how much of each image is its own, a scalar in [0, 1]; the rest has the label of the image
    before it. Everything is drawn on the device. Inputs of another shape are never mixed.
    """
    own = torch.ones((), device=x.device)
    if not share or x.ndim != 4:
        return x, own
    height, width = x.shape[2:]
    other = x.roll(1, dims=0)
    drawn = torch.rand(5, device=x.device)
    # CutMix: a rectangle of the other image whose area is uniform, cut at the border.
    side = torch.sqrt(1 - drawn[0])
    rows = (torch.arange(height, device=x.device) - drawn[1] * height).abs() < side * height / 2
    columns = (torch.arange(width, device=x.device) - drawn[2] * width).abs() < side * width / 2
    cut = (rows[:, None] & columns[None, :]).to(x.dtype)
    blend = torch.where(drawn[3] < 0.5, cut, (1 - drawn[0]).to(x.dtype).expand_as(cut))
    blend = torch.where(drawn[4] < share, blend, torch.zeros_like(blend))
    return x * (1 - blend) + other * blend, 1 - blend.mean()


def distort(x: Tensor, share: float) -> Tensor:
    """Turn, shear, scale and recolour some of the images (n, C, H, W) a little, each kind with probability ``share``.

    Images are turned by up to 15 degrees, sheared and scaled by up to 0.15, and changed in brightness, contrast and
    saturation by up to 0.4; what comes in from outside repeats the edge. Everything is drawn on the device. Inputs of
    another shape stay as they are.
    """
    if not share or x.ndim != 4:
        return x
    n = len(x)

    def drawn(size: int, reach: float) -> Tensor:
        own = torch.rand(n, 1, device=x.device) < share
        return torch.where(own, (2 * torch.rand(n, size, device=x.device) - 1) * reach, 0.0)

    angle = drawn(1, math.pi / 12)[:, 0]
    slant = drawn(2, 0.15)
    size = 1 + drawn(1, 0.15)[:, 0]
    cos, sin = torch.cos(angle) * size, torch.sin(angle) * size
    zero = torch.zeros_like(cos)
    across = torch.stack([cos, slant[:, 0] - sin, zero], dim=-1)
    down = torch.stack([slant[:, 1] + sin, cos, zero], dim=-1)
    grid = F.affine_grid(torch.stack([across, down], dim=1), list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    light, contrast, colour = (1 + drawn(3, 0.4)).T[:, :, None, None, None]
    x = x * light
    x = torch.lerp(x.mean(dim=(1, 2, 3), keepdim=True).expand_as(x), x, contrast)
    return torch.lerp(x.mean(dim=1, keepdim=True).expand_as(x), x, colour)


def _offsets(n: int, size: int, device: torch.device) -> Tensor:
    reach = max(1, size // 8)
    return torch.randint(-reach, reach + 1, (n, 1), device=device)[:, 0]


def _shifted(offset: Tensor, size: int) -> Tensor:
    """Return the row numbers of each sample after its shift, (n, size), clamped to the image."""
    return (torch.arange(size, device=offset.device)[None] + offset[:, None]).clamp(0, size - 1)
