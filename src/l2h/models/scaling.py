"""Input scaling as part of the network, so that training, serving and export cannot disagree on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn


class InputScale(nn.Module):
    """``(x - shift) * scale`` in float, an axis of channels or features at a time.

    Args:
        input_shape: shape of one sample.
        shift: broadcast against one sample.
        scale: likewise.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, input_shape: tuple[int, ...], shift: Any = 0.0, scale: Any = 1.0) -> None:
        super().__init__()
        axes = (input_shape[0],) + (1,) * (len(input_shape) - 1)
        for name, value in (("shift", shift), ("scale", scale)):
            tensor = torch.as_tensor(value, dtype=torch.float32).reshape(-1, *(1,) * (len(axes) - 1))
            self.register_buffer(name, tensor.expand(axes).clone())

    def forward(self, x: Tensor) -> Tensor:
        """A float batch from a uint8 or float one."""
        return (x.float() - self.shift) * self.scale

    @classmethod
    def to_unit_range(cls, input_shape: tuple[int, ...]) -> InputScale:
        """uint8 to [-1, 1], the paper's scaling."""
        return cls(input_shape, 127.5, 1 / 127.5)

    @classmethod
    def standardise(cls, X: npt.NDArray[Any]) -> InputScale:
        """Zero mean and unit variance on ``X``: a channel of an image, or a column of a table, at a time.

        One that is constant on ``X`` is only shifted: nothing says how far a new value of it is.
        """
        axes = (0, *range(2, X.ndim))
        mean = X.mean(axis=axes, dtype=np.float64)
        std = X.std(axis=axes, dtype=np.float64)
        constant = std <= 1e-6 * np.abs(mean)  # a spread below that is float32's rounding
        return cls(tuple(X.shape[1:]), mean, 1 / np.where(constant, 1.0, std))


class Scaled(nn.Module):
    """A network behind its input scaling.

    Args:
        scale: the scaling.
        net: any module of one float batch.
        plan: the named model's name, shape, outputs and options, from which it can be built again; None for a module
            of the user's.
    """

    def __init__(self, scale: InputScale, net: nn.Module, plan: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.input = scale
        self.net = net
        self.plan = plan

    def embed(self, x: Tensor) -> Tensor:
        """The inner network's features."""
        features: Tensor = self.net.embed(self.input(x))  # type: ignore[operator]
        return features

    def forward(self, x: Tensor) -> Tensor:
        """The inner network's scores."""
        scores: Tensor = self.net(self.input(x))
        return scores
