"""What a client is fed: as the user says, else as its answers to labelled samples show, and always told."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import CLASSES, digits, linear, write_onnx
from PIL import Image

from l2h import Preprocessing, as_client
from l2h.classifiers import check_accuracy, settle_scale
from l2h.errors import ClientError, SettingsError

X, Y, X_TEST, Y_TEST = digits()
SCALES = ("-1..1", "0..1", "0..255", "imagenet")


def accuracy(client: Any) -> float:
    return float(np.mean(client.answers(X_TEST, CLASSES).label == Y_TEST))


@pytest.mark.parametrize("scale", SCALES)
def test_a_file_that_nobody_described_is_fed_what_it_was_trained_on(
    scale: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the choice is told, with what the others would have given."""
    model = linear(Preprocessing(scale=scale))
    client = as_client(write_onnx(tmp_path / "client.onnx", model))
    with caplog.at_level(logging.INFO, "l2h"):
        settle_scale(client, X, Y, CLASSES, "client")
    assert client.preprocessing == Preprocessing(scale=scale)
    assert next(iter(client.scales_tried)) == scale
    assert set(client.scales_tried) == set(SCALES)
    expected = np.mean(model.scores(X_TEST).argmax(axis=1) == Y_TEST)
    assert accuracy(client) == pytest.approx(expected)
    assert expected > 0.8
    assert f"fed images scaled to {scale}, which gives" in caplog.text
    assert "on 512 labelled samples" in caplog.text


def test_a_torch_module_is_tried_too_and_grey_images_have_no_imagenet() -> None:
    import torch

    grey = X[:, :1]
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, CLASSES))
    client = as_client(module)
    settle_scale(client, grey, Y, CLASSES, "client")
    assert set(client.scales_tried) == {"-1..1", "0..1", "0..255"}


def test_what_the_user_says_is_not_tried(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "client.onnx", linear(Preprocessing(scale="0..1")))
    for given in (Preprocessing(scale="-1..1"), Preprocessing(mean=0.5, std=0.5)):
        client = as_client(path, preprocessing=given)
        settle_scale(client, X, Y, CLASSES, "client")
        assert client.preprocessing == given
        assert not client.scales_tried
    # Less 0.5, divided by 0.5, is [-1, 1] after scaling to 0..1.
    assert np.allclose(Preprocessing(mean=0.5, std=0.5).apply(X), Preprocessing(scale="-1..1").apply(X), atol=1e-6)
    stated = as_client(path, preprocessing=Preprocessing(scale="0..1"))
    with pytest.raises(ClientError, match="is for uint8 images, the samples are float32"):
        settle_scale(stated, X / np.float32(255), Y, CLASSES, "client")


