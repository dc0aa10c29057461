"""The named networks are the published ones: layers, sizes, counts, and what is said of a wrong name."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from l2h.errors import ModelError
from l2h.models import MLP, NAMES, AlexNet, LeNet5, build, build_scaled, multiply_adds, rebuild, recommended
from l2h.settings import StageSettings


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def conv(inputs: int, outputs: int, side: int) -> int:
    return outputs * inputs * side * side + outputs


def linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def alexnet_parameters(classes: int, channels: int = 3) -> int:
    features = conv(channels, 64, 11) + conv(64, 192, 5)
    features += conv(192, 384, 3) + conv(384, 256, 3) + conv(256, 256, 3)
    return features + linear(256 * 6 * 6, 4096) + linear(4096, 4096) + linear(4096, classes)


# LeNet-5.


def test_lenet5_has_the_published_layers_and_parameter_count() -> None:
    net = LeNet5((3, 32, 32), 10)
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, c.kernel_size, c.padding, c.stride) for c in convolutions] == [
        (3, 6, (5, 5), (0, 0), (1, 1)),
        (6, 16, (5, 5), (0, 0), (1, 1)),
    ]
    # 32 -> 28 -> 14 -> 10 -> 5: the first linear layer reads 16 maps of 5x5.
    linears = [m for m in net.modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linears] == [(16 * 5 * 5, 120), (120, 84), (84, 10)]
    by_hand = conv(3, 6, 5) + conv(6, 16, 5) + linear(400, 120) + linear(120, 84) + linear(84, 10)
    assert parameters(net) == by_hand == 62_006


def test_lenet5_feature_maps_have_the_published_sizes() -> None:
    net = LeNet5((3, 32, 32), 10)
    x, sizes = torch.zeros(1, 3, 32, 32), []
    for layer in net.features:
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            sizes.append(tuple(x.shape[1:]))
    assert sizes == [(6, 28, 28), (6, 14, 14), (16, 10, 10), (16, 5, 5)]


@pytest.mark.parametrize("shape", [(1, 4, 4), (1, 8, 8), (1, 28, 28), (3, 31, 40), (3, 32, 32), (2, 33, 47)])
def test_lenet5_takes_any_image_of_four_pixels_and_more(shape: tuple[int, ...]) -> None:
    net = LeNet5(shape, 7)
    assert net(torch.zeros(2, *shape)).shape == (2, 7)
    assert net.embed(torch.zeros(2, *shape)).shape == (2, 84)


@pytest.mark.parametrize("shape", [(3, 3, 32), (1, 32, 3), (64,), (32, 32)])
def test_lenet5_refuses_what_is_no_image_of_four_pixels(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match="at least 4x4"):
        LeNet5(shape, 10)


def test_width_multiplies_every_layer_of_lenet5() -> None:
    net = LeNet5((1, 32, 32), 10, width=2)
    by_hand = conv(1, 12, 5) + conv(12, 32, 5) + linear(800, 240) + linear(240, 168) + linear(168, 10)
    assert parameters(net) == by_hand


def test_multiply_adds_of_lenet5_are_those_by_hand() -> None:
    net = LeNet5((3, 32, 32), 10).train()
    by_hand = 28 * 28 * 6 * 3 * 25 + 10 * 10 * 16 * 6 * 25 + 400 * 120 + 120 * 84 + 84 * 10
    assert multiply_adds(net, torch.zeros(1, 3, 32, 32)) == by_hand
    assert net.training, "counting must leave the mode as it was"


# AlexNet.


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_alexnet_counts_as_torchvisions(classes: int) -> None:
    assert alexnet_parameters(1000) == 61_100_840, "the count torchvision publishes for its AlexNet"
    with torch.device("meta"):
        net = AlexNet((3, 32, 32), classes)
    assert parameters(net) == alexnet_parameters(classes)


def test_alexnet_has_the_papers_layers() -> None:
    with torch.device("meta"):
        net = AlexNet((3, 64, 64), 10)
    assert alexnet_parameters(10) == 57_044_810
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert [(c.out_channels, c.kernel_size[0], c.stride[0]) for c in convolutions] == [
        (64, 11, 4),
        (192, 5, 1),
        (384, 3, 1),
        (256, 3, 1),
        (256, 3, 1),
    ]
    assert [m.p for m in net.modules() if isinstance(m, nn.Dropout)] == [0.5, 0.5]
    assert [m.out_features for m in net.modules() if isinstance(m, nn.Linear)] == [4096, 4096, 10]


def test_copying_a_single_pixel_is_adaptive_pooling_gradients_included() -> None:
    torch.manual_seed(0)
    net = AlexNet((3, 64, 64), 5, hidden=16).double().eval()
    x = torch.randn(3, 3, 64, 64, dtype=torch.float64, requires_grad=True)
    assert net.features(x).shape == (3, 256, 1, 1), "at 64x64 a single pixel is left"

    def pooled(x: torch.Tensor) -> torch.Tensor:
        return net.head(net.hidden(adaptive_avg_pool2d(net.features(x), 6).flatten(1)))

    weights = torch.randn(3, 5, dtype=torch.float64)
    leaves = [x, *net.parameters()]
    ours, theirs = net(x), pooled(x)
    assert torch.equal(ours, theirs)
    for mine, other in zip(
        torch.autograd.grad((ours * weights).sum(), leaves),
        torch.autograd.grad((theirs * weights).sum(), leaves),
        strict=True,
    ):
        # Equal but for the order of a sum of 36 doubles.
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-14)


def test_alexnet_resizes_its_input_bilinearly() -> None:
    torch.manual_seed(0)
    net = AlexNet((3, 32, 32), 4, hidden=8).eval()
    x = torch.randn(2, 3, 32, 32)
    big = interpolate(x, size=(64, 64), mode="bilinear", align_corners=False)
    assert torch.equal(net(x), net(big))


def test_alexnet_of_a_larger_size_pools_adaptively() -> None:
    net = AlexNet((3, 32, 32), 4, size=128, hidden=8).eval()
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 4)


def test_alexnet_at_the_smallest_size_and_below() -> None:
    assert AlexNet((1, 8, 8), 3, size=63, hidden=4).eval()(torch.zeros(1, 1, 8, 8)).shape == (1, 3)
    with pytest.raises(ModelError, match="size >= 63"):
        AlexNet((1, 8, 8), 3, size=62, hidden=4)
    with pytest.raises(ModelError, match="needs images"):
        AlexNet((64,), 3)


# MLP.


@pytest.mark.parametrize("hidden", [(), (5,), (256, 256), (7, 3, 2)])
def test_mlp_is_a_chain_of_linear_layers(hidden: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    net = MLP((2, 3), 4, hidden=hidden)
    sizes = [6, *hidden, 4]
    assert parameters(net) == sum(linear(a, b) for a, b in pairwise(sizes))
    x = torch.randn(5, 2, 3)
    linears = [m for m in net.modules() if isinstance(m, nn.Linear)]
    z = x.reshape(5, 6)
    for layer in linears[:-1]:
        z = (z @ layer.weight.T + layer.bias).clamp(min=0)
    torch.testing.assert_close(net.embed(x), z)
    torch.testing.assert_close(net(x), z @ linears[-1].weight.T + linears[-1].bias)


def test_mlp_drops_out_only_while_training() -> None:
    torch.manual_seed(0)
    net = MLP((8,), 3, hidden=(64,), dropout=0.5)
    x = torch.randn(4, 8)
    assert not torch.equal(net.train()(x), net(x))
    assert torch.equal(net.eval()(x), net(x))


# By name.


@pytest.mark.parametrize("name", NAMES)
def test_every_named_model_gives_scores_from_its_own_features(name: str) -> None:
    torch.manual_seed(0)
    options = {"alexnet": {"hidden": 16}, "vit": {"width": 12, "depth": 1}}.get(name, {})
    net = build(name, (3, 32, 32), 6, **options).eval()
    x = torch.randn(2, 3, 32, 32)
    assert net(x).shape == (2, 6)
    torch.testing.assert_close(net(x), net.head(net.embed(x)))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelError) as caught:
        build("resnet", (3, 32, 32), 10)
    assert "resnet" in str(caught.value)
    assert all(name in str(caught.value) for name in ("lenet5", "alexnet", "vit", "mlp"))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("lenet5", ["width"]),
        ("alexnet", ["size", "hidden", "dropout"]),
        ("vit", ["patch", "depth"]),
        ("mlp", ["hidden"]),
    ],
)
def test_an_unknown_option_lists_the_known_ones(name: str, known: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        build(name, (3, 32, 32), 10, colour=1)
    assert "colour" in str(caught.value)
    assert all(option in str(caught.value) for option in known)


@pytest.mark.parametrize(
    ("name", "options"), [("lenet5", {"width": "wide"}), ("mlp", {"hidden": 7}), ("vit", {"patch": "x"})]
)
def test_an_option_of_the_wrong_type_is_a_model_error(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=name):
        build(name, (3, 32, 32), 10, **options)


def test_a_model_is_rebuilt_from_its_plan() -> None:
    torch.manual_seed(0)
    net = build_scaled("mlp", (5,), 3, hidden=(4,)).eval()
    assert net.plan is not None
    again = rebuild(net.plan).eval()
    again.load_state_dict(net.state_dict())
    x = torch.randn(6, 5)
    assert torch.equal(net(x), again(x))
    assert torch.equal(net.embed(x), again.embed(x))


def test_every_name_has_recommended_settings() -> None:
    assert all(isinstance(recommended(name), StageSettings) for name in NAMES)
    assert recommended(None) == recommended("mlp")
