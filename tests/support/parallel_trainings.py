"""Trainings of a server that one process and several must agree on: ``torchrun ... parallel_trainings.py OUT.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor, nn

import l2h
from l2h.errors import RunError
from l2h.settings import Settings, StageSettings
from l2h.training import Context, data_parallel
from l2h.training.loop import run_stage
from l2h.training.server import ServerStage

N, CLASSES = 67, 3
CPU = torch.device("cpu")


class Skipping(nn.Module):
    """Draws for each sample whether it is shifted, as stochastic depth does."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (torch.rand(len(x), 1) < 0.5) if self.training else x


class Noisy(nn.Module):
    """Draws in every way for each sample: a number, as many as it has, into a tensor, and with given probabilities."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        x = x + 0.2 * torch.randn(len(x), 1, 1, 1) + 0.1 * torch.randn_like(x) + 0.1 * torch.rand_like(x)
        return x * x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(0.9) * torch.bernoulli(torch.full_like(x, 0.9))


def flat_net() -> nn.Module:
    """With dropout per sample and per row of what comes of a sample, as a transformer's tokens are dropped."""
    tokens = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (8, 8)), nn.Linear(8, 8), nn.Dropout(0.3), nn.ReLU())
    return nn.Sequential(tokens, nn.Flatten(), Skipping(), nn.Dropout(0.5), nn.Linear(64, CLASSES))


def drawn_net() -> nn.Module:
    """With layers that drop whole channels, and a parameter that nothing uses."""
    net = nn.Sequential(Noisy(), nn.Conv2d(1, 4, 3), nn.Dropout2d(0.4), nn.SELU(), nn.FeatureAlphaDropout(0.1))
    net = nn.Sequential(*net, nn.Flatten(), nn.AlphaDropout(0.2), nn.Linear(144, CLASSES))
    net.register_parameter("unused", nn.Parameter(torch.zeros(3)))
    return net


def normed_net() -> nn.Module:
    convolution = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return nn.Sequential(convolution, nn.Linear(144, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))


#: A net, the settings of its stage, and those of the training. 67 samples in batches of 11: the last has one.
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "dropout": (flat_net, {"optimizer": "sgd", "lr": 0.05, "smoothing": 0.1}, {"augment": "flip+shift"}),
    "mixed": (flat_net, {"mix": 0.7, "distort": 0.5}, {"augment": "shift"}),
    "drawn": (drawn_net, {"optimizer": "sgd", "lr": 0.01}, {}),
    "normed": (normed_net, {"optimizer": "sgd", "lr": 0.02, "batch": 13}, {}),
    "summed": (normed_net, {"optimizer": "sgd", "lr": 0.002, "reduction": "sum", "batch": 13}, {}),
}


def samples(seed: int, n: int = N) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, n)
    x = rng.normal(size=(n, 1, 8, 8)) + y[:, None, None, None] * np.linspace(-1, 1, 8)
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)


def train(name: str) -> dict[str, Any]:
    """The loss curves and the weights of a case."""
    make, stage, settings = CASES[name]
    torch.manual_seed(0)
    context = Context(Settings(seed=5, device="cpu", **settings), CPU)
    chosen = StageSettings(**{"epochs": 4, "batch": 11, "lr": 1e-3, "schedule": "constant", **stage})
    trained = ServerStage("server", make(), *samples(1), chosen, context, samples(2, 21))
    run_stage(trained, context)
    return {
        "curves": [[row["train_loss"], row["held_out_loss"]] for row in context.history],
        "weights": {name: tensor.double().flatten().tolist() for name, tensor in trained.model.state_dict().items()},
    }


def fit(run: Path | None, seed: int = 0, net: Any = flat_net, shift: float = 0.0) -> dict[str, Any]:
    """What a small system answers."""
    (x, y), (other, _) = (tuple(part.numpy() for part in samples(seed, 240)) for seed in (3, 4))
    client = DecisionTreeClassifier(max_depth=1).fit(x[:60].reshape(60, -1), y[:60])
    stage = StageSettings(epochs=3, batch=32)
    torch.manual_seed(0)  # of the net's first weights
    settings = Settings(seed=seed, server=stage, rejector=stage, folds=2, copies=0, device="cpu", threads=1)
    system = l2h.HelpSystem(client, net(), settings=settings).fit(x[60:] + shift, y[60:], run=run)
    answers = system.predict(other, costs=l2h.Costs(c_e=0.1))
    return {"label": answers.label.tolist(), "source": answers.source.tolist()}


def refusals(rank: int) -> dict[str, str]:
    """What is said where the second process trains something else."""
    others: dict[str, dict[str, Any]] = {"settings": {"seed": rank}, "samples": {"shift": 0.5 * rank}}
    others["network"] = {"net": (flat_net, normed_net)[rank]}
    said = {}
    for name, other in others.items():
        try:
            fit(None, **other)
        except RunError as error:
            said[name] = str(error)
    return said


if __name__ == "__main__":
    with data_parallel("cpu") as group:
        found = {name: train(name) for name in CASES}
        fitted, refused = fit(Path(f"{sys.argv[1]}.run")), refusals(group.rank)
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    values = {"size": group.size, "cases": found, "fitted": fitted, "refused": refused, "threads": threads}
    Path(f"{sys.argv[1]}.{group.rank}").write_text(json.dumps(values))
