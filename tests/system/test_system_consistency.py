"""Trained systems against the Bayes rule, on a distribution whose posterior is known in closed form.

Everything is measured under the posterior itself and not on drawn labels: the loss that a decision and an answer are
expected to have at x. So the only noise is that of training and of where the 20,000 test points lie, which the
difference of two risks at the same points hardly feels.
"""

from __future__ import annotations

import numpy as np
import pytest

from l2h import Costs, HelpSystem, Settings, StageSettings
from l2h.decision import bayes

CENTRES = np.array([[0.0, 1.2], [-1.1, -0.7], [1.1, -0.7]])
PRIOR = np.array([0.4, 0.3, 0.3])
PRICES = (Costs(c_e=0.1), Costs(c_e=0.05, c_1=1.25))
WITHIN = 0.01
NOISE = 0.003


def posterior(x: np.ndarray) -> np.ndarray:
    """Three Gaussians of standard deviation 0.8: eta_k ~ prior_k exp(-|x - centre_k|^2 / (2 0.8^2))."""
    log_joint = np.log(PRIOR) - ((x[:, None].astype(np.float64) - CENTRES) ** 2).sum(axis=2) / (2 * 0.8**2)
    joint = np.exp(log_joint - log_joint.max(axis=1, keepdims=True))
    return joint / joint.sum(axis=1, keepdims=True)


def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=PRIOR)
    return (CENTRES[y] + 0.8 * rng.normal(size=(n, 2))).astype(np.float32), y


def weak_client(x: np.ndarray) -> np.ndarray:
    """Looks at the second feature hardly at all, and believes in class 2 too much: right where it is easy."""
    return np.stack([0.5 + 0.3 * x[:, 1], -1.5 * x[:, 0], 0.6 + 1.5 * x[:, 0]], axis=1)


X_TEST, _ = draw(20_000, 99)
ETA = posterior(X_TEST)
CLIENT = weak_client(X_TEST).argmax(axis=1)
ROWS = np.arange(len(X_TEST))


def expected_risk(label: np.ndarray, remote: np.ndarray, costs: Costs) -> float:
    wrong = 1 - ETA[ROWS, label]
    return float(np.where(remote, costs.c_e + costs.c_1 * wrong, wrong).mean())


def bayes_risk(costs: Costs) -> float:
    remote = bayes(ETA, CLIENT, costs)
    return expected_risk(np.where(remote, ETA.argmax(axis=1), CLIENT), remote, costs)


def fit(n: int, loss: str, rejector: str, seed: int = 0) -> HelpSystem:
    settings = Settings(
        loss=loss,
        seed=seed,
        device="cpu",
        folds=2,
        server=StageSettings(epochs=15, batch=128, lr=3e-3, weight_decay=1e-2),
        rejector=StageSettings(epochs=40, batch=128, lr=3e-3, weight_decay=1e-2),
    )
    options = {"width": 1.0} if rejector == "attached" else {}
    system = HelpSystem(
        weak_client, "mlp", rejector, settings=settings, server_options={"hidden": (64, 64)}, rejector_options=options
    )
    return system.fit(*draw(n, seed + 1), costs=PRICES)


def excess(system: HelpSystem, costs: Costs) -> float:
    answers = system.predict(X_TEST, costs)
    return expected_risk(answers.label, answers.source == "remote", costs) - bayes_risk(costs)


@pytest.mark.parametrize("costs", PRICES, ids=str)
def test_the_distribution_leaves_something_to_learn(costs: Costs) -> None:
    """The Bayes rule is far from never asking, always asking and asking at random, or the tests below are idle."""
    best = bayes_risk(costs)
    everywhere = np.ones(len(X_TEST), dtype=bool)
    always = expected_risk(ETA.argmax(axis=1), everywhere, costs)
    never = expected_risk(CLIENT, ~everywhere, costs)
    assert min(always, never) > best + 4 * WITHIN
    assert 0.2 < bayes(ETA, CLIENT, costs).mean() < 0.8


@pytest.mark.long
@pytest.mark.parametrize("rejector", ["attached", pytest.param("separate", marks=pytest.mark.long)])
@pytest.mark.parametrize("loss", ["priced", pytest.param("shifted", marks=pytest.mark.long)])
def test_the_trained_system_is_close_to_the_bayes_rule_and_closer_with_more_samples(loss: str, rejector: str) -> None:
    few, many = fit(1500, loss, rejector), fit(6000, loss, rejector)
    for costs in PRICES:
        assert -1e-9 <= excess(many, costs) < WITHIN
        assert excess(many, costs) <= excess(few, costs) + NOISE
