"""Input scaling as part of the network, so that training, serving and export always scale alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn


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
    def standardise(cls, X: npt.NDArray[Any]) -> InputScale:
        """Return the scaling to zero mean and unit variance on ``X``, per channel of an image or column of a table.

        A channel or column that is constant on ``X`` is only shifted, since it has no spread to scale by.
        """
        axes = (0, *range(2, X.ndim))
        mean = X.mean(axis=axes, dtype=np.float64)
        std = X.std(axis=axes, dtype=np.float64)
        constant = std <= 1e-6 * np.abs(mean)  # a spread below that is float32's rounding
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
