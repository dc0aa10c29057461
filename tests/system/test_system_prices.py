"""A report at other prices and in money: what was judged once is decided as the system itself decides."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import two_servers
from bundle_maker import SPECS, TABLE_TEST, TRAINED_FOR, on_table, tree
from prompts import made_up

from l2h import Costs, HelpSystem, Money
from l2h.data import Dataset
from l2h.errors import DataError
from l2h.experiments.evaluating import evaluate_system, write_metrics
from l2h.metrics import OutcomeReport, Report, money_sentence
from l2h.report import headline, verdict

MONEY = Money(request_cost=0.03, error_cost=0.5, per_day=10_000)


@pytest.fixture(scope="module")
def system() -> HelpSystem:
    return on_table(tree())


@pytest.fixture(scope="module")
def several() -> HelpSystem:
    return two_servers.make(second_opinion=True)


def costs_of(row: dict[str, Any]) -> Any:
    if "prices" in row:
        return {name: Costs.from_dict(values) for name, values in row["prices"].items()}
    return Costs(row["c_e"], row["c_1"])


def assert_sweep(system: HelpSystem, test: tuple[np.ndarray, np.ndarray], costs: Any, step: int) -> list[Any]:
    """Every row is what the system says when it is asked at these prices."""
    report = system.evaluate(*test, costs)
    assert report.sweep is not None
    assert report.no_sweep is None
    assert report.summary() in [{k: v for k, v in row.items() if k != "factor"} for row in report.sweep]
    for row in report.sweep[::step]:
        asked = costs_of(row)
        there = system.evaluate(*test, asked)
        assert report.at(asked).as_dict() == there.as_dict()
        assert there.summary() == {k: v for k, v in row.items() if k != "factor"}
        assert row["verdict"] == verdict(there).standing
        assert (row["best_trivial"]["rule"], row["difference"]) == (verdict(there).rule, verdict(there).difference)
    return report.sweep


def test_a_sweep_is_what_the_system_says_at_each_price(system: HelpSystem) -> None:
    rows = assert_sweep(system, TABLE_TEST, Costs(c_e=0.1234, c_1=1.25), 9)
    assert {"student", "three_ways", "confidence", "oracle", "random", "all_local", "all_remote"} <= set(
        rows[0]["risk"]
    )
    assert sorted({row["c_1"] for row in rows}) == [0.5, 1.0, 1.25, 2.0]
    assert (min(row["c_e"] for row in rows), max(row["c_e"] for row in rows)) == (0, 1)


def test_a_sweep_agrees_with_a_computation_from_the_arrays(system: HelpSystem) -> None:
    report, (X, y) = system.evaluate(*TABLE_TEST, Costs(0.1)), TABLE_TEST
    stated = system.judge(X).stated
    client, server = report.client_label == y, report.server_label == y
    for row in report.sweep or ():
        c_e, c_1 = row["c_e"], row["c_1"]
        sent = 1 - stated["client"] >= c_e + c_1 * (1 - stated["server"])
        paid = np.where(sent, c_e + c_1 * ~server, ~client)
        assert row["risk"]["system"] == pytest.approx(paid.mean())
        assert row["risk"]["all_local"] == pytest.approx(np.mean(~client))
        assert row["risk"]["all_remote"] == pytest.approx(c_e + c_1 * np.mean(~server))
        assert row["risk"]["oracle"] == pytest.approx(np.minimum(~client, c_e + c_1 * ~server).mean())
        assert row["reject_rate"] == pytest.approx(sent.mean())
        assert row["accuracy"] == pytest.approx(np.where(sent, server, client).mean())


def test_prices_of_several_servers_are_scaled_together(several: HelpSystem) -> None:
    rows = assert_sweep(several, two_servers.TEST, two_servers.PRICES, 6)
    for row in rows:
        for name, costs in two_servers.PRICES.items():
            assert row["prices"][name]["c_e"] == pytest.approx(row["factor"] * costs.c_e)
            assert row["prices"][name]["c_1"] == pytest.approx(costs.c_1)
        assert row["c_e"] is None or row["factor"] == 0
        assert set(row["risk"]["single_server"]) == set(row["risk"]["by_server"]) == {"box", "cloud"}
        assert {"two_ways", "student"} <= set(row["risk"])
    one_price = several.evaluate(*two_servers.TEST, Costs(0.05))
    assert {(row["c_e"], row["c_1"]) for row in one_price.sweep or ()} >= {(0.0, 0.5), (0.05, 1.0), (1.0, 2.0)}


def test_a_rejector_of_one_price_and_a_limit_have_no_sweep_and_say_why(system: HelpSystem, tmp_path: Path) -> None:
    trained = on_table(tree(), specs=SPECS)
    data = Dataset("table", *TABLE_TEST, *TABLE_TEST)
    results = evaluate_system(trained, data, TRAINED_FOR)
    write_metrics(tmp_path, results)
    values = json.loads((tmp_path / "metrics.json").read_text())
    assert (values["sweep"], values["no_sweep"]) == (None, "the rejector was trained for c_1=1, c_e=0.05 alone")
    assert [(row["c_e"], row["c_1"]) for row in values["evaluations"]] == [(0.05, 1.0), (0.2, 1.5)]
    for row, costs in zip(values["evaluations"], TRAINED_FOR, strict=True):
        there = trained.evaluate(*TABLE_TEST, costs)
        assert row["risk"]["system"] == there.risk.system
        assert row["accuracy"] == there.accuracy["system"]
    bounded = system.evaluate(*TABLE_TEST, limit="20%")
    assert bounded.sweep is None
    with pytest.raises(DataError, match="the limit 20% decides how often"):
        bounded.at(Costs(0.1))


def test_metrics_hold_every_price_that_was_asked_for(system: HelpSystem, tmp_path: Path) -> None:
    data = Dataset("clouds", *TABLE_TEST, *TABLE_TEST)
    prices = [Costs(0.05), Costs(0.2), Costs(0.2, 2.0), MONEY]
    results = evaluate_system(system, data, prices)
    write_metrics(tmp_path, results)
    values = json.loads((tmp_path / "metrics.json").read_text())
    assert {name: values[name] for name in results[0].as_dict()} == results[0].as_dict()
    assert [row["c_e"] for row in values["evaluations"]] == [0.05, 0.2, 0.2, 0.06]
    assert [("money" in row) for row in values["evaluations"]] == [False, False, False, True]
    for row, costs in zip(values["evaluations"], prices, strict=True):
        assert row.items() >= system.evaluate(*TABLE_TEST, costs).summary().items()
    for row, there in zip(values["sweep"], results[0].report.sweep or (), strict=True):
        assert (row["c_e"], row["c_1"], row["verdict"]) == (there["c_e"], there["c_1"], there["verdict"])
        assert row["risk"] == pytest.approx(there["risk"], abs=1e-6)
    paid = [evaluate_system(system, data, [MONEY]), results]
    sizes = []
    for found in paid:
        write_metrics(tmp_path, found)
        sizes.append((tmp_path / "metrics.json").stat().st_size)
    assert max(sizes) < 90_000


def test_a_router_has_a_sweep_and_money_too() -> None:
    prompts, client, server = made_up(240)
    router = HelpSystem.fit_outcomes(prompts, client, server)
    report = router.evaluate(prompts, client, server, MONEY)
    assert type(report) is OutcomeReport
    for row in (report.sweep or ())[::20]:
        there = router.evaluate(prompts, client, server, MONEY.at(costs_of(row)))
        assert row == there.summary()
    assert report.as_dict()["money"]["sentence"] == money_sentence(report)


def test_a_report_can_be_pickled_with_what_decides_at_other_prices(several: HelpSystem) -> None:
    report = several.evaluate(*two_servers.TEST, two_servers.PRICES)
    again: Report = pickle.loads(pickle.dumps(report))
    other = {"box": Costs(0.1), "cloud": Costs(0.01)}
    assert again.at(other).as_dict() == several.evaluate(*two_servers.TEST, other).as_dict()


def numbers(sentence: str) -> list[float]:
    return [float(text.replace(",", "")) for text in re.findall(r"-?\d[\d,.]*\d|-?\d", sentence)]


@pytest.mark.parametrize(("request_cost", "limit"), [(0.03, None), (0.0005, None), (0.03, "20%"), (0.2, None)])
def test_the_sentence_says_what_the_arrays_say(system: HelpSystem, request_cost: float, limit: str | None) -> None:
    money = Money(request_cost, 0.5, "US$", per_day=10_000, server_error_cost=0.75)
    report = system.evaluate(*TABLE_TEST, money, limit=limit)
    client, server, sent = ~report.client_correct, ~report.server_correct, report.remote
    most = 1.0 if limit is None else 0.2
    per_input = {
        "system": np.where(sent, request_cost + 0.75 * server, 0.5 * client),
        "never": 0.5 * client,
        "always": most * (request_cost + 0.75 * server) + (1 - most) * 0.5 * client,
    }
    best = min(("never", "always"), key=lambda name: per_input[name].mean())
    values = report.as_dict()["money"]
    assert values["cost"]["system"] == pytest.approx(10_000 * per_input["system"].mean())
    for name, other in (("best_trivial", best), ("always", "always")):
        paired = per_input[other] - per_input["system"]
        half = 1.959964 * paired.std(ddof=1) / np.sqrt(len(paired))
        assert values["saved"][name]["amount"] == pytest.approx(10_000 * paired.mean())
        assert values["saved"][name]["interval"] == pytest.approx(10_000 * half)
        shown = [
            abs(10_000 * paired.mean()),
            10_000 * (abs(paired.mean()) - half),
            10_000 * (abs(paired.mean()) + half),
        ]
        found = numbers(values["sentence"])
        assert all(any(abs(value - one) <= max(0.5, 0.01 * abs(one)) for value in found) for one in shown), values
    assert values["requests_saved"] == pytest.approx(1 - sent.mean() / most)
    loses = per_input["system"].mean() > per_input[best].mean()
    assert (" more " in values["sentence"].split("the best trivial rule")[0]) == loses
    assert values["sentence"] in headline(report)


def test_money_scales_linearly_and_decides_as_its_prices_do(system: HelpSystem) -> None:
    report = system.evaluate(*TABLE_TEST, MONEY)
    plain = system.evaluate(*TABLE_TEST, Costs(0.06))
    assert {name: value for name, value in report.as_dict().items() if name != "money"} == plain.as_dict()
    tenfold = system.evaluate(*TABLE_TEST, Money(0.3, 5.0, per_day=10_000))
    twice = system.evaluate(*TABLE_TEST, Money(0.03, 0.5, per_day=20_000))
    thousand = system.evaluate(*TABLE_TEST, Money(0.03, 0.5))
    for other, factor in ((tenfold, 10), (twice, 2), (thousand, 0.1)):
        for name, saved in report.as_dict()["money"]["saved"].items():
            there = other.as_dict()["money"]["saved"][name]
            assert there["amount"] == pytest.approx(factor * saved["amount"])
            assert there["interval"] == pytest.approx(factor * saved["interval"])
        dearer = [one.at(one.money.at(Costs(0.3, 2.0))).as_dict()["money"]["cost"]["system"] for one in (report, other)]
        assert dearer[1] == pytest.approx(factor * dearer[0])
    assert "per 1,000 inputs" in money_sentence(thousand)
    X = TABLE_TEST[0]
    assert (system.predict(X, MONEY).label == system.predict(X, Costs(0.06)).label).all()
    assert system.calibrated_rate(MONEY) == system.calibrated_rate(Costs(0.06))


def test_money_of_several_servers(several: HelpSystem) -> None:
    money = Money({"box": 0.03, "cloud": 0.06}, 1.0, server_error_cost=1.0)
    report = several.evaluate(*two_servers.TEST, money)
    prices = {"box": Costs(0.03), "cloud": Costs(0.06)}
    assert report.risk == several.evaluate(*two_servers.TEST, prices).risk
    row = next(row for row in report.sweep or () if row["factor"] == 2)
    assert row["money"]["request_cost"] == {"box": 0.06, "cloud": 0.12}
