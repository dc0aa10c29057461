"""The two kinds of rejector.

*Separate* is the paper's: a net of its own on the raw input, which decides before the client runs. *Attached* also
reads the client's answer (see :func:`client_view`), beside a trunk of its own on the input. Both give two numbers per
sample: scores ``(r1, r2)`` for LOCAL and REMOTE or, under the priced loss, the logits of ``q_m`` and ``q_e``. Of S
servers the priced loss trains ``heads = 1 + S`` numbers: the logits of the client and of each server.

A rejector is called as ``rejector(x, view)``; ``view`` is the client's view, which a separate one ignores.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from l2h.errors import ModelError, UnknownNameError
from l2h.models.networks import MLP, InputScale, LeNet5
from l2h.models.separable import plan_trunk

TOP = 10  # sorted probabilities kept; further down the tail is noise


def client_view(log_probability: Tensor, embedding: Tensor | None = None) -> Tensor:
    """Return what an attached rejector sees of the client's answer, (n, V).

    It holds the largest probabilities in order, entropy, margin, log-odds of the answer, the log-probabilities
    (clipped, so one-hot rows of a client that gives only labels are allowed), the label as one-hot, and the client's
    last features where it exposes them.
    """
    clipped = log_probability.clamp(min=LOG_FLOOR)
    p = clipped.exp()
    top = p.topk(min(TOP, p.shape[-1]), dim=-1)
    first, second = top.values[..., 0], top.values[..., min(1, p.shape[-1] - 1)]
    entropy = -(p * clipped).sum(-1)
    log_odds = torch.log(first.clamp(min=1e-6)) - torch.log((1 - first).clamp(min=1e-6))
    # Not the first of top's indices: among equal ones they are in no order, and the client answers the lowest.
    label = torch.zeros_like(p).scatter(-1, p.argmax(-1, keepdim=True), 1.0)
    parts = [top.values, torch.stack([entropy, first - second, log_odds], dim=-1), clipped, label]
    if embedding is not None:
        parts.append(embedding)
    return torch.cat(parts, dim=-1)


LOG_FLOOR = math.log(1e-6)


def client_view_size(num_classes: int, embedding_size: int = 0) -> int:
    """Return the length of :func:`client_view` for one sample."""
    return min(TOP, num_classes) + 3 + 2 * num_classes + embedding_size


def client_log_probability(view: Tensor, num_classes: int) -> Tensor:
    """Return the client's log-probabilities (n, K) from its view."""
    start = min(TOP, num_classes) + 3
    return view[..., start : start + num_classes]


PERCEPTRON = 64  # the layers of a perceptron at width 1
TRUNKS = ("lenet5", "separable")


