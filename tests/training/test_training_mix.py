"""Mixed images and smoothed labels: what is drawn, what it means for the loss, and that it repeats."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from l2h.errors import SettingsError
from l2h.settings import Settings, StageSettings
from l2h.training import Context, train_classifier
from l2h.training.augment import mix
from l2h.training.loop import order, seeded
from l2h.training.server import classifier_loss

CPU = torch.device("cpu")
SIDE = 24
DRAWS = 4000


def drawn(x: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    with seeded(CPU, seed):
        return mix(x, share)


def blend_of(seed: int, share: float = 1.0, height: int = SIDE, width: int = SIDE) -> tuple[Tensor, float]:
    """How much of each pixel is the other image's, read off a black image after a white one; and the own weight."""
    with seeded(CPU, seed):
        return next(blends(share, height, width))


def blends(share: float = 1.0, height: int = SIDE, width: int = SIDE) -> Iterator[tuple[Tensor, float]]:
    """The same, draw after draw from torch's generator."""
    pair = torch.stack([torch.zeros(1, height, width), torch.ones(1, height, width)])
    while True:
        mixed, own = mix(pair, share)
        assert torch.equal(mixed[0], 1 - mixed[1])
        yield mixed[0, 0], float(own)


def is_cut(blend: Tensor) -> bool:
    return bool(((blend == 0) | (blend == 1)).all())


# What is drawn.


def test_a_share_of_nothing_gives_the_batch_itself_and_draws_nothing() -> None:
    x = torch.rand(4, 3, SIDE, SIDE)
    before = torch.get_rng_state()
    mixed, own = mix(x, 0.0)
    assert mixed is x
    assert float(own) == 1
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shape", [(8, 5), (8,), (8, 3, 6)])
def test_what_is_no_image_is_never_mixed(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape)
    mixed, own = mix(x, 1.0)
    assert mixed is x
    assert float(own) == 1


@pytest.mark.parametrize("seed", range(12))
def test_each_pixel_lies_between_the_own_image_and_the_one_before(seed: int) -> None:
    """With the same coefficient in every image and channel; the one before the first is the last."""
    x = torch.randn(5, 3, SIDE, SIDE)
    blend, _ = blend_of(seed)
    mixed, _ = drawn(x, 1.0, seed)
    assert mixed.shape == x.shape
    for i in range(5):
        own, before = x[i], x[i - 1]
        assert (mixed[i] >= torch.minimum(own, before) - 1e-6).all()
        assert (mixed[i] <= torch.maximum(own, before) + 1e-6).all()
        assert torch.allclose(mixed[i], torch.lerp(own, before, blend), atol=1e-6)


@pytest.mark.parametrize("size", [(SIDE, SIDE), (8, 8), (12, 30)], ids=str)
def test_the_own_weight_is_what_is_left_of_the_image(size: tuple[int, int]) -> None:
    """Of CutMix the area outside the rectangle, of MixUp the coefficient; 1e-6 for float32."""
    kinds = set()
    for seed in range(40):
        blend, own = blend_of(seed, 1.0, *size)
        assert 0 <= own <= 1
        kinds.add(is_cut(blend))
        if is_cut(blend):
            assert own == pytest.approx(1 - int(blend.sum()) / blend.numel(), abs=1e-6)
            rows, columns = blend.any(dim=1), blend.any(dim=0)
            assert torch.equal(blend.bool(), rows[:, None] & columns[None, :]), "one rectangle"
            for line in (rows, columns):
                assert int((line.int().diff() != 0).sum()) <= 2, "without gaps"
        else:
            assert float(blend.max() - blend.min()) == 0
            assert own == pytest.approx(1 - float(blend[0, 0]), abs=1e-6)
    assert kinds == {True, False}


def test_half_the_mixed_batches_are_cut_and_half_blended_by_the_stated_weights() -> None:
    """Four standard errors of each mean are allowed.

    MixUp's own weight is uniform: mean 1/2. CutMix's rectangle has sides s H and s W with s^2 uniform and a uniform
    centre, cut at the border. A pixel at the share x of a side is covered with probability
    ``g(x, s) = min(1, x + s/2) - max(0, x - s/2)``, so the mean covered area is the integral of ``mean_x g(x, s)^2``
    over s^2, which for many pixels is ``2 (1/4 - 1/10 + 1/96)``, about 0.32: border cuts make it less than 1/2.
    """
    cut, blended = [], []
    with seeded(CPU, 0):
        for blend, own in islice(blends(), DRAWS):
            (cut if is_cut(blend) else blended).append(own)
    assert len(cut) / DRAWS == pytest.approx(0.5, abs=4 * math.sqrt(0.25 / DRAWS))
    assert np.mean(blended) == pytest.approx(0.5, abs=4 * math.sqrt(1 / 12 / len(blended)))
    x = np.arange(SIDE) / SIDE
    s = np.sqrt((np.arange(2000) + 0.5) / 2000)[:, None]
    covered = np.minimum(1, x + s / 2) - np.maximum(0, x - s / 2)
    area = float((covered.mean(axis=1) ** 2).mean())
    assert area == pytest.approx(2 * (1 / 4 - 1 / 10 + 1 / 96), abs=1 / SIDE)
    error = float(np.std(cut)) / math.sqrt(len(cut))
    assert np.mean(cut) == pytest.approx(1 - area, abs=4 * error)
    assert np.quantile(blended, [0.25, 0.75]) == pytest.approx([0.25, 0.75], abs=0.05)


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_the_share_is_how_many_batches_are_mixed(share: float) -> None:
    with seeded(CPU, 0):
        untouched = sum(own == 1 for _, own in islice(blends(share, 16, 16), DRAWS))
    # A rectangle that misses every pixel leaves a batch as it is: one narrower than a pixel, of chance below 1/16^2.
    slack = 4 * math.sqrt(share * (1 - share) / DRAWS) + 1 / 16**2
    assert 1 - untouched / DRAWS == pytest.approx(share, abs=slack)


