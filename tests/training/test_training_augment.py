"""Augmentation moves pixels and invents none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from l2h.training.augment import augment, distort

N, C, H, W = 400, 2, 16, 24


@pytest.fixture
def batch() -> torch.Tensor:
    """Images in which every pixel of one image has a value of its own, so that a shift can be read off."""
    rng = np.random.default_rng(0)
    return torch.from_numpy(
        np.stack([rng.permutation(C * H * W).reshape(C, H, W) for _ in range(N)]).astype(np.float32)
    )


def augmented(x: torch.Tensor, kind: str, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return augment(x, kind)


def shifted(image: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """``image`` moved up and left by so much, edges repeated."""
    reach = 8
    padded = np.pad(image, ((0, 0), (reach, reach), (reach, reach)), mode="edge")
    return padded[:, reach + rows : reach + rows + H, reach + columns : reach + columns + W]


def find_shift(before: np.ndarray, after: np.ndarray) -> tuple[int, int, bool] | None:
    for flip in (False, True):
        source = before[:, :, ::-1] if flip else before
        for rows in range(-(H // 8), H // 8 + 1):
            for columns in range(-(W // 8), W // 8 + 1):
                if np.array_equal(shifted(source, rows, columns), after):
                    return rows, columns, flip
    return None


def test_none_is_the_very_same_batch(batch: torch.Tensor) -> None:
    assert torch.equal(augmented(batch, "none"), batch)


@pytest.mark.parametrize("kind", ["shift", "flip+shift"])
def test_every_image_is_a_shift_of_itself_with_edges_repeated(batch: torch.Tensor, kind: str) -> None:
    found = [find_shift(a, b) for a, b in zip(batch.numpy(), augmented(batch, kind).numpy(), strict=True)]
    assert None not in found
    moves = [move for move in found if move is not None]
    assert {rows for rows, _, _ in moves} == set(range(-2, 3)), "an eighth of 16 rows each way"
    assert {columns for _, columns, _ in moves} == set(range(-3, 4)), "an eighth of 24 columns each way"
    flips = np.mean([flip for _, _, flip in moves])
    if kind == "shift":
        assert flips == 0
    else:
        # 400 fair coins: five standard deviations are 0.125.
        assert abs(flips - 0.5) < 0.125


@pytest.mark.parametrize("kind", ["shift", "flip+shift"])
def test_values_come_from_the_image_itself(kind: str) -> None:
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.integers(0, 256, (30, 3, 9, 7), dtype=np.uint8))
    out = augmented(x, kind)
    assert out.dtype == torch.uint8
    assert out.shape == x.shape
    for before, after in zip(x, out, strict=True):
        for channel in range(3):
            assert set(after[channel].flatten().tolist()) <= set(before[channel].flatten().tolist())


@pytest.mark.parametrize("kind", ["shift", "flip+shift"])
def test_the_seed_decides(batch: torch.Tensor, kind: str) -> None:
    before = batch.clone()
    assert torch.equal(augmented(batch, kind, 5), augmented(batch, kind, 5))
    assert not torch.equal(augmented(batch, kind, 5), augmented(batch, kind, 6))
    assert torch.equal(batch, before), "the batch itself is left alone"


@pytest.mark.parametrize("kind", ["none", "shift", "flip+shift"])
@pytest.mark.parametrize("shape", [(8, 5), (8, 3, 4)])
def test_tables_are_left_alone(kind: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(augmented(x, kind), x)


@pytest.mark.parametrize("side", [1, 2, 4])
def test_small_images_move_by_one_pixel_at_most(side: int) -> None:
    x = torch.arange(50 * side * side, dtype=torch.float32).reshape(50, 1, side, side)
    out = augmented(x, "shift")
    assert out.shape == x.shape
    assert (out - x).abs().max() <= side + 1


def test_nothing_is_distorted_by_a_share_of_nothing(batch: torch.Tensor) -> None:
    before = torch.get_rng_state()
    assert distort(batch, 0.0) is batch
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_no_image_is_not_distorted() -> None:
    table = torch.rand(5, 7)
    assert distort(table, 1.0) is table


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_the_share_is_how_many_images_are_turned_and_how_many_recoloured(share: float) -> None:
    """A grey image with nothing in it shows its colours alone: it is left as it was by all but the change of light."""
    torch.manual_seed(0)
    grey = torch.full((2000, 3, 8, 8), 100.0)
    changed = (distort(grey, share) - grey).abs().amax(dim=(1, 2, 3)) > 1e-3
    assert abs(float(changed.float().mean()) - share) < 0.04


def test_a_distorted_image_is_near_the_image_and_stays_in_its_place() -> None:
    """A bright square in the middle is still there, brighter or darker by at most 0.4, and the corners are not lit."""
    torch.manual_seed(0)
    image = torch.zeros(500, 3, 32, 32)
    image[:, :, 12:20, 12:20] = 100.0
    out = distort(image, 1.0)
    middle, corner = out[:, :, 14:18, 14:18].mean(dim=(1, 2, 3)), out[:, :, :4, :4].mean(dim=(1, 2, 3))
    assert float(middle.min()) > 30
    assert float(middle.max()) < 200
    assert float((corner / middle).max()) < 0.1
    assert float(out.std(dim=0).max()) > 1
