"""A small trained system, its bundle, and what tests ask of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from clouds import CLASSES, FEATURES, samples
from torch import nn

from l2h import Costs, EdgeClient, HelpSystem, Settings, StageSettings
from l2h.bundle import DeviceBundle, ServerBundle

QUICK = StageSettings(epochs=4, batch=64)
#: Prices at which every input is worth asking, and at which none is.
ALL = Costs(c_e=0.0, c_1=0.0)
NONE = Costs(c_e=5.0)
KEY = "s3cret-key-of-the-tests"


X, Y = samples(600, 1)
X_CAL, Y_CAL = samples(400, 2)
X_TEST, _ = samples(150, 3)


class Net(nn.Module):
    """A weak client: it sees half of the features."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(FEATURES, CLASSES)
        seen = np.c_[X[:, : FEATURES // 2], np.ones(len(X))]
        best = np.linalg.lstsq(seen, np.eye(CLASSES)[Y], rcond=None)[0].astype(np.float32) * 4
        with torch.no_grad():
            self.last.weight.zero_()
            self.last.weight[:, : FEATURES // 2] = torch.from_numpy(best[:-1].T)
            self.last.bias.copy_(torch.from_numpy(best[-1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x)


def make_system(costs: Costs | None = None) -> HelpSystem:
    """A system that fits in a second; with costs, one whose rejector knows those prices alone."""
    loss: dict[str, Any] = {} if costs is None else {"loss": "shifted"}
    settings = Settings(server=QUICK, rejector=QUICK, folds=2, device="cpu", seed=1, threads=1, **loss)
    system = HelpSystem(Net(), "mlp", settings=settings, dataset="clouds").fit(X, Y, costs)
    return system.calibrate(X_CAL, Y_CAL)


class SlowDevice(DeviceBundle):
    """A device whose own answer takes its time."""

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(folder)
        self._seconds = seconds

    def examine(self, X: Any, which: int = 0) -> Any:
        time.sleep(self._seconds)
        return super().examine(X, which)


def pass_time(edge: EdgeClient, seconds: float) -> None:
    """Move the clocks of the circuits on, as if so many seconds had passed."""
    for server in edge._servers:
        server.breaker._clock = lambda before=server.breaker._clock: before() + seconds


def scores_of(bundle: Path) -> Any:
    """The server's model."""
    return ServerBundle(bundle).run
