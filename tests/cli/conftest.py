from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import DIGITS, QUICK, Result, call, undrawn


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A finished run, with TensorBoard logs, two prices and JSON on stdout."""
    folder = tmp_path_factory.mktemp("cli") / "seed-0"
    prices = ["--c-e", "0.1", "--c-e", "0.3", "--c-1", "1.25"]
    result = call("train", *DIGITS, *QUICK, *prices, "--json", "--tensorboard", "--out", folder)
    assert result.status == 0, result.err
    return folder, result


@pytest.fixture(scope="session")
def seeds(trained: tuple[Path, Result]) -> list[Path]:
    """The same training with three seeds."""
    folders = [trained[0]]
    for seed in (1, 2):
        folder = trained[0].with_name(f"seed-{seed}")
        prices = ["--c-e", "0.1", "--c-e", "0.3", "--c-1", "1.25"]
        with undrawn():
            assert call("train", *DIGITS, *QUICK, *prices, "--seed", seed, "--out", folder).status == 0
        folders.append(folder)
    return folders


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four overlapping clouds."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 700)
    X = (rng.normal(size=(4, 6))[y] + rng.normal(size=(len(y), 6))).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "clouds.npz"
    np.savez(path, X_train=X[:450], y_train=y[:450], X_test=X[450:], y_test=y[450:])
    return path
