"""The rejector that a device runs says what the trained one says, with fewer operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from l2h.models import build_rejector, client_view, client_view_size
from l2h.models.lean import LeanRejector
from l2h.models.networks import InputScale
from l2h.models.rejectors import AttachedRejector

KINDS: dict[str, tuple[tuple[int, ...], int, bool, int, dict[str, Any]]] = {
    "separable": ((3, 32, 32), 10, True, 2, {"trunk": "separable", "width": 0.5, "depth": 2, "hidden": 16}),
    "several servers": ((1, 8, 8), 3, True, 4, {"trunk": "separable", "width": 0.25, "hidden": 8}),
    "a pooled stem": ((3, 64, 64), 4, True, 2, {"trunk": "separable", "width": 0.25, "stem": 4, "hidden": 8}),
    "two classes": ((1, 8, 8), 2, True, 2, {"width": 0.5, "hidden": 8}),
    "more classes than are sorted": ((6,), 14, True, 2, {"width": 0.25, "hidden": 8}),
    "without a student": ((1, 8, 8), 5, False, 2, {"width": 0.5, "hidden": 8}),
    "without a trunk": ((1, 8, 8), 5, True, 2, {"width": 0.0, "hidden": 8}),
    "a linear map": ((1, 8, 8), 5, True, 3, {"width": 0.0, "hidden": 0}),
}


@pytest.mark.parametrize("embedding", [0, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_a_lean_rejector_says_the_same(kind: str, embedding: int) -> None:
    shape, classes, student, heads, options = KINDS[kind]
    torch.manual_seed(0)
    x = torch.rand(40, *shape) * 255
    log_p = torch.log_softmax(4 * torch.randn(40, classes), dim=-1)
    log_p[0] = torch.tensor([0.0] + [-1e3] * (classes - 1))  # a client that gives labels only
    features = torch.randn(40, embedding) if embedding else None
    view = client_view(log_p, features)
    scale = InputScale(shape, 100.0 + torch.arange(shape[0]), 1 / (50 + torch.arange(shape[0])))
    size = client_view_size(classes, embedding)
    net = build_rejector("attached", shape, size, classes if student else 0, scale, heads, **options)
    assert isinstance(net, AttachedRejector)
    net.fit_view(view + 0.1 * torch.randn(view.shape))
    for _ in range(2):
        net(x, view)  # statistics of its batch norms
    net.eval()
    with torch.no_grad():
        expected = net(x, view)
        scores, taught = LeanRejector(net, classes).eval()(x, log_p, features)
    close = 1e-5 * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(scores, expected[:, :heads], atol=close, rtol=0)
    if net.classes:
        torch.testing.assert_close(taught, expected[:, heads:], atol=close, rtol=0)
