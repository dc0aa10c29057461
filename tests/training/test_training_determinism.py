"""The same seed gives the same system to the bit; another seed another one; the caller's generators stay put."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from training_maker import client_log_probability, samples

from l2h import Costs, HelpSystem, Settings, StageSettings
from l2h.training import Silent

X, Y = (tensor.numpy() for tensor in samples(240, seed=5))
IMAGES = np.random.default_rng(0).integers(0, 256, (96, 1, 8, 8), dtype=np.uint8)
IMAGE_LABELS = (IMAGES[:, 0, :4].mean(axis=(1, 2)) > IMAGES[:, 0, 4:].mean(axis=(1, 2))).astype(np.int64)
STAGE = StageSettings(epochs=2, batch=32)
PAPER_STAGE = StageSettings(epochs=2, batch=32, optimizer="sgd", schedule="constant", patience=None)
CASES: dict[str, dict[str, Any]] = {
    "crossfit": {"server": STAGE, "rejector": STAGE, "folds": 2},
    "holdout": {"server": STAGE, "rejector": STAGE, "honest": "holdout", "loss": "shifted"},
    "same samples": {"server": STAGE, "rejector": STAGE, "honest": "none", "loss": "swapped"},
    "paper": {"recipe": "paper", "loss": "paper", "server": PAPER_STAGE, "rejector": PAPER_STAGE},
}


def linear_client(inputs: np.ndarray) -> np.ndarray:
    return client_log_probability(torch.from_numpy(inputs)).numpy()


def fit(case: str, seed: int, rejector: str = "attached") -> HelpSystem:
    settings = Settings(seed=seed, device="cpu", **CASES[case])
    options = {"dropout": 0.2}
    system = HelpSystem(linear_client, "mlp", rejector, settings=settings, server_options=options)
    return system.fit(X, Y, costs=Costs(c_e=0.1))


def fit_images(seed: int) -> HelpSystem:
    """Drawn changes of the images come in as well."""
    settings = Settings(seed=seed, device="cpu", augment="flip+shift", copies=2, **CASES["crossfit"])

    def client(inputs: np.ndarray) -> np.ndarray:
        return (inputs[:, 0, 0].mean(axis=1) > 127).astype(np.int64)

    return HelpSystem(client, "lenet5", settings=settings, rejector_options={"width": 1}).fit(IMAGES, IMAGE_LABELS)


def weights(system: HelpSystem) -> dict[str, torch.Tensor]:
    server = {f"server/{name}": tensor for name, tensor in system.fitted.servers[0].network.state_dict().items()}
    return server | {f"rejector/{name}": tensor for name, tensor in system.fitted.rejectors.state_dict().items()}


def assert_identical(one: HelpSystem, two: HelpSystem) -> None:
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


@pytest.mark.parametrize("rejector", ["attached", "separate"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_seed_gives_the_same_system(case: str, rejector: str) -> None:
    one = fit(case, 1, rejector)
    torch.manual_seed(12345)  # the caller's generators have no say
    np.random.seed(12345)
    two = fit(case, 1, rejector)
    assert_identical(one, two)
    answers = [system.predict(X, Costs(c_e=0.1)) for system in (one, two)]
    assert np.array_equal(answers[0].source, answers[1].source)
    assert np.array_equal(answers[0].label, answers[1].label)


@pytest.mark.parametrize("case", CASES)
def test_another_seed_gives_another_system(case: str) -> None:
    one, two = weights(fit(case, 1)), weights(fit(case, 2))
    for side in ("server/", "rejector/"):
        trained = [name for name in one if name.startswith(side) and name.endswith("weight")]
        assert trained
        assert all(not torch.equal(one[name], two[name]) for name in trained)


def test_changed_copies_of_images_are_drawn_from_the_seed() -> None:
    one, two = fit_images(4), fit_images(4)
    assert_identical(one, two)
    assert not np.array_equal(one.judge(IMAGES).scores, fit_images(5).judge(IMAGES).scores)


@pytest.mark.parametrize("case", CASES)
def test_fit_and_predict_leave_the_global_generators_as_they_were(case: str) -> None:
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    system = fit(case, 1)
    system.predict(X, Costs(c_e=0.1))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


def test_fit_trains_on_the_threads_asked_for_and_gives_them_back() -> None:
    class Watching(Silent):
        def __init__(self) -> None:
            self.threads: set[int] = set()

        def epoch(self, stage: str, row: Any) -> None:
            self.threads.add(torch.get_num_threads())

    before, watching = torch.get_num_threads(), Watching()
    torch.set_num_threads(3)
    try:
        settings = Settings(device="cpu", threads=1, **CASES["same samples"])
        system = HelpSystem(linear_client, "mlp", settings=settings)
        system.fit(X, Y, costs=Costs(c_e=0.1), progress=watching)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert watching.threads == {1}
