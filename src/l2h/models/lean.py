"""An attached rejector with the fewest operators, for a device: most of its time for one input is the number of them.

It computes what :class:`l2h.models.rejectors.AttachedRejector` computes, but for rounding. Batch norm and the scale of
the images are part of the convolutions. What is a linear map of other numbers, such as a margin, is part of the first
layer's weights, and so is the skip connection: ``s = relu(s) - relu(-s)``.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from l2h.models.rejectors import LOG_FLOOR, STUDENT_FEATURES, TOP, AttachedRejector
from l2h.models.separable import fold_batch_norm


class LeanRejector(nn.Module):
    """An attached rejector in evaluation mode, called with the client's answer instead of its view."""

    uses_client = True
    shift: Tensor
    scale: Tensor
    labels: Tensor
    input_shift: Tensor

    def __init__(self, net: AttachedRejector, num_classes: int) -> None:
        super().__init__()
        own = fold_batch_norm(net)
        assert isinstance(own, AttachedRejector)
        self.heads, self.top = net.heads, min(TOP, num_classes)
        self.trunk, self.student = own.trunk, own.student
        layers = [] if own.trunk is None else list(own.trunk.modules())
        first = next((layer for layer in layers if isinstance(layer, nn.Conv2d | nn.Linear)), None)
        #: The scaling of the inputs; None where the first convolution has the scale in its weights.
        self.input: nn.Module | None = own.input
        if isinstance(first, nn.Conv2d):
            first.weight.data *= own.input.scale.reshape(1, -1, 1, 1)
            self.register_buffer("input_shift", own.input.shift)
            self.input = None
        self.register_buffer("labels", torch.eye(num_classes))
        hidden = None if isinstance(net.hidden, nn.Identity) else net.hidden[0]
        features = 0
        if isinstance(hidden, nn.Linear):
            features = hidden.in_features - net.skip.in_features
        self.reads_trunk = features > 0
        matrix, constant, shift, scale = _as_linear(net, num_classes, features)
        self.register_buffer("shift", shift.float())
        self.register_buffer("scale", scale.float())
        skip = torch.cat([torch.zeros(net.heads, features), net.skip.weight.detach()], dim=1).double()
        weight, bias = skip @ matrix, skip @ constant + net.skip.bias.detach()
        self.last: nn.Linear | None = None
        if net.head is not None and isinstance(hidden, nn.Linear):
            eye, own_weight = torch.eye(net.heads), hidden.weight.detach().double()
            weight = torch.cat([own_weight @ matrix, weight, -weight])
            bias = torch.cat([own_weight @ constant + hidden.bias.detach(), bias, -bias])
            self.last = _linear(torch.cat([net.head.weight.detach(), eye, -eye], dim=1), net.head.bias.detach())
        self.first = _linear(weight, bias)

    def forward(self, x: Tensor, log_probability: Tensor, embedding: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the heads' numbers, (n, heads), and the student's scores, (n, K), or what stands for none."""
        clipped = log_probability.clamp(min=LOG_FLOOR)
        p = clipped.exp()
        top = p.topk(self.top, dim=-1).values
        first, answer = top[:, :1], p.argmax(-1)
        log_odds = first.log() - (1 - first).clamp(min=1e-6).log()
        parts = [top, (p * clipped).sum(-1, keepdim=True), log_odds]
        parts += [clipped, F.embedding(answer, self.labels)] + ([] if embedding is None else [embedding])
        taught = clipped
        if self.trunk is not None:
            features = self.trunk(x.float() - self.input_shift if self.input is None else self.input(x))
            parts = [features, *parts] if self.reads_trunk else parts
            if self.student is not None:
                taught = self.student(features)
                parts += _agreement(taught, clipped, answer[:, None])
        hidden = self.first((torch.cat(parts, dim=-1) - self.shift) * self.scale)
        return (hidden if self.last is None else self.last(hidden.relu())), taught


def _agreement(taught: Tensor, client_log_p: Tensor, answer: Tensor) -> list[Tensor]:
    log_p = torch.log_softmax(taught, dim=-1).clamp(min=LOG_FLOOR)
    p, both = log_p.exp(), torch.softmax(log_p + client_log_p, dim=-1)
    return [
        p.amax(-1, keepdim=True),
        p.gather(-1, answer),
        (p * log_p).sum(-1, keepdim=True),
        both.gather(-1, answer),
        both.amax(-1, keepdim=True),
        log_p,
    ]


def _as_linear(net: AttachedRejector, classes: int, features: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what turns the numbers that :class:`LeanRejector` gathers into those that an attached rejector reads.

    With these numbers ``c`` they are ``matrix @ ((c - shift) * scale) + constant``.
    """
    top, view = min(TOP, classes), len(net.view_shift)
    shifts, scales = net.view_shift.double(), net.view_scale.double()
    agreement = STUDENT_FEATURES + net.classes if net.classes else 0
    given = view - 1 + max(0, agreement - 1)  # all but the two margins
    matrix = torch.zeros(features + view + agreement, features + given, dtype=torch.float64)
    constant, shift = torch.zeros(len(matrix), dtype=torch.float64), torch.zeros(features + given, dtype=torch.float64)
    scale = torch.ones(features + given, dtype=torch.float64)
    matrix[:features, :features] = torch.eye(features)
    # Probabilities in order are in the same place; what follows the margin is one place earlier.
    for part, earlier in ((torch.arange(top), 0), (torch.arange(top + 2, view), 1)):
        place = part - earlier
        matrix[features + part, features + place] = 1.0
        shift[features + place], scale[features + place] = shifts[part], scales[part]
    entropy, margin = features + top, features + top + 1
    matrix[entropy, entropy] = -1.0
    shift[entropy], scale[entropy] = -shifts[top], scales[top]
    if top > 1:
        for at, sign in ((0, 1.0), (1, -1.0)):
            matrix[margin, features + at] = sign * scales[top + 1] / scales[at]
        constant[margin] = scales[top + 1] * (shifts[0] - shifts[1] - shifts[top + 1])
    if agreement:
        row, column = features + view, features + view - 1
        best, label, margin, entropy, both, highest = range(row, row + STUDENT_FEATURES)
        for to, source, sign in (
            *((best, 0, 1.0), (label, 1, 1.0), (margin, 0, 1.0), (margin, 1, -1.0), (entropy, 2, -1.0)),
            *((both, 3, 1.0), (highest, 4, 1.0)),
        ):
            matrix[to, column + source] = sign
        matrix[row + STUDENT_FEATURES :, column + STUDENT_FEATURES - 1 :] = torch.eye(net.classes)
    return matrix, constant, shift, scale


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight.data, layer.bias.data = weight.float(), bias.float()
    return layer
