"""What the named networks share: a last layer over features, and images as their input."""

from abc import ABC, abstractmethod

from torch import Tensor, nn
from torch.nn import functional as F

from l2h.errors import ModelError


class Network(nn.Module, ABC):
    """A network whose last layer, ``head``, turns the features of :meth:`embed` into scores."""

    head: nn.Linear

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """Return the features (n, width) that the last layer reads."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores (n, outputs)."""
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
