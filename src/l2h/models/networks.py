"""LeNet-5, the paper's client and rejector; AlexNet, its server; a perceptron for tables; and what networks share.

Input scaling is part of a network, so that training, serving and export always scale alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from l2h.errors import ModelError
from l2h.rows import Rows, moments


class Network(nn.Module, ABC):
    """A network whose last layer, ``head``, turns the features of :meth:`embed` into scores."""

    head: nn.Linear

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """Return the features (n, width) that the last layer reads."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.embed(x))
        return scores


def check_image_shape(name: str, input_shape: tuple[int, ...]) -> None:
    """Raise :class:`ModelError` where the shape of a sample is not that of an image."""
    if len(input_shape) != 3:
        raise ModelError(f"{name} needs images (channels, height, width); got {input_shape}")


def resize(x: Tensor, side: int) -> Tensor:
    """Return the images resized bilinearly to ``side`` by ``side``, or as they are where they have that size."""
    if x.shape[-2:] == (side, side):
        return x
    return F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False)


class LeNet5(Network):
    """LeNet-5: conv 6@5x5, pool, conv 16@5x5, pool, 120, 84, ``outputs``; ``width`` multiplies every layer.

    At 32 pixels and above the convolutions are unpadded as published; smaller images are padded to keep their size,
    down to 4 pixels.
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
        features: Tensor = self.hidden(self.features(x))
        return features


class AlexNet(Network):
    """AlexNet: 64@11x11/4, 192@5x5, 384, 256, 256, then 4096-4096-``outputs`` with dropout 0.5.

    Images are resized bilinearly to ``size``, 64 in the paper; ``hidden`` is the width of the two linear layers.
    """

    POOLED = 6

    def __init__(
        self, input_shape: tuple[int, ...], outputs: int, size: int = 64, hidden: int = 4096, dropout: float = 0.5
    ) -> None:
        super().__init__()
        check_image_shape("alexnet", input_shape)
        if size < 63:
            raise ModelError(f"alexnet needs size >= 63, below which nothing is left after its pools; got {size}")
        self.size = size
        self.features = nn.Sequential(
            nn.Conv2d(input_shape[0], 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
        )
        self.hidden = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(256 * self.POOLED**2, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
        )
        self.head = nn.Linear(hidden, outputs)

    def embed(self, x: Tensor) -> Tensor:
        x = self.features(resize(x, self.size))
        # Pooling a 1x1 map to 6x6 copies it; expand does that, and its gradient is a sum in a fixed order.
        if x.shape[-2:] == (1, 1):
            x = x.expand(-1, -1, self.POOLED, self.POOLED)
        else:
            x = F.adaptive_avg_pool2d(x, self.POOLED)
        features: Tensor = self.hidden(x.flatten(1))
        return features


class MLP(Network):
    """Linear layers with ReLU and dropout between them; an input of more than one axis is flattened."""

    def __init__(
        self, input_shape: tuple[int, ...], outputs: int, hidden: Sequence[int] = (256, 256), dropout: float = 0.0
    ) -> None:
        super().__init__()
        size = math.prod(input_shape)
        layers: list[nn.Module] = [nn.Flatten()]
        for width in hidden:
            layers += [nn.Linear(size, width), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
            size = width
        self.hidden = nn.Sequential(*layers)
        self.head = nn.Linear(size, outputs)

    def embed(self, x: Tensor) -> Tensor:
        features: Tensor = self.hidden(x)
        return features


class InputScale(nn.Module):
    """Computes ``(x - shift) * scale`` in float; each is a number, or one per channel or feature."""

    shift: Tensor
    scale: Tensor

    def __init__(self, input_shape: tuple[int, ...], shift: Any = 0.0, scale: Any = 1.0) -> None:
        super().__init__()
        axes = (input_shape[0],) + (1,) * (len(input_shape) - 1)
        for name, value in (("shift", shift), ("scale", scale)):
            tensor = torch.as_tensor(value, dtype=torch.float32).reshape(-1, *(1,) * (len(axes) - 1))
            self.register_buffer(name, tensor.expand(axes).clone())

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() - self.shift) * self.scale

    @classmethod
    def to_unit_range(cls, input_shape: tuple[int, ...]) -> InputScale:
        """Return the paper's scaling, uint8 to [-1, 1]."""
        return cls(input_shape, 127.5, 1 / 127.5)

    @classmethod
    def standardise(cls, X: npt.NDArray[Any] | Rows, unscaled: npt.NDArray[np.bool_] | None = None) -> InputScale:
        """Return the scaling to zero mean and unit variance on ``X``, per channel of an image or column of a table.

        A channel or column that is constant on ``X`` is only shifted, since it has no spread to scale by. ``unscaled``
        says which columns stay as they are: scaling would make a rare 1 among zeros a large number.
        """
        mean, std = moments(X)
        constant = std <= 1e-6 * np.abs(mean)  # a spread below that is float32's rounding
        if unscaled is not None:
            mean, constant = np.where(unscaled, 0.0, mean), constant | unscaled
        return cls(tuple(X.shape[1:]), mean, 1 / np.where(constant, 1.0, std))


class Scaled(nn.Module):
    """A network behind its input scaling.

    ``plan`` is the named model's name, shape, outputs and options, by which it can be built again; None for a user's.
    """

    def __init__(self, scale: InputScale, net: nn.Module, plan: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.input = scale
        self.net = net
        self.plan = plan

    def embed(self, x: Tensor) -> Tensor:
        features: Tensor = self.net.embed(self.input(x))  # type: ignore[operator]
        return features

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.net(self.input(x))
        return scores
