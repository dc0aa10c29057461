"""Reports under a bound on asking: every baseline keeps to it, and the verdict compares with those."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from l2h import Costs, HelpSystem, Settings, StageSettings
from l2h.decision import CLIENT, STUDENT, Allowed, Answerer
from l2h.limits import RateLimit
from l2h.metrics import AnswererChoice, Report, risks_of
from l2h.report.run.page import write_page
from l2h.report.run.tables import risk_rows, risk_table
from l2h.report.run.verdict import verdict
from l2h.routing import fit_router

IMAGES, LABELS = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(IMAGES))
OLD, TRAIN, CAL, TEST = np.split(ORDER, [150, 900, 1300])
X, Y = IMAGES.astype(np.float32) / 16, LABELS
TREE = DecisionTreeClassifier(max_depth=5, random_state=0).fit(X[OLD], Y[OLD])
SERVERS = {
    "box": LogisticRegression(C=0.002, max_iter=200).fit(X[TRAIN[:200]], Y[TRAIN[:200]]),
    "cloud": LogisticRegression(max_iter=200).fit(X[TRAIN], Y[TRAIN]),
}
N = len(TEST)


def trained(**servers: Any) -> HelpSystem:
    settings = Settings(rejector=StageSettings(epochs=6, batch=64), folds=2, device="cpu", seed=0, threads=1)
    return HelpSystem(TREE, settings=settings, **servers).fit(X[TRAIN], Y[TRAIN]).calibrate(X[CAL], Y[CAL])


@pytest.fixture(scope="module")
def system() -> HelpSystem:
    return trained(server=SERVERS["cloud"].predict_proba)


@pytest.fixture(scope="module")
def several() -> HelpSystem:
    return trained(servers={name: model.predict_proba for name, model in SERVERS.items()})


def judged(system: HelpSystem, **named: Any) -> Report:
    return system.evaluate(X[TEST], Y[TEST], **named)


@pytest.mark.parametrize("limit", ["10%", "20%", "20%@90%", "20%/100", "60/1h"])
def test_a_good_system_pays_within_a_bound(system: HelpSystem, limit: str) -> None:
    report = judged(system, limit=limit)
    result = verdict(report)
    assert report.choice.always(report.choice.servers[0]).risk(report.costs) < report.risk.system, (
        "asking about everything would cost less, and is not allowed"
    )
    assert result.pays
    assert result.clear or "/" in limit, "a limiter paces itself: it grants few of a burst"
    assert f"within the limit {limit}" in result.text
    allowed = report.allowed
    assert allowed is not None
    assert ("more than the limit allows" in result.text) == (report.remote.sum() > allowed.total)
    assert report.risk.oracle <= report.risk.system < min(report.risk.all_local, report.risk.all_remote)
    for row in risk_rows(report)[1:]:
        assert row.rate is not None
        assert row.rate <= allowed.share + 1e-12, row.name
    assert f"within the limit {limit}" in risk_table(report).title
    assert json.loads(json.dumps(report.as_dict()))["bound"] == {"limit": limit, "allowed": allowed.share}


def test_the_page_names_the_bound(several: HelpSystem, tmp_path: Path) -> None:
    page = write_page(judged(several, limit="20%"), tmp_path, title="bounded").read_text()
    assert "Every rule keeps to the limit 20%: it asks about" in page
    assert "limit 20%, which allows" in page
    assert "ask cloud for" in page
    assert "always ask" not in page.replace("never and always ask", "")


def test_what_a_bound_allows(system: HelpSystem, several: HelpSystem) -> None:
    """A share is that share; of a limiter that refuses, what it granted; of one that does not, all of its limit."""

    def share(limit: str, **named: Any) -> int:
        allowed = judged(system, limit=limit, **named).allowed
        assert allowed is not None
        return allowed.total

    assert share("20%") == N // 5
    assert share("20%", rule="stochastic") == N // 5
    granted = judged(system, limit="60/1h")
    assert granted.allowed is not None
    assert 0 < granted.allowed.total == granted.remote.sum() <= 60
    rare = Costs(c_e=0.9)
    assert judged(system, costs=rare, limit="400/1h").remote.sum() < 400
    assert share("400/1h", costs=rare) == 400
    assert RateLimit.parse("20%/100").most(250) == 60
    named = judged(several, limit={"cloud": "10%", "all": "30%"}).allowed
    assert named == Allowed("cloud=10%, all=30%", N, N * 3 // 10, {"box": N * 3 // 10, "cloud": N // 10})


def test_without_a_bound_nothing_is_named_or_changed(system: HelpSystem) -> None:
    report = judged(system, costs=Costs(c_e=0.1))
    assert report.allowed is None
    assert "bound" not in report.as_dict()
    assert [row.name for row in risk_rows(report)[1:3]] == ["never ask", "always ask"]
    wide = judged(system, costs=Costs(c_e=0.1), limit="100%")
    assert wide.risk.as_dict() == pytest.approx(report.risk.as_dict(), abs=1e-12)


@pytest.mark.parametrize("prices", [None, Costs(c_e=0.05)])
def test_the_confidence_rule_sends_the_least_confident(system: HelpSystem, prices: Costs | None) -> None:
    report = judged(system, costs=prices, limit="20%")
    asked, confidence = report.confidence_remote, TREE.predict_proba(X[TEST]).max(axis=1)
    assert asked is not None
    assert 0.5 * N / 5 < asked.sum() <= N // 5
    # A tree has few confidences: some of those at the threshold are sent, all below it, none above.
    assert confidence[asked].max() <= confidence[~asked].min()
    wrong = {"client": ~report.client_correct, "server": ~report.server_correct}
    paid = np.where(asked, report.costs.c_e + wrong["server"], wrong["client"])
    assert report.risk.confidence == pytest.approx(paid.mean(), abs=1e-12)


def test_each_of_several_servers_keeps_to_its_bound(several: HelpSystem) -> None:
    costs = {"box": Costs(c_e=0.01), "cloud": Costs(c_e=0.02)}
    report = judged(several, costs=costs, limit={"cloud": "10%", "all": "25%"})
    alone, allowed, risk = report.alternatives, report.allowed, report.risk
    assert allowed is not None
    assert risk.by_server is not None
    never, wrong = 1 - report.accuracy["client"], {name: 1 - f.accuracy for name, f in report.choice.figures().items()}
    for name, most in (("box", N // 4 / N), ("cloud", N // 10 / N)):
        expected = most * (costs[name].c_e + wrong[name]) + (1 - most) * never
        assert risk.by_server[name] == pytest.approx(expected, abs=1e-12)
        # The shares are met on calibration samples: four standard errors of both sets.
        assert alone[name].reject_rate <= most + 4 * math.sqrt(most * (1 - most) * (1 / N + 1 / len(CAL)))
    oracle = report.choice.cheapest(costs, allowed)
    asked = {name: figures.share * N for name, figures in oracle.figures().items()}
    assert asked["cloud"] <= N // 10 + 1e-9
    assert asked["cloud"] + asked["box"] <= N // 4 + 1e-9
    assert risk.oracle == oracle.risk(costs) <= min(risk.system, *(alone[name].risk(costs) for name in costs))
    assert verdict(report).pays
    assert report.as_dict()["bound"]["allowed_by_server"] == {"box": N // 4 / N, "cloud": N // 10 / N}


@pytest.mark.parametrize("seed", range(12))
def test_baselines_are_those_of_brute_force(seed: int) -> None:
    """Every choice of six inputs among a client, its student and two servers, within bounds of each and of all."""
    rng = np.random.default_rng(seed)
    n = 6
    answerers = (CLIENT, STUDENT, Answerer("box", remote=True), Answerer("cloud", remote=True))
    costs = {"box": Costs(c_e=0.1 * rng.integers(3)), "cloud": Costs(c_e=0.2, c_1=1.25)}
    correct = rng.random((n, 4)) < (0.4, 0.5, 0.6, 0.8)
    total = int(rng.integers(n + 1))
    most = {name: int(rng.integers(total + 1)) for name in ("box", "cloud")}
    total = min(total, sum(most.values()))
    allowed = Allowed("made", n, total, most)
    choice = AnswererChoice(answerers, correct, rng.integers(4, size=n))
    found = risks_of(choice, costs, allowed=allowed)

    def risk(chosen: Any) -> float:
        return AnswererChoice(answerers, correct, np.array(chosen)).risk(costs)

    within = [
        chosen
        for chosen in itertools.product(range(4), repeat=n)
        if chosen.count(2) <= most["box"] and chosen.count(3) <= most["cloud"] and sum(c > 1 for c in chosen) <= total
    ]
    assert found.oracle == pytest.approx(min(map(risk, within)), abs=1e-9)
    assert tuple(choice.cheapest(costs, allowed).chosen) in within
    assert found.by_server is not None
    for column, name in ((2, "box"), (3, "cloud")):
        sets = itertools.combinations(range(n), most[name])
        drawn = [risk([column if i in rows else 0 for i in range(n)]) for rows in sets]
        assert found.by_server[name] == pytest.approx(np.mean(drawn), abs=1e-9)
    assert found.all_remote == min(found.by_server.values())
    # At random, each as often as the system asks it, where that is allowed.
    asked = [min(np.mean(choice.chosen == c), most[name] / n) for c, name in ((2, "box"), (3, "cloud"))]
    asked = [share * min(1.0, total / n / max(sum(asked), 1e-12)) for share in asked]
    student = np.mean(choice.chosen == 1)
    shares = [1 - student - sum(asked), student, *asked]
    assert found.random == pytest.approx(sum(s * risk([c] * n) for c, s in enumerate(shares)), abs=1e-9)


def test_inputs_one_by_one_are_sent_as_often_as_all_at_once(system: HelpSystem) -> None:
    """Each call goes on drawing, so that the draws are those of the inputs in their order, however they are split."""
    q, rows, costs = 0.9, np.resize(TEST, 500), Costs(c_e=0.4)
    named: dict[str, Any] = {"costs": costs, "limit": RateLimit(fraction=q), "rule": "stochastic", "seed": 7}
    parts = [rows[i : i + 1] for i in range(450)] + [rows[450:]]
    sent = np.concatenate([system.predict(X[part], **named).source for part in parts]) == "remote"
    q1, wants = system.calibrated_rate(costs), system.judge(X[rows]).remote(costs)
    assert q1 < q
    chance = np.where(wants, 1.0, (q - q1) / (1 - q1))
    assert abs(sent.mean() - chance.mean()) <= 4 * math.sqrt((chance * (1 - chance)).sum()) / len(sent)
    assert not sent.all()
    for _ in range(2):  # evaluate begins afresh
        assert np.array_equal(system.evaluate(X[rows], Y[rows], **named).remote, sent)
    batches = [system.predict(X[rows], **named).source == "remote" for _ in range(2)]
    assert not np.array_equal(*batches)
    for batch in batches:
        assert abs(batch.mean() - chance.mean()) <= 4 * math.sqrt((chance * (1 - chance)).sum()) / len(sent)


def test_a_router_draws_afresh_and_is_judged_within_its_bound() -> None:
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(600, 5))
    client, server = embeddings[:, 0] + 0.5 * rng.normal(size=600) > 0, rng.random(600) < 0.9
    router = fit_router(embeddings, client, server)
    report = router.evaluate(embeddings, client, server, limit="20%")
    assert report.choice.always(report.choice.servers[0]).risk(report.costs) < report.risk.system
    assert verdict(report).standing == "good"
    assert report.as_dict()["bound"] == {"limit": "20%", "allowed": 0.2}
    named: dict[str, Any] = {"limit": "30%", "rule": "stochastic"}
    sent = np.array([router.predict(one[None], **named).source[0] == "remote" for one in embeddings[:200]])
    assert abs(sent.mean() - 0.3) <= 4 * math.sqrt(0.3 * 0.7 * (1 / 200 + 1 / len(router.held_out)))