class SeparateRejector(nn.Module):
    """A trunk (see :class:`AttachedRejector`) and its scores; it decides before the client runs."""

    uses_client = False

    def __init__(
        self,
        input_shape: tuple[int, ...],
        width: float = 1.0,
        scale: InputScale | None = None,
        heads: int = 2,
        **trunk: Any,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.input = scale or InputScale(input_shape)
        self.trunk, size = _trunk(input_shape, width, **trunk)
        self.head = nn.Linear(size, heads)

    def forward(self, x: Tensor, view: Tensor | None = None) -> Tensor:
        scores: Tensor = self.head(self.trunk(self.input(x)))
        return scores


class AttachedRejector(nn.Module):
    """A head on the client's view and on a trunk of its own, whose layers ``width`` multiplies.

    Where ``classes`` is given, the trunk is a small student of the server: it is taught the server's softmax, which
    tells far more than the two bits of who is right, and the head also reads the student's opinion of the client's
    label. The head adds a linear map of its features to a hidden layer over them, so that it starts as a recalibrated
    confidence and learns what confidence misses. A ``width`` of 0 leaves trunk and student out, a ``hidden`` of 0 the
    hidden layer.

    The trunk of images is ``lenet5``, as in the paper, or ``separable``, which does more with fewer multiply-adds and
    has ``depth``, ``stem`` and ``middle`` (:func:`l2h.models.separable.plan_trunk`). Other inputs get a perceptron.
    """

    uses_client = True
    view_shift: Tensor
    view_scale: Tensor

    def __init__(
        self,
        input_shape: tuple[int, ...],
        view_size: int,
        classes: int = 0,
        width: float = 4.0,
        hidden: int = 128,
        scale: InputScale | None = None,
        heads: int = 2,
        **trunk: Any,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.input = scale or InputScale(input_shape)
        self.trunk: nn.Module | None = None
        size = 0
        if width > 0:
            self.trunk, size = _trunk(input_shape, width, **trunk)
        self.classes = classes if width > 0 else 0
        self.student = nn.Linear(size, classes) if self.classes else None
        self.register_buffer("view_shift", torch.zeros(view_size))
        self.register_buffer("view_scale", torch.ones(view_size))
        said = view_size + (STUDENT_FEATURES + classes if self.student is not None else 0)
        self.hidden = nn.Sequential(nn.Linear(said + size, hidden), nn.ReLU()) if hidden else nn.Identity()
        self.head = nn.Linear(hidden, heads) if hidden else None
        self.skip = nn.Linear(said, heads)

    def fit_view(self, view: Tensor) -> None:
        """Set the scaling of the view to zero mean and unit variance on these samples."""
        self.view_shift.copy_(view.mean(0))
        self.view_scale.copy_(1 / view.std(0, correction=0).clamp(min=1e-3))

    def forward(self, x: Tensor, view: Tensor) -> Tensor:
        """Return the heads' numbers, (n, heads); with a student its K scores follow, (n, heads + K)."""
        said = (view - self.view_shift) * self.view_scale
        if self.trunk is None:
            return self._head(said, said)
        features = self.trunk(self.input(x))
        if self.student is None:
            return self._head(said, torch.cat([features, said], dim=-1))
        taught = self.student(features)
        said = torch.cat([said, _agreement(taught, view, self.classes)], dim=-1)
        return torch.cat([self._head(said, torch.cat([features, said], dim=-1)), taught], dim=-1)

    def _head(self, said: Tensor, joined: Tensor) -> Tensor:
        scores: Tensor = self.skip(said) if self.head is None else self.head(self.hidden(joined)) + self.skip(said)
        return scores


STUDENT_FEATURES = 6


def _agreement(taught: Tensor, view: Tensor, classes: int) -> Tensor:
    """Return what the student's probabilities say of the client's label, and its log-probabilities."""
    log_p = torch.log_softmax(taught, dim=-1).clamp(min=LOG_FLOOR)
    p = log_p.exp()
    client_log_p = client_log_probability(view, classes)
    start = min(TOP, classes) + 3 + classes
    label = view[..., start : start + classes]
    best, of_label = p.amax(-1), (p * label).sum(-1)
    both = torch.softmax(log_p + client_log_p, dim=-1)
    margin, entropy = best - of_label, -(p * log_p).sum(-1)
    parts = [best, of_label, margin, entropy, (both * label).sum(-1), both.amax(-1)]
    return torch.cat([torch.stack(parts, dim=-1), log_p], dim=-1)


class UserRejector(nn.Module):
    """A user's own module as a rejector, behind the fixed scaling of uint8 inputs to [-1, 1].

    It is called as ``net(x)``, or ``net(x, view)`` where it has an attribute ``uses_client = True``.
    """

    def __init__(self, scale: InputScale, net: nn.Module, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.input = scale
        self.net = net
        self.uses_client = bool(getattr(net, "uses_client", False))

    def forward(self, x: Tensor, view: Tensor | None = None) -> Tensor:
        scores: Tensor = self.net(self.input(x), view) if self.uses_client else self.net(self.input(x))
        if scores.shape != (x.shape[0], self.heads):
            count = "two" if self.heads == 2 else self.heads
            raise ModelError(
                f"the rejector gives {tuple(scores.shape)}: expected {count} numbers per sample, "
                f"({x.shape[0]}, {self.heads})"
            )
        return scores


def build_rejector(
    kind: str,
    input_shape: tuple[int, ...],
    view_size: int,
    classes: int = 0,
    scale: InputScale | None = None,
    heads: int = 2,
    **options: Any,
) -> nn.Module:
    """Return a fresh rejector of the named kind; ``classes`` is K for an attached one with a student, else 0."""
    of_trunk = ("width", "trunk", "depth", "stem", "middle")
    known = {"separate": of_trunk, "attached": (*of_trunk, "hidden")}
    if kind not in known:
        raise UnknownNameError(f"unknown rejector {kind!r}; known: attached, separate, or a torch module of your own")
    require_known(options, known[kind], f"the {kind} rejector")
    try:
        if kind == "separate":
            return SeparateRejector(input_shape, scale=scale, heads=heads, **options)
        return AttachedRejector(input_shape, view_size, classes, scale=scale, heads=heads, **options)
    except (TypeError, RuntimeError) as error:  # raised by Python and torch for unusable values
        raise ModelError(f"the {kind} rejector cannot be built with {options}: {error}") from error


def require_known(options: Iterable[str], known: Sequence[str], what: str) -> None:
    """Refuse an option that a model does not have; the message lists those it has."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ModelError(f"{what} has no option {', '.join(unknown)}; known: {', '.join(known)}")


def _trunk(
    input_shape: tuple[int, ...], width: float, trunk: str = "lenet5", depth: int = 1, stem: int = 2, middle: int = 0
) -> tuple[nn.Module, int]:
    """Return the trunk of a rejector, and how many features it gives."""
    if trunk not in TRUNKS:
        raise UnknownNameError(f"unknown trunk {trunk!r}; known: {', '.join(TRUNKS)}")
    if trunk == "separable" and len(input_shape) == 3:
        plan = plan_trunk(input_shape, width, depth, stem, middle)
        return plan.build(), plan.features
    if len(input_shape) == 3 and min(input_shape[1:]) >= 4:
        net = LeNet5(input_shape, 1, width)
        return nn.Sequential(net.features, net.hidden), net.head.in_features
    size = max(1, round(PERCEPTRON * width))
    return MLP(input_shape, 1, hidden=(size, size)).hidden, size
