"""LeNet-5, the paper's client and rejector."""

from torch import Tensor, nn

from l2h.errors import ModelError
from l2h.models.base import Network


class LeNet5(Network):
    """LeNet-5: conv 6@5x5, pool, conv 16@5x5, pool, 120, 84, ``outputs``.

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
        features: Tensor = self.hidden(self.features(x))
        return features


def trunk(input_shape: tuple[int, ...], width: float) -> tuple[nn.Module, int]:
    """Return LeNet-5 without its last layer, and how many features it gives."""
    net = LeNet5(input_shape, 1, width)
    return nn.Sequential(net.features, net.hidden), net.head.in_features
