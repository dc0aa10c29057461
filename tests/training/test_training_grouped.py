"""Many rejectors as one net of groups, and a step that is recorded where that helps: ways to compute, nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_maker import CLASSES, CPU, batch_of, context, pool, samples

from l2h.costs import Costs
from l2h.decision import RejectorSpec
from l2h.models import InputScale
from l2h.models.rejectors import build_rejector, client_view, client_view_size
from l2h.settings import StageSettings
from l2h.training import BatchLoss, RejectorBatch, RejectorStage, SamplePool
from l2h.training.checkpoint import Checkpoints
from l2h.training.loop import RecordedStep, run_stage
from l2h.training.rejectors import _convolve_windows
from l2h.training.together import StagesTogether, run_together

REJECTORS = 3
SHAPES = {"32 pixels": (3, 32, 32), "8 pixels, padded": (1, 8, 8), "oblong": (2, 9, 14), "vectors": (5,)}
#: Kind, classes of the student, options.
KINDS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "separate": ("separate", 0, {"width": 0.5}),
    "attached": ("attached", 0, {"width": 0.5}),
    "attached with a student": ("attached", CLASSES, {"width": 0.5}),
    "attached without a trunk": ("attached", CLASSES, {"width": 0.0}),
    "separate, as narrow as can be": ("separate", 0, {"width": 0.0}),
    "separable": ("attached", CLASSES, {"trunk": "separable", "width": 0.25, "depth": 2}),
    "separable, pooled": ("separate", 0, {"trunk": "separable", "width": 0.25, "depth": 1, "stem": 4}),
}
#: Sums in another order: float32 keeps 7 digits, and a gradient is a sum over some thousand products.
CLOSE = 1e-5


def inputs(shape: tuple[int, ...], n: int = 12) -> tuple[Tensor, Tensor]:
    """Samples of a shape, images as bytes, and what a client said of them."""
    generator = torch.Generator().manual_seed(7)
    x = torch.rand(n, *shape, generator=generator)
    x = (x * 255).to(torch.uint8) if len(shape) == 3 else 4 * x - 2
    return x, client_view(torch.log_softmax(2 * torch.randn(n, CLASSES, generator=generator), dim=-1))


def scaling(shape: tuple[int, ...], shift: float = 0.0) -> InputScale:
    return InputScale(shape, 120.0 + shift, 1 / 64) if len(shape) == 3 else InputScale(shape, 0.1 + shift, 0.8)


def make(kind: str, shape: tuple[int, ...], seed: int, view: Tensor, shift: float = 0.0) -> nn.Module:
    name, classes, options = KINDS[kind]
    torch.manual_seed(seed)
    hidden = {"hidden": 8} if name == "attached" else {}
    net = build_rejector(name, shape, client_view_size(CLASSES), classes, scaling(shape, shift), **options, **hidden)
    if name == "attached":
        net.fit_view(view)
    return net


def assert_as_alone(
    rejectors: RejectorBatch, modules: list[nn.Module], x: Tensor, view: Tensor, close: float = CLOSE
) -> None:
    """Outputs, and the gradient of some function of them in every weight, are those of each module called alone."""
    out = rejectors(x, view, train=True)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    gradients = torch.autograd.grad((out.tanh() * direction).sum(), list(rejectors.params.values()))
    together = dict(zip(rejectors.params, gradients, strict=True))
    for i, module in enumerate(modules):
        alone = module(x, view)
        assert_close(out[i], alone, "outputs")
        own = dict(module.named_parameters())
        found = torch.autograd.grad((alone.tanh() * direction[i]).sum(), list(own.values()))
        for name, expected in zip(own, found, strict=True):
            assert_close(together[name][i], expected, name, close)


def assert_close(found: Tensor, expected: Tensor, what: str, close: float = CLOSE) -> None:
    assert found.shape == expected.shape, what
    error = float((found - expected).detach().abs().max())
    assert error <= close * max(float(expected.detach().abs().max()), 1e-3), f"{what} differ by {error}"


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("kind", KINDS)
def test_rejectors_run_as_groups_are_each_as_alone(kind: str, shape: tuple[int, ...]) -> None:
    x, view = inputs(shape)
    modules = [make(kind, shape, seed, view) for seed in range(REJECTORS)]
    rejectors = batch_of(modules)
    # A trunk of perceptrons, or none, has no convolutions to put side by side.
    assert rejectors.grouped == (len(shape) == 3 and kind != "attached without a trunk")
    # A scale that a later batch norm divides away has a gradient of 0, of which rounding is all that is left.
    assert_as_alone(rejectors, modules, x, view, 1e-2 if "separable" in kind else CLOSE)


@pytest.mark.parametrize(
    ("stride", "padding", "kernel", "bias"),
    [(1, 0, 5, True), (1, 2, 5, True), (2, 1, 3, False), ((2, 1), (0, 3), 3, True)],
)
def test_a_convolution_over_windows_is_the_convolution_of_each_net(
    stride: int | tuple[int, int], padding: int | tuple[int, int], kernel: int, bias: bool
) -> None:
    nets, layer = 5, nn.Conv2d(3, 4, kernel, stride=stride, padding=padding, bias=bias)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, nets * 3, 9, 11, generator=generator, requires_grad=True)
    weight = torch.randn(nets, *layer.weight.shape, generator=generator, requires_grad=True)
    offset = torch.randn(nets, 4, generator=generator, requires_grad=True) if bias else None
    given = [x, weight] if offset is None else [x, weight, offset]
    found = _convolve_windows(layer, x, weight, offset)
    parts = [
        nn.functional.conv2d(part, weight[k], None if offset is None else offset[k], stride=stride, padding=padding)
        for k, part in enumerate(x.split(3, dim=1))
    ]
    expected = torch.cat(parts, dim=1)
    assert_close(found, expected, "output")
    direction = torch.randn(expected.shape, generator=generator)
    gradients = [torch.autograd.grad((out * direction).sum(), given, retain_graph=True) for out in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        assert_close(one, other, "gradient")


@pytest.mark.parametrize("kind", ["separate", "attached with a student"])
def test_the_rejectors_of_a_batch_differ(kind: str) -> None:
    """Or that each is as alone would say little."""
    x, view = inputs((1, 8, 8))
    out = batch_of([make(kind, (1, 8, 8), seed, view) for seed in range(REJECTORS)])(x, view)
    for i in range(REJECTORS):
        for j in range(i):
            assert float((out[i] - out[j]).detach().abs().max()) > 1e-2


@pytest.mark.parametrize("kind", ["separate", "attached", "attached with a student"])
def test_rejectors_with_scalings_of_their_own_are_not_grouped_and_still_as_alone(kind: str) -> None:
    shape = (1, 8, 8)
    x, view = inputs(shape)
    modules = [make(kind, shape, seed, view, shift=20.0 * seed) for seed in range(REJECTORS)]
    rejectors = batch_of(modules)
    assert not rejectors.grouped
    assert_as_alone(rejectors, modules, x, view)


def test_rejectors_with_views_of_their_own_are_grouped_and_as_alone() -> None:
    shape = (1, 8, 8)
    x, view = inputs(shape)
    modules = [make("attached with a student", shape, seed, view * (1 + seed)) for seed in range(REJECTORS)]
    rejectors = batch_of(modules)
    assert rejectors.grouped
    assert "view_scale" not in rejectors.common
    assert_as_alone(rejectors, modules, x, view)


def test_loaded_weights_decide_anew_whether_to_group() -> None:
    shape = (1, 8, 8)
    x, view = inputs(shape)
    one_scaling = [make("separate", shape, seed, view) for seed in range(REJECTORS)]
    several = [make("separate", shape, 10 + seed, view, shift=20.0 * seed) for seed in range(REJECTORS)]
    rejectors = batch_of(one_scaling)
    rejectors.load_state_dict(batch_of(several).state_dict())
    assert not rejectors.grouped
    assert_as_alone(rejectors, several, x, view)
    rejectors.load_state_dict(batch_of(one_scaling).state_dict())
    assert rejectors.grouped
    assert_as_alone(rejectors, one_scaling, x, view)


def test_one_rejector_is_called_as_it_is() -> None:
    x, view = inputs((3, 32, 32))
    module = make("attached with a student", (3, 32, 32), 0, view)
    rejectors = batch_of([module])
    assert not rejectors.grouped
    assert torch.equal(rejectors(x, view)[0], module(x, view))


@pytest.mark.parametrize("kind", ["separate", "attached with a student"])
def test_a_module_taken_out_of_a_batch_of_groups_says_what_it_said_there(kind: str) -> None:
    x, view = inputs((3, 32, 32))
    rejectors = batch_of([make(kind, (3, 32, 32), seed, view) for seed in range(REJECTORS)])
    assert rejectors.grouped
    for i in range(REJECTORS):
        assert_close(rejectors(x, view)[i], rejectors.module(i)(x, view), f"rejector {i}")


def image_pool(n: int, seed: int) -> SamplePool:
    generator = torch.Generator().manual_seed(seed)
    return replace(pool(n, seed), x=(torch.rand(n, 1, 8, 8, generator=generator) * 255).to(torch.uint8))


@pytest.mark.parametrize("kind", ["separate", "attached with a student", "separable"])
def test_groups_train_as_each_alone(kind: str) -> None:
    """Three epochs of SGD, the last batch of each a short one; the tolerance is that of a batch under ``vmap``."""
    specs = [RejectorSpec(loss, Costs(c_e=0.1, c_1=1.25)) for loss in ("shifted", "swapped")]
    settings = StageSettings(epochs=3, batch=32, optimizer="sgd", lr=0.05, schedule="constant", patience=None)
    learned, held = image_pool(80, 1), image_pool(40, 2)

    def train(chosen: list[int]) -> RejectorBatch:
        rejectors = batch_of([make(kind, (1, 8, 8), seed, learned.view) for seed in chosen])
        loss = BatchLoss([specs[seed] for seed in chosen], CPU)
        stage = RejectorStage("rejector", rejectors, loss.on_pool, learned, settings, context(), held)
        run_stage(stage, stage.context)
        return rejectors

    together = train([0, 1])
    assert together.grouped
    for i in (0, 1):
        alone = train([i])
        for name, tensor in alone.state_dict().items():
            difference = float((together.state_dict()[name][i] - tensor[0]).detach().abs().max())
            assert difference <= 1e-5 * max(1.0, float(tensor.detach().abs().max())), name


# A recorded step.


@pytest.mark.parametrize("sizes", [(4, 4, 4, 4, 4, 4, 4, 2), (4, 1, 4), (3,)])
def test_on_a_cpu_a_recorded_step_is_the_step(sizes: tuple[int, ...]) -> None:
    """Every batch, the last and shorter one too, reaches the work as it is, and what that gives comes back as it is."""
    seen: list[Tensor] = []
    given: list[Tensor] = []

    def work(chosen: Tensor) -> Tensor:
        seen.append(chosen)
        given.append(chosen.float().sum(dim=0, keepdim=True))
        return given[-1]

    step = RecordedStep(work, CPU, batch=4)
    batches = [torch.arange(size) + 10 * i for i, size in enumerate(sizes)]
    back = [step(batch) for batch in batches]
    assert len(seen) == len(batches)
    assert all(one is other for one, other in zip(seen, batches, strict=True))
    assert all(one is other for one, other in zip(back, given, strict=True))


def test_a_recorded_step_trains_as_the_step_itself() -> None:
    x, y = samples(50)

    def train(recorded: bool) -> Tensor:
        torch.manual_seed(0)
        net = nn.Linear(x.shape[1], CLASSES)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def work(chosen: Tensor) -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(net(x[chosen]), y[chosen])
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = RecordedStep(work, CPU, batch=16) if recorded else work
        for chosen in torch.arange(50).split(16):
            step(chosen)
        return net.weight.detach().clone()

    assert torch.equal(train(True), train(False))


# Several trainings in lockstep.


def test_stages_together_train_as_each_alone() -> None:
    """Nets of two kinds and sizes, the same order of samples; a third with other epochs is trained by itself."""
    learned, held = image_pool(80, 1), image_pool(40, 2)
    settings = StageSettings(epochs=4, batch=32, lr=0.02, patience=2)

    def stages() -> list[RejectorStage]:
        made = []
        for kind, epochs in (("separable", 4), ("attached with a student", 4), ("separable", 3)):
            rejectors = batch_of([make(kind, (1, 8, 8), seed, learned.view) for seed in range(len(made) + 1)])
            loss = BatchLoss([RejectorSpec()] * rejectors.size, CPU).on_pool
            own = replace(settings, epochs=epochs)
            made.append(RejectorStage(kind, rejectors, loss, learned, own, context(), held, draws="rejector"))
        return made

    alone, together = stages(), stages()
    for stage in alone:
        run_together([stage], stage.context)
    run_together(together, context())
    for one, other in zip(alone, together, strict=True):
        assert other.epoch >= one.epoch  # a net whose patience ran out keeps what it has while the others go on
        assert torch.equal(one.best_epoch, other.best_epoch)
        for name, tensor in one.rejectors.state_dict().items():
            assert torch.equal(tensor, other.rejectors.state_dict()[name]), name


def test_stages_together_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    learned, held = image_pool(80, 1), image_pool(40, 2)

    def run(epochs: int, keep: Checkpoints) -> list[RejectorStage]:
        settings = StageSettings(epochs=4, batch=32, lr=0.02)
        whole = replace(context(), checkpoints=keep)
        made = []
        for seed in (0, 1):
            rejectors = batch_of([make("separable", (1, 8, 8), seed, learned.view)])
            loss = BatchLoss([RejectorSpec()], CPU).on_pool
            made.append(RejectorStage(f"net {seed}", rejectors, loss, learned, settings, whole, held, draws="rejector"))
        both = StagesTogether(made, whole)
        both.settings = replace(settings, epochs=epochs)  # the learning rates are still those of four
        run_stage(both, whole)
        return made

    unbroken = run(4, Checkpoints(None))
    run(2, Checkpoints(tmp_path, False))
    for one, other in zip(unbroken, run(4, Checkpoints(tmp_path, True)), strict=True):
        assert other.epoch == 4
        for name, tensor in one.tensors().items():
            assert torch.equal(tensor, other.tensors()[name]), name
