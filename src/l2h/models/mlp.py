"""A multilayer perceptron for tables of numbers."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from l2h.models.base import Network


class MLP(Network):
    """Linear layers with ReLU between them; an input of more than one axis is flattened.

    Args:
        input_shape: shape of one sample.
        outputs: how many scores.
        hidden: widths of the hidden layers.
        dropout: the dropout after each hidden layer.
    """

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
