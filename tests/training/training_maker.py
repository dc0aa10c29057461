"""Small samples, nets and contexts for the tests of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from l2h.decision import RejectorSpec
from l2h.models.rejectors import build_rejector, client_view, client_view_size
from l2h.settings import Settings
from l2h.training import Context, RejectorBatch, SamplePool

CPU = torch.device("cpu")
CLASSES = 3
FEATURES = 5


def context(seed: int = 3, **settings: Any) -> Context:
    return Context(Settings(seed=seed, device="cpu", **settings), CPU)


def samples(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three overlapping clouds."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, n)
    centres = rng.normal(size=(CLASSES, FEATURES)) * 1.2
    x = centres[y] + rng.normal(size=(n, FEATURES))
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)


def client_log_probability(x: Tensor, seed: int = 1) -> Tensor:
    """A client that knows a little: a fixed linear map."""
    rng = np.random.default_rng(seed)
    weights = torch.from_numpy(rng.normal(size=(FEATURES, CLASSES)).astype(np.float32))
    return torch.log_softmax(x @ weights, dim=-1)


def small_server(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, CLASSES))


def small_rejector(seed: int = 0) -> nn.Module:
    torch.manual_seed(1000 + seed)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 2))


def named_rejector(kind: str, seed: int, view: Tensor) -> nn.Module:
    """The product's own rejector of a kind, narrow; an attached one has a student."""
    torch.manual_seed(2000 + seed)
    options = {"hidden": 8} if kind == "attached" else {}
    net = build_rejector(kind, (FEATURES,), client_view_size(CLASSES), CLASSES, width=0.25, **options)
    if kind == "attached":
        net.fit_view(view)
    return net


def pool(n: int, seed: int) -> SamplePool:
    """Outcomes of a client and a server that are right more often where the first feature is large."""
    x, y = samples(n, seed)
    log_p = client_log_probability(x)
    rng = np.random.default_rng(seed + 100)
    teacher = torch.softmax(torch.from_numpy(rng.normal(size=(n, CLASSES)).astype(np.float32)), dim=-1)
    server_correct = torch.from_numpy(rng.random(n)) < torch.sigmoid(1 + x[:, 0])
    return SamplePool(
        x=x,
        view=client_view(log_p),
        y=y,
        server_probability=teacher,
        client_correct=log_p.argmax(-1) == y,
        server_correct=server_correct,
        client_target=torch.from_numpy(rng.random(n).astype(np.float32)),
        server_target=0.5 * server_correct.float() + 0.5 * teacher.amax(-1),
        teacher=teacher,
    )


def batch_of(modules: Sequence[nn.Module]) -> RejectorBatch:
    return RejectorBatch(modules, CPU)


def describe(spec: RejectorSpec) -> str:
    return f"{spec.loss} {spec.costs} seed {spec.seed} sync {spec.sync}"