def test_scales_that_cannot_be_told_apart_leave_the_one_of_old_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A client that answers the same whatever it is fed has no better scale."""
    import torch

    class Constant(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full((len(x),), 3)

    client = as_client(Constant())
    settle_scale(client, X, Y, CLASSES, "client")
    assert "cannot be told apart" in caplog.text  # a warning, which Python shows by itself
    assert client.preprocessing == Preprocessing(scale="-1..1")
    assert len(set(client.scales_tried.values())) == 1


@pytest.mark.parametrize("case", ["good", "chance", "one class", "below what was stated"])
def test_a_client_that_looks_broken_is_reported(case: str, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(len(Y)) < 0.6, Y, rng.integers(0, CLASSES, len(Y)))
    if case == "chance":
        labels = rng.permutation(labels)
    elif case == "one class":
        labels = np.full_like(Y, 3)
    client = as_client(lambda _: labels, accuracy=0.9 if case == "below what was stated" else 0.64)
    check_accuracy(client, labels, Y, "client")
    expected = {"good": "", "below what was stated": "far below the 90.0% stated"}.get(case, "hardly more than chance")
    assert expected in caplog.text
    assert bool(caplog.records) == bool(expected)
    caplog.clear()
    check_accuracy(client, labels, Y, "client", images=False)
    assert bool(caplog.records) == bool(expected)
    assert "--client-scale" not in caplog.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scale": "0..2"}, "scale='0..2' is none of -1..1, 0..1, imagenet, 0..255"),
        ({"layout": "HWC"}, "layout='HWC' is none of NCHW, NHWC"),
        ({"scale": "imagenet", "mean": 0.5}, "has a mean and a std of its own"),
        ({"std": (0.5, 0.0, 1.0)}, "above 0, one per channel"),
        ({"mean": float("nan")}, "must be finite numbers"),
        ({"mean": "dark"}, "neither a number nor numbers"),
        ({"size": 0}, "must be a whole number up to 16384"),
        ({"size": (8, 8, 8)}, "must be a whole number up to 16384, or two"),
    ],
)
def test_what_is_no_preprocessing_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Preprocessing(**given)


def test_a_mean_for_other_channels_is_refused() -> None:
    with pytest.raises(SettingsError, match="2 numbers of mean or std were given for samples with 3 channels"):
        Preprocessing(mean=(0.1, 0.2)).apply(X)


@pytest.mark.parametrize("size", [(5, 5), (24, 16), (8, 3), (224, 224)])
def test_resizing_is_pillow_s(size: tuple[int, int]) -> None:
    """The largest centred part of the right proportions, by Pillow's bilinear filter, to float32's roundings."""
    image = np.random.default_rng(0).uniform(0, 255, (11, 17)).astype(np.float32)
    found = Preprocessing(size=size).apply(image[None, None])[0, 0]
    scale = min(11 / size[0], 17 / size[1])
    left, top = (17 - size[1] * scale) / 2, (11 - size[0] * scale) / 2
    box = (left, top, 17 - left, 11 - top)
    expected = np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR, box))
    # 0.15 of 255: at its borders Pillow rounds the filter's support to whole pixels.
    assert np.abs(found - expected).max() < 0.15


@pytest.mark.parametrize("size", [8, 12])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_layout_and_size_are_read_off_the_file(
    layout: str, size: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = linear(Preprocessing(scale="0..1", layout=layout, size=size))
    assert model.shape == ((3, size, size) if layout == "NCHW" else (size, size, 3))
    client = as_client(write_onnx(tmp_path / "client.onnx", model), preprocessing=Preprocessing(scale="0..1"))
    found, _ = client.raw(client.feed(X_TEST.shape[1:]).apply(X_TEST))
    assert np.allclose(found, model.scores(X_TEST), atol=1e-3)
    with caplog.at_level(logging.INFO, "l2h"):
        settle_scale(client, X, Y, CLASSES, "client")
    assert ("the client takes images of 12x12, to which those of 8x8 are brought" in caplog.text) == (size == 12)
    assert ("the client takes its channels last (NHWC)" in caplog.text) == (layout == "NHWC")
    with pytest.raises(
        SettingsError, match=rf"but the model declares inputs of .*{size}.* with 3 channels: leave it out"
    ):
        replace(client.preprocessing, layout="NHWC" if layout == "NCHW" else "NCHW").completed((3, 8, 8), model.shape)
    free = write_onnx(tmp_path / "free.onnx", model, free=True)
    stated = as_client(free, preprocessing=Preprocessing(scale="0..1", layout=layout, size=size))
    assert np.allclose(stated.raw(stated.feed(X_TEST.shape[1:]).apply(X_TEST))[0], found, atol=1e-3)


@pytest.mark.parametrize("batch", [1, 4, 1000])
def test_a_file_of_a_fixed_batch_answers_any_number_of_samples(batch: int, tmp_path: Path) -> None:
    model = linear(Preprocessing(scale="-1..1"))
    free, fixed = (as_client(write_onnx(tmp_path / f"{n}.onnx", model, n)) for n in ("n", batch))
    for n in (1, 7, 40):
        expected = free.answers(X_TEST[:n], CLASSES).log_probability
        assert np.allclose(fixed.answers(X_TEST[:n], CLASSES).log_probability, expected, atol=1e-5)


# One number per sample, of two classes.


@pytest.mark.parametrize("kind", ["callable", "ONNX"])
def test_one_number_between_0_and_1_is_asked_about(kind: str, tmp_path: Path) -> None:
    model = linear(Preprocessing(scale="0..1"), only=(3, 8))
    two = np.isin(Y_TEST, (3, 8))
    inputs, labels = X_TEST[two], np.searchsorted((3, 8), Y_TEST[two])

    def probability(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-model.scores(x)[:, 0]))

    path = write_onnx(tmp_path / "sigmoid.onnx", model, last="Sigmoid")
    given: Any = probability if kind == "callable" else path
    scaled = Preprocessing(scale="0..1") if kind == "ONNX" else None
    with pytest.raises(ClientError, match="one number per sample, all between 0 and 1: say what they are"):
        as_client(given, preprocessing=scaled).answers(inputs, 2)
    answers = as_client(given, preprocessing=scaled, output="probability").answers(inputs, 2)
    assert np.allclose(answers.probability[:, 1], probability(inputs), atol=1e-4)
    assert np.mean(answers.label == labels) > 0.9
    stated = as_client(given, preprocessing=scaled, output="logit").answers(inputs, 2)
    assert np.array_equal(stated.label, np.ones(len(inputs)))


def test_numbers_that_can_only_be_logits_need_no_word_and_are_no_probabilities() -> None:
    margins = np.linspace(-3, 3, 50)
    answers = as_client(lambda _: margins).answers(margins[:, None], 2)
    assert np.allclose(answers.probability[:, 1], 1 / (1 + np.exp(-margins)), atol=1e-6)
    with pytest.raises(ClientError, match="gave -3 for sample 0, which is no probability"):
        as_client(lambda _: margins, output="probability").answers(margins[:, None], 2)
    with pytest.raises(SettingsError, match="neither 'probability' nor 'logit'"):
        as_client(lambda _: margins, output="odds")
