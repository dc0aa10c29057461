"""Any number of answerers: what a choice among them costs, and the report on it."""

import json
import math
from typing import Any

import numpy as np
import pytest

from l2h.costs import Costs
from l2h.decision import CLIENT, STUDENT, Answerer
from l2h.errors import DataError
from l2h.metrics import Answered, AnswererChoice, Report, evaluate, risks, risks_of

BOX, CLOUD = Answerer("box", remote=True), Answerer("cloud", remote=True)
FOUR = (CLIENT, STUDENT, BOX, CLOUD)
PRICES = {"box": Costs(c_e=0.05, c_1=1.0), "cloud": Costs(c_e=0.2, c_1=1.25)}
N, K = 400, 5


def paid(name: str, right: bool) -> float:
    """What an answer costs, one outcome at a time."""
    if name in ("client", "student"):
        return 0.0 if right else 1.0
    return PRICES[name].c_e + (0.0 if right else PRICES[name].c_1)


def made(seed: int = 0) -> AnswererChoice:
    rng = np.random.default_rng(seed)
    correct = rng.random((N, 4)) < (0.6, 0.65, 0.75, 0.9)
    return AnswererChoice(FOUR, correct, rng.integers(4, size=N))


def test_every_risk_is_the_mean_of_what_is_paid() -> None:
    choice = made()
    names = [answerer.name for answerer in FOUR]
    table = [[paid(name, bool(right)) for name, right in zip(names, row, strict=True)] for row in choice.correct]
    found, confident = risks_of(choice, PRICES, made(1)), made(1)
    close: dict[str, Any] = {"abs": 1e-13}  # means of 400 numbers below 2
    assert found.system == pytest.approx(
        math.fsum(r[k] for r, k in zip(table, choice.chosen, strict=True)) / N, **close
    )
    assert found.oracle == pytest.approx(math.fsum(map(min, table)) / N, **close)
    always = [math.fsum(row[k] for row in table) / N for k in range(4)]
    assert found.all_local == pytest.approx(always[0], **close)
    assert found.by_server is not None
    assert found.by_server == pytest.approx({"box": always[2], "cloud": always[3]}, **close)
    assert found.all_remote == min(found.by_server.values())
    assert found.best_server == ("box" if always[2] < always[3] else "cloud")
    shares = [float(np.mean(choice.chosen == k)) for k in range(4)]
    assert found.random == pytest.approx(sum(s * r for s, r in zip(shares, always, strict=True)), **close)
    assert found.confidence == confident.risk(PRICES)


def test_two_answerers_have_the_risks_of_the_paper() -> None:
    client, server, remote, confident = np.random.default_rng(3).random((4, 90)) < 0.6
    costs = Costs(c_e=0.1, c_1=1.25)
    two = [AnswererChoice.of_two(client, server, sent) for sent in (remote, confident)]
    assert risks_of(two[0], costs, two[1]) == risks(client, server, remote, costs, confident)
    assert risks_of(two[0], {"server": costs}, two[1]) == risks(client, server, remote, costs, confident)


def test_the_shares_and_accuracies_of_the_answerers_make_up_the_system() -> None:
    choice = made()
    figures = choice.figures()
    assert list(figures) == ["client", "student", "box", "cloud"]
    assert sum(one.share for one in figures.values()) == pytest.approx(1.0, abs=1e-12)
    right = sum(one.share * (one.accuracy_on_answered or 0.0) for one in figures.values())
    assert right == pytest.approx(choice.accuracy, abs=1e-12)
    assert choice.always(BOX).figures()["cloud"].accuracy_on_answered is None
    assert choice.always(BOX).figures()["box"].accuracy_on_answered == figures["box"].accuracy
    assert choice.reject_rate == pytest.approx(figures["box"].share + figures["cloud"].share, abs=1e-12)


def test_outcomes_of_other_inputs_are_refused() -> None:
    with pytest.raises(DataError, match=r"correct must be \(3, 2\)"):
        AnswererChoice((CLIENT, BOX), np.ones((4, 2), dtype=bool), np.zeros(3, dtype=np.intp))


