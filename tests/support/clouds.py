"""Three overlapping clouds, clients of every kind that classify them weakly, and quick systems around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from l2h import HelpSystem, Settings, StageSettings

CLASSES, FEATURES = 3, 4
QUICK = StageSettings(epochs=2, batch=64)


def samples(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three overlapping clouds around the same centres for every seed."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES)) * 1.5
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, n)
    return (centres[y] + rng.normal(size=(n, FEATURES))).astype(np.float32), y


X, Y = samples(240, 1)
X_TEST, Y_TEST = samples(150, 2)
WEIGHTS = np.random.default_rng(3).normal(size=(FEATURES, CLASSES)).astype(np.float32)


def scores(inputs: np.ndarray) -> np.ndarray:
    """A weak client as a plain function: logits."""
    return inputs @ WEIGHTS


def labels(inputs: np.ndarray) -> np.ndarray:
    return scores(inputs).argmax(axis=1)


def probabilities(inputs: np.ndarray) -> np.ndarray:
    e = np.exp(scores(inputs) - scores(inputs).max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


class Net(nn.Module):
    """A client with everything that training could disturb: running statistics, dropout, features."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.last = nn.Linear(8, CLASSES)
        self.body(torch.from_numpy(X))  # running statistics that are not the initial ones

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x))


class NetWithFeatures(Net):
    def embed(self, x: Tensor) -> Tensor:
        return self.body(x)


def settings(**more: Any) -> Settings:
    return Settings(**{"server": QUICK, "rejector": QUICK, "folds": 2, "device": "cpu", "seed": 1, **more})


def make(client: Any = scores, server: Any = "mlp", rejector: Any = "attached", *, given: dict[str, Any] | None = None,
         rejector_stage: StageSettings = QUICK, **more: Any) -> HelpSystem:  # fmt: skip
    """A system that fits in a fraction of a second; ``more`` are settings, ``given`` arguments of the system."""
    return HelpSystem(client, server, rejector, settings=settings(rejector=rejector_stage, **more), **(given or {}))


def torch_script() -> Any:
    return torch.jit.trace(Net().eval(), torch.from_numpy(X[:5]))


def exported_program() -> Any:
    batch = torch.export.Dim("batch", min=1, max=1_000_000)
    return torch.export.export(Net().eval(), (torch.from_numpy(X[:5]),), dynamic_shapes=({0: batch},))


def onnx_file(folder: Path) -> Path:
    path = folder / "client.onnx"
    program = torch.onnx.export(
        Net().eval(),
        (torch.from_numpy(X[:5]),),
        input_names=["x"],
        output_names=["scores"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        verbose=False,
    )
    program.save(path)
    return path


def tree() -> Any:
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(max_depth=3, random_state=0).fit(X[:60], Y[:60])


class Counting:
    """Wraps a function of a batch and counts the inputs it was asked about."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.calls = 0
        self.asked: list[np.ndarray] = []

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        self.calls += 1
        self.asked.append(inputs.copy())
        return self.function(inputs)

    @property
    def count(self) -> int:
        return sum(len(part) for part in self.asked)
