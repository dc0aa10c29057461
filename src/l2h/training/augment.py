"""Changes to an image that leave its class as it is, drawn on the device the images live on."""

from __future__ import annotations

import torch
from torch import Tensor


def augment(x: Tensor, kind: str) -> Tensor:
    """A randomly changed copy of a batch of images (n, C, H, W); draws from torch's global generator.

    Args:
        x: uint8 or float.
        kind: ``none``, ``shift`` (up to an eighth of the side each way, edges repeated), or ``flip+shift``.
    """
    if kind == "none" or x.ndim != 4:
        return x
    n, _, height, width = x.shape
    rows = _shifted(n, height, x.device)
    columns = _shifted(n, width, x.device)
    if kind == "flip+shift":
        flip = torch.rand(n, device=x.device) < 0.5
        columns = torch.where(flip[:, None], width - 1 - columns, columns)
    which = torch.arange(n, device=x.device)[:, None, None, None]
    channel = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
    return x[which, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _shifted(n: int, size: int, device: torch.device) -> Tensor:
    """Row numbers of each sample after a shift, (n, size), clamped to the image."""
    reach = max(1, size // 8)
    offset = torch.randint(-reach, reach + 1, (n, 1), device=device)
    return (torch.arange(size, device=device)[None] + offset).clamp(0, size - 1)
