"""The report: its schema, and that its parts agree with each other and with the inputs."""

import json
from typing import Any

import numpy as np
import pytest

from l2h.costs import Costs
from l2h.decision import confidence
from l2h.metrics import Report, evaluate, expected_calibration_error, risk, spread_of_reports

N, K = 300, 4

# metrics.json, schema 1: nested keys of what programs read.
SCHEMA_1 = {
    "costs": {"c_e", "c_1"},
    "accuracy": {"client", "server", "system"},
    "risk": {"system", "all_local", "all_remote", "random", "confidence", "oracle"},
    "frontier": {"area", "gain", "confidence_gain", "label_free_gain"},
    "contrastive": {"local", "remote"},
}
PLAIN = {"schema", "dataset", "seed", "samples", "reject_rate", "reject_rate_per_class", "heads", "answerers"}


def inputs(number: int, **changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    y = rng.integers(K, size=N)
    client_label = np.where(rng.random(N) < 0.6, y, rng.integers(K, size=N))
    probability = rng.dirichlet(np.ones(K), size=N)
    probability[np.arange(N), y] += 0.7
    probability /= probability.sum(axis=1, keepdims=True)
    client_confidence = np.where(client_label == y, rng.beta(3, 1, N), rng.beta(1, 1, N))
    score = rng.normal(size=N)
    return {
        "y": y,
        "client_label": client_label,
        "client_confidence": client_confidence,
        "server_probability": probability,
        "remote": score > 0.3,
        "score": score,
        "costs": Costs(c_e=0.1, c_1=1.25),
        "confidence_remote": confidence(client_confidence, 0.4),
        "head_probability": {"client": rng.random(N), "server": rng.random(N)},
        "class_names": ("a", "b", "c", "d"),
        "dataset": "made up",
        "seed": number,
        **changes,
    }


@pytest.fixture(scope="module")
def report() -> Report:
    return evaluate(**inputs(0))


def test_the_dictionary_has_exactly_the_keys_of_schema_1(report: Report) -> None:
    values = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert values == report.as_dict()
    assert set(values) == set(SCHEMA_1) | PLAIN
    assert values["schema"] == 1
    for key, nested in SCHEMA_1.items():
        assert set(values[key]) == nested
    for side in ("local", "remote"):
        assert set(values["contrastive"][side]) == {"ratio", "client", "server"}
    for head in ("client", "server"):
        assert set(values["heads"][head]) == {"ece", "reliability"}
    assert (values["dataset"], values["seed"], values["samples"]) == ("made up", 0, N)
    assert values["costs"] == {"c_e": 0.1, "c_1": 1.25}


def test_every_share_is_a_fraction(report: Report) -> None:
    values = report.as_dict()
    shares = [
        *values["accuracy"].values(),
        values["reject_rate"],
        *values["reject_rate_per_class"].values(),
        *values["contrastive"]["local"].values(),
        *values["contrastive"]["remote"].values(),
        values["frontier"]["area"],
    ]
    assert all(0 <= share <= 1 for share in shares)


def test_the_figures_follow_from_the_inputs(report: Report) -> None:
    given = inputs(0)
    y, remote, costs = given["y"], given["remote"], given["costs"]
    server_label = np.array([int(np.argmax(row)) for row in given["server_probability"]])
    final = np.where(remote, server_label, given["client_label"])
    values = report.as_dict()
    # Means of 300 bits.
    assert values["accuracy"]["client"] == pytest.approx(sum(given["client_label"] == y) / N, abs=1e-15)
    assert values["accuracy"]["server"] == pytest.approx(sum(server_label == y) / N, abs=1e-15)
    assert values["accuracy"]["system"] == pytest.approx(sum(final == y) / N, abs=1e-15)
    assert values["reject_rate"] == pytest.approx(sum(remote) / N, abs=1e-15)
    assert values["contrastive"]["remote"]["ratio"] == values["reject_rate"]
    wrong = final != y
    paid = np.where(remote, 0.1 + 1.25 * wrong, 1.0 * wrong)
    assert values["risk"]["system"] == pytest.approx(paid.mean(), abs=1e-13)
    client, server = given["client_label"] == y, server_label == y
    assert values["risk"]["confidence"] == risk(client, server, given["confidence_remote"], costs)
    for head, truth in (("client", client), ("server", server)):
        ece = expected_calibration_error(given["head_probability"][head], truth)
        assert values["heads"][head]["ece"] == ece
        assert sum(values["heads"][head]["reliability"]["count"]) == N
    for k, name in enumerate(given["class_names"]):
        assert values["reject_rate_per_class"][name] == pytest.approx(remote[y == k].mean(), abs=1e-15)


def test_the_frontiers_know_their_order(report: Report) -> None:
    # The oracle's and the random curve define 1 and 0; rounding alone is left.
    assert report.gains["oracle"] == pytest.approx(1.0, abs=1e-12)
    assert report.gains["random"] == pytest.approx(0.0, abs=1e-12)
    # A client that is surer where it is right: sending the unsure first gains more than the scatter of 0.05.
    assert report.gains["confidence"] > 0.2
    assert report.gains["label_free"] > report.gains["confidence"]
    assert set(report.frontiers) == {"system", "confidence", "label_free", "oracle", "random"}
    assert all(curve.area <= report.frontiers["oracle"].area for curve in report.frontiers.values())
    values = report.as_dict()["frontier"]
    assert (values["gain"], values["confidence_gain"]) == (report.gains["system"], report.gains["confidence"])
    assert values["label_free_gain"] == report.gains["label_free"]
    assert values["area"] == report.frontiers["system"].area


def test_the_system_curve_passes_through_the_decisions_taken(report: Report) -> None:
    at = int(np.argmin(np.abs(report.frontiers["system"].rate - report.reject_rate)))
    # The decisions are a threshold on the score: both figures are quotients of the same counts.
    assert report.frontiers["system"].rate[at] == pytest.approx(report.reject_rate, abs=1e-12)
    assert report.frontiers["system"].accuracy[at] == pytest.approx(report.accuracy["system"], abs=1e-12)


def test_what_is_missing_is_null() -> None:
    given = inputs(1)
    nobody = inputs(
        1,
        remote=np.zeros(N, dtype=bool),
        confidence_remote=None,
        head_probability={},
        class_names=("a", "b", "c", "d", "never"),
        seed=None,
        # A server that agrees with the client everywhere: no order can gain.
        server_probability=np.eye(K)[given["client_label"]],
    )
    values = json.loads(json.dumps(evaluate(**nobody).as_dict(), allow_nan=False))
    assert values["risk"]["confidence"] is None
    assert values["contrastive"]["remote"] == {"ratio": 0.0, "client": None, "server": None}
    assert values["reject_rate_per_class"]["never"] is None
    assert values["frontier"]["gain"] is None
    assert values["seed"] is None
    assert values["heads"] == {}


def test_four_costs_are_written_out_beside_the_two() -> None:
    four = Costs.from_outcomes(1.0, 3.0, 1.5, 4.0)
    values = evaluate(**inputs(2, costs=four)).as_dict()["costs"]
    assert values == {"c_e": 0.25, "c_1": 1.25, "c_cc": 1.0, "c_ce": 3.0, "c_sc": 1.5, "c_se": 4.0}


def test_reports_of_several_seeds_merge_to_the_same_schema() -> None:
    reports = [evaluate(**inputs(seed)).as_dict() for seed in range(3)]
    merged = json.loads(json.dumps(spread_of_reports(reports), allow_nan=False))
    for key, nested in SCHEMA_1.items():
        assert set(merged[key]) == nested
    risks = [r["risk"]["system"] for r in reports]
    # A mean of three numbers.
    assert merged["risk"]["system"]["mean"] == pytest.approx(sum(risks) / 3, rel=1e-14)
    assert merged["reject_rate"]["n"] == 3
