"""What a rejector sees of the client, and who looks at it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from l2h.errors import ModelError
from l2h.models import (
    AttachedRejector,
    InputScale,
    SeparateRejector,
    build_rejector,
    client_view,
    client_view_size,
)

N = 6


def log_probabilities(classes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.log_softmax(4 * torch.randn(N, classes, generator=generator), dim=-1)


def slow_view(log_p: np.ndarray, embedding: np.ndarray | None) -> np.ndarray:
    """Row by row, in double precision."""
    rows = []
    for i, row in enumerate(log_p.astype(np.float64)):
        floored = [max(value, math.log(1e-6)) for value in row]
        p = [math.exp(value) for value in floored]
        ranked = sorted(p, reverse=True)
        entropy = -sum(math.exp(value) * value for value in floored)
        first = max(p)
        log_odds = math.log(max(first, 1e-6)) - math.log(max(1 - first, 1e-6))
        one_hot = [float(k == int(np.argmax(row))) for k in range(len(row))]
        said = [*ranked[:10], entropy, first - ranked[1], log_odds, *floored, *one_hot]
        rows.append(said + ([] if embedding is None else embedding[i].tolist()))
    return np.array(rows)


@pytest.mark.parametrize("classes", [2, 3, 10, 12])
@pytest.mark.parametrize("features", [0, 4])
def test_client_view_is_the_slow_computation(classes: int, features: int) -> None:
    log_p = log_probabilities(classes)
    embedding = torch.randn(N, features, generator=torch.Generator().manual_seed(1)) if features else None
    view = client_view(log_p, embedding)
    expected = slow_view(log_p.numpy(), None if embedding is None else embedding.numpy())
    assert view.shape == (N, client_view_size(classes, features)) == expected.shape
    # The log-odds of a probability near 1 cancels: float32 holds 1 - p to 6e-8.
    np.testing.assert_allclose(view.numpy(), expected, rtol=1e-3, atol=1e-4)


def test_a_client_of_labels_only_gives_finite_views() -> None:
    labels = torch.tensor([0, 2, 1])
    log_p = torch.full((3, 4), math.log(1e-6)).scatter(1, labels[:, None], 0.0)
    view = client_view(log_p)
    assert torch.isfinite(view).all()
    assert torch.equal(view[:, -4:].argmax(1), labels)
    impossible = torch.full((1, 4), -math.inf)
    impossible[0, 1] = 0.0
    assert torch.isfinite(client_view(impossible)).all()


def attached(classes: int = 0, width: float = 1.0, view_size: int = 0) -> AttachedRejector:
    torch.manual_seed(0)
    return AttachedRejector((5,), view_size or client_view_size(3), classes, width=width).eval()


def test_attached_without_a_student_gives_two_numbers_that_depend_on_input_and_view() -> None:
    rejector = attached()
    x = torch.randn(N, 5, generator=torch.Generator().manual_seed(2))
    view = client_view(log_probabilities(3))
    out = rejector(x, view)
    assert out.shape == (N, 2)
    assert not torch.allclose(rejector(x + 1, view), out)
    assert not torch.allclose(rejector(x, view.flip(0)), out)


def test_attached_with_a_student_adds_scores_that_the_view_cannot_reach() -> None:
    rejector = attached(classes=3)
    x = torch.randn(N, 5, generator=torch.Generator().manual_seed(2))
    view, other = client_view(log_probabilities(3)), client_view(log_probabilities(3, seed=9))
    out, changed = rejector(x, view), rejector(x, other)
    assert out.shape == (N, 2 + 3)
    assert torch.equal(out[:, 2:], changed[:, 2:]), "the student sees the input alone"
    assert not torch.allclose(out[:, :2], changed[:, :2])
    assert not torch.allclose(rejector(x + 1, view)[:, 2:], out[:, 2:])


def test_the_students_opinion_reaches_the_decision() -> None:
    rejector = attached(classes=3)
    x = torch.randn(N, 5, generator=torch.Generator().manual_seed(2))
    view = client_view(log_probabilities(3))
    before = rejector(x, view)[:, :2]
    with torch.no_grad():
        rejector.student.bias += torch.tensor([3.0, 0.0, -3.0])
    assert not torch.allclose(rejector(x, view)[:, :2], before)


@pytest.mark.parametrize("classes", [0, 3])
def test_attached_of_width_0_looks_at_the_view_alone(classes: int) -> None:
    rejector = attached(classes=classes, width=0)
    view = client_view(log_probabilities(3))
    out = rejector(torch.zeros(N, 5), view)
    assert out.shape == (N, 2)
    assert torch.equal(rejector(torch.randn(N, 5), view), out)
    assert not torch.allclose(rejector(torch.zeros(N, 5), view.flip(0)), out)


def test_fit_view_standardises_what_the_head_reads() -> None:
    generator = torch.Generator().manual_seed(3)
    view = torch.randn(500, 4, generator=generator) * torch.tensor([1.0, 50.0, 0.1, 0.0]) + 7
    rejector = attached(width=0, view_size=4)
    rejector.fit_view(view)
    said = (view - rejector.view_shift) * rejector.view_scale
    torch.testing.assert_close(said.mean(0), torch.zeros(4), rtol=0, atol=1e-3)
    torch.testing.assert_close(said[:, :3].var(0, correction=0), torch.ones(3), rtol=1e-3, atol=0)
    assert torch.isfinite(rejector.view_scale).all(), "a constant entry must not divide by nothing"


@pytest.mark.parametrize("shape", [(5,), (1, 8, 8), (3, 32, 32), (2, 3)])
def test_separate_ignores_the_view(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    rejector = SeparateRejector(shape).eval()
    x = torch.randn(N, *shape, generator=torch.Generator().manual_seed(2))
    alone = rejector(x)
    assert alone.shape == (N, 2)
    assert torch.equal(rejector(x, client_view(log_probabilities(3))), alone)
    assert not torch.allclose(rejector(-x), alone)


def test_separate_on_images_is_lenet5_with_two_outputs() -> None:
    rejector = SeparateRejector((3, 32, 32))
    by_hand = (6 * 75 + 6) + (16 * 150 + 16) + (400 * 120 + 120) + (120 * 84 + 84) + (84 * 2 + 2)
    assert sum(p.numel() for p in rejector.parameters()) == by_hand


def test_the_scale_is_applied_first() -> None:
    torch.manual_seed(0)
    rejector = SeparateRejector((5,), scale=InputScale((5,), 2.0, 3.0)).eval()
    x = torch.randn(N, 5, generator=torch.Generator().manual_seed(2))
    expected = rejector(x)
    rejector.input = InputScale((5,))
    torch.testing.assert_close(rejector((x - 2) * 3), expected)


def test_build_rejector_by_kind() -> None:
    assert isinstance(build_rejector("separate", (5,), 9), SeparateRejector)
    assert isinstance(build_rejector("attached", (5,), client_view_size(3), 3, width=1), AttachedRejector)


def test_an_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"'glued'.*attached, separate"):
        build_rejector("glued", (5,), 9)


@pytest.mark.parametrize(("kind", "known"), [("attached", ["width", "hidden"]), ("separate", ["width"])])
def test_an_unknown_option_lists_the_known_ones(kind: str, known: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        build_rejector(kind, (5,), client_view_size(3), colour=1)
    assert "colour" in str(caught.value)
    assert all(option in str(caught.value) for option in known)


def test_among_equal_probabilities_the_view_has_the_client_s_own_label() -> None:
    """A tree gives equal probabilities often; its answer is the lowest of the classes."""
    log_probability = torch.log(
        torch.tensor([[0.3, 0.3, 0.1, 0.3], [0.1, 0.45, 0.45, 0.0], [0.25] * 4]).clamp(min=1e-6)
    )
    many = torch.full((1, 30), math.log(1 / 30))
    for given in (log_probability, many):
        classes = given.shape[1]
        label = client_view(given)[:, -classes:]
        assert label.argmax(1).tolist() == given.numpy().argmax(1).tolist()
        assert label.sum(1).tolist() == [1.0] * len(given)
