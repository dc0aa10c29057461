"""LeNet-5, as the paper's client and rejector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l2h.errors import ModelError


class LeNet5(nn.Module):
    """Conv 6@5x5, pool, conv 16@5x5, pool, 120, 84, ``outputs``.

    Args:
        input_shape: (channels, height, width). At 32 pixels and above the convolutions are unpadded as published;
            smaller images are padded to keep their size, down to 4 pixels.
        outputs: how many scores.
        width: multiplies every layer; 1 is LeNet-5.
    """

    def __init__(self, input_shape: tuple[int, ...], outputs: int, width: float = 1.0) -> None:
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < 4:
            raise ModelError(f"lenet5 needs images (channels, height, width) of at least 4x4; got {input_shape}")
        channels, height, side = input_shape
        pad = 0 if min(height, side) >= 32 else 2
        first, second, third, fourth = (max(1, round(size * width)) for size in (6, 16, 120, 84))
        self.features = nn.Sequential(
            nn.Conv2d(channels, first, 5, padding=pad),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5, padding=pad),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        rows, columns = (((edge - 4 + 2 * pad) // 2 - 4 + 2 * pad) // 2 for edge in (height, side))
        self.hidden = nn.Sequential(
            nn.Linear(second * rows * columns, third), nn.ReLU(), nn.Linear(third, fourth), nn.ReLU()
        )
        self.head = nn.Linear(fourth, outputs)

    def embed(self, x: Tensor) -> Tensor:
        """The 84 features (times ``width``) that the last layer reads."""
        features: Tensor = self.hidden(self.features(x))
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Scores (n, outputs)."""
        scores: Tensor = self.head(self.embed(x))
        return scores


def trunk(input_shape: tuple[int, ...], width: float) -> tuple[nn.Module, int]:
    """LeNet-5 without its last layer, and how many features it gives."""
    net = LeNet5(input_shape, 1, width)
    with torch.no_grad():
        size = net.head.in_features
    return nn.Sequential(net.features, net.hidden), size
