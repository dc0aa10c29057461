"""AlexNet for small images, the paper's server: the input is resized to 64x64 first."""

from torch import Tensor, nn
from torch.nn import functional as F

from l2h.errors import ModelError
from l2h.models.base import Network, check_image_shape, resize


class AlexNet(Network):
    """AlexNet: 64@11x11/4, 192@5x5, 384, 256, 256, then 4096-4096-``outputs`` with dropout 0.5.

    Args:
        input_shape: (channels, height, width); any size, resized bilinearly to ``size``.
        outputs: how many scores.
        size: side of the resized image; 64 in the paper.
        hidden: width of the two hidden linear layers.
        dropout: the dropout before each of them.
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