def inputs(second_opinion: bool) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    y = rng.integers(K, size=N)

    def answers(right: float) -> Any:
        return np.where(rng.random(N) < right, y, (y + rng.integers(1, K, size=N)) % K)

    probability = {name: np.eye(K)[answers(right)] for name, right in (("box", 0.75), ("cloud", 0.9))}
    answerers = FOUR if second_opinion else (CLIENT, BOX, CLOUD)
    names = np.array([answerer.name for answerer in answerers])
    other = "two_ways" if second_opinion else "three_ways"
    both = np.array(["client", "student", "box", "cloud"])
    answered = Answered(
        answerers,
        by=rng.choice(names, N),
        local=rng.choice(names[:-2], N),
        remote=rng.choice(names[-2:], N),
        confidence=rng.choice(np.array(["client", "box"]), N),
        alternatives={other: rng.choice(both, N), "box": rng.choice(np.array(["client", "box"]), N)},
    )
    return {
        "y": y,
        "client_label": answers(0.6),
        "student_label": answers(0.65),
        "client_confidence": rng.random(N),
        "server_probability": probability,
        "score": rng.normal(size=N),
        "costs": PRICES,
        "head_probability": {name: rng.random(N) for name in names},
        "class_names": tuple("abcde"),
        "answered": answered,
    }


@pytest.fixture(scope="module", params=[False, True], ids=["two ways", "three ways"])
def report(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Report]:
    given = inputs(request.param)
    return given, evaluate(**given)


def test_the_figures_of_several_answerers_follow_from_the_inputs(report: tuple[dict[str, Any], Report]) -> None:
    given, found = report
    values = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert values == found.as_dict()
    y, answered = given["y"], given["answered"]
    labels = {"client": given["client_label"], "student": given["student_label"]}
    labels |= {name: p.argmax(axis=1) for name, p in given["server_probability"].items()}

    def cost(by: Any) -> float:
        return math.fsum(paid(name, labels[name][i] == y[i]) for i, name in enumerate(by)) / N

    assert values["risk"]["system"] == pytest.approx(cost(answered.by), abs=1e-13)
    assert values["risk"]["confidence"] == pytest.approx(cost(answered.confidence), abs=1e-13)
    for name in ("box", "cloud"):
        assert values["risk"]["by_server"][name] == pytest.approx(cost([name] * N), abs=1e-13)
    (ways,) = {"two_ways", "three_ways"} & set(values)
    assert ways == ("two_ways" if STUDENT in found.answerers else "three_ways")
    by = answered.alternatives[ways]
    assert values[ways] == {
        "risk": pytest.approx(cost(by), abs=1e-13),
        "reject_rate": np.mean(np.isin(by, ["box", "cloud"])),
        "accuracy": np.mean([labels[name][i] == y[i] for i, name in enumerate(by)]),
        "by_student": np.mean(by == "student"),
    }
    assert set(values["single_server"]) == {"box"}
    assert values["single_server"]["box"]["risk"] == pytest.approx(cost(answered.alternatives["box"]), abs=1e-13)
    assert values["student"]["risk"] == pytest.approx(cost(["student"] * N), abs=1e-13)
    assert values["answerers"]["cloud"]["share"] == np.mean(answered.by == "cloud")
    assert list(values["answerers"]) == list(values["heads"]) == [one.name for one in found.answerers]


def test_the_most_accurate_server_stands_for_the_servers(report: tuple[dict[str, Any], Report]) -> None:
    given, found = report
    values = found.as_dict()
    right = given["server_probability"]["cloud"].argmax(axis=1) == given["y"]
    assert values["accuracy"]["server"] == values["answerers"]["cloud"]["accuracy"] == right.mean()
    assert np.array_equal(found.server_correct, right)
    assert values["costs"] is None, "the servers have prices of their own"
    assert values["prices"] == {name: costs.as_dict() for name, costs in PRICES.items()}
    same = evaluate(**given | {"costs": Costs(0.1)}).as_dict()
    assert (same["costs"], set(same["prices"])) == ({"c_e": 0.1, "c_1": 1.0}, {"box", "cloud"})


def test_the_frontier_leads_from_the_best_local_to_the_best_remote_answer(
    report: tuple[dict[str, Any], Report],
) -> None:
    given, found = report
    curve, answered = found.frontiers["system"], given["answered"]
    everyone = {name: np.asarray(label) == found.y for name, label in found.given.items()}
    for end, by in ((0, answered.local), (-1, answered.remote)):
        assert curve.accuracy[end] == np.mean([everyone[name][i] for i, name in enumerate(by)])
    oracle = found.frontiers["oracle"]
    local = [name for name in ("client", "student") if name in {one.name for one in found.answerers}]
    assert oracle.accuracy[0] == np.any([everyone[name] for name in local], axis=0).mean()
    assert oracle.accuracy[-1] == np.any([everyone["box"], everyone["cloud"]], axis=0).mean()
    assert found.gains["oracle"] == pytest.approx(1.0, abs=1e-12)
    assert found.gains["random"] == pytest.approx(0.0, abs=1e-12)