def test_draws_depend_on_the_generator_alone() -> None:
    x = torch.rand(6, 3, SIDE, SIDE)
    one, other = drawn(x, 1.0, 5), drawn(x, 1.0, 5)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])
    assert len({drawn(x, 1.0, seed)[0].numpy().tobytes() for seed in range(20)}) == 20


# The loss.


def soft_cross_entropy(scores: Tensor, targets: Tensor) -> np.ndarray:
    """-sum_k t_k ln p_k of each row, in double precision."""
    z, t = scores.detach().double().numpy(), targets.double().numpy()
    log_p = z - np.log(np.exp(z - z.max(1, keepdims=True)).sum(1, keepdims=True)) - z.max(1, keepdims=True)
    return -(t * log_p).sum(1)


def smoothed(y: Tensor, classes: int, smoothing: float) -> Tensor:
    """The share ``smoothing`` of each label spread over all classes."""
    targets = torch.full((len(y), classes), smoothing / classes)
    targets[torch.arange(len(y)), y] += 1 - smoothing
    assert torch.allclose(targets.sum(1), torch.ones(len(y)))
    return targets


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_is_the_cross_entropy_of_smoothed_labels(reduction: str, smoothing: float) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = 4 * torch.randn(30, 7, generator=generator)
    y = torch.randint(0, 7, (30,), generator=generator)
    found = classifier_loss(scores, y, StageSettings(reduction=reduction, smoothing=smoothing))
    each = soft_cross_entropy(scores, smoothed(y, 7, smoothing))
    assert float(found) == pytest.approx(each.mean() if reduction == "mean" else each.sum(), rel=1e-5)


def test_smoothed_labels_have_their_least_loss_at_the_smoothed_probabilities() -> None:
    settings = StageSettings(smoothing=0.2)
    y = torch.tensor([1])
    best = torch.log(smoothed(y, 4, 0.2))
    assert best[0].exp().tolist() == pytest.approx([0.05, 0.85, 0.05, 0.05])
    lowest = float(classifier_loss(best, y, settings))
    for seed in range(20):
        near = best + 0.3 * torch.randn(1, 4, generator=torch.Generator().manual_seed(seed))
        assert float(classifier_loss(near, y, settings)) > lowest


# Training.


def small(n: int = 48, classes: int = 3, size: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, n)
    X = np.clip(rng.integers(0, 200, (classes, 1, size, size))[y] + rng.normal(0, 30, (n, 1, size, size)), 0, 255)
    return X.astype(np.uint8), y


def net(seed: int = 0) -> nn.Module:
    class Bright(nn.Module):
        """Linear in brightness."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.float().flatten(1) / 255)

    torch.manual_seed(seed)
    return Bright()


def train(settings: StageSettings, seed: int = 3, model: nn.Module | None = None) -> tuple[nn.Module, list[float]]:
    X, y = small()
    model = net() if model is None else model
    context = Context(Settings(seed=seed, device="cpu"), CPU)
    train_classifier("server", model, X, y, settings, context)
    return model, [row["train_loss"] for row in context.history]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_step_on_mixed_images_has_mixed_labels(smoothing: float, reduction: str) -> None:
    """One batch of all samples: its loss is that of the untrained net on the mixed images.

    The label of an image is its own by the own weight and that of the image before by the rest, then smoothed.
    """
    seen = set()
    for seed in range(6):
        settings = StageSettings(
            epochs=1, batch=48, optimizer="sgd", lr=1e-3, schedule="constant", patience=None,
            smoothing=smoothing, mix=1.0, reduction=reduction,
        )  # fmt: skip
        _, (loss,) = train(settings, seed)
        X, y = small()
        rows = order(48, CPU, seed, "server", 0)
        x, labels = torch.from_numpy(X)[rows], torch.from_numpy(y)[rows]
        with seeded(CPU, seed, "server", 0):
            mixed, own = mix(x.float(), 1.0)
        before = torch.cat([labels[-1:], labels[:-1]])
        targets = own * smoothed(labels, 3, smoothing) + (1 - own) * smoothed(before, 3, smoothing)
        assert torch.allclose(targets.sum(1), torch.ones(48), atol=1e-6)
        # The seed of the net differs from that of the training, so it is the same net every time.
        expected = soft_cross_entropy(net()(mixed), targets).mean()
        assert loss == pytest.approx(expected, rel=1e-5)
        seen.add(round(float(own), 6))
    assert len(seen) == 6


MIXED = StageSettings(epochs=3, batch=16, lr=1e-2, patience=None, smoothing=0.1, mix=0.8)


def test_training_with_mixed_images_repeats_with_its_seed() -> None:
    one, losses = train(MIXED)
    other, again = train(MIXED)
    assert losses == again
    assert len(losses) == 3
    assert np.isfinite(losses).all()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    assert train(MIXED, seed=4)[1] != losses


def test_training_with_mixed_images_learns() -> None:
    """Patterns that a linear map can tell apart; what is mixed is labelled as it is made, so nothing is unlearned."""
    model, losses = train(replace(MIXED, epochs=30))
    assert losses[-1] < losses[0]
    X, y = small()
    with torch.no_grad():
        assert float((model(torch.from_numpy(X)).argmax(1) == torch.from_numpy(y)).float().mean()) > 0.9


@pytest.mark.parametrize("bad", [{"mix": -0.1}, {"mix": 1.5}, {"smoothing": 1.0}, {"smoothing": float("nan")}], ids=str)
def test_shares_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=next(iter(bad))):
        StageSettings(**bad)  # type: ignore[arg-type]
