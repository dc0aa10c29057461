"""Prices in money on the command line: what they stand for, where the sentence stands, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import DIGITS, QUICK, Result, assert_told, call
from prompts import write_csv
from report_reader import Page

import l2h
from l2h.experiments.plan import Plan, plan_of

MONEY = ["--request-cost", "0.05", "--error-cost", "0.5", "--currency", "US$", "--per-day", "10000"]


@pytest.mark.usefixtures("no_pictures")
def test_money_stands_for_prices_and_is_told_everywhere(trained: tuple[Path, Result], tmp_path: Path) -> None:
    folder, out = trained[0], tmp_path / "paid"
    told = call("evaluate", folder, *MONEY, "--out", out)
    metrics = json.loads((out / "metrics.json").read_text())
    plain = call("evaluate", folder, "--c-e", "0.1", "--c-1", "1", "--json").json()[0]
    assert {name: metrics[name] for name in plain} == plain
    sentence = metrics["money"]["sentence"]
    assert sentence in " ".join(told.out.split())
    assert sentence in " ".join(Page(out / "report.html").text.split())
    system, data = l2h.load(folder), l2h.load_dataset("digits", limit=300)
    report = system.evaluate(data.X_test, data.y_test, l2h.Costs(0.1))
    paid = np.where(report.remote, 0.05 + 0.5 * ~report.server_correct, 0.5 * ~report.client_correct)
    rivals = {"never ask": 0.5 * ~report.client_correct, "always ask": 0.05 + 0.5 * ~report.server_correct}
    saved = metrics["money"]["saved"]["best_trivial"]
    assert saved["rule"] == min(rivals, key=lambda name: rivals[name].mean())
    assert saved["amount"] == pytest.approx(10_000 * (rivals[saved["rule"]] - paid).mean())
    assert f"{abs(saved['amount']):,.0f} US$ a day" in sentence or math.isclose(abs(saved["amount"]), 0, abs_tol=99)


def test_money_under_a_limit_with_a_second_opinion_and_with_other_errors_of_the_server(
    trained: tuple[Path, Result],
) -> None:
    given = [*MONEY, "--server-error-cost", "1", "--limit", "20%", "--second-opinion", "--json"]
    (metrics,) = call("evaluate", trained[0], *given).json()
    assert metrics["costs"] == {"c_e": 0.1, "c_1": 2.0}
    assert metrics["bound"]["limit"] == "20%"
    assert "student" in metrics["answerers"]
    assert "asking 20.0% at random" in metrics["money"]["sentence"]


@pytest.mark.usefixtures("no_pictures")
def test_a_router_and_a_run_keep_their_money(tmp_path: Path) -> None:
    table, folder = write_csv(tmp_path / "prompts.csv", 200), tmp_path / "router"
    assert call("train", "--outcomes", table, *MONEY, "--out", folder).status == 0
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["costs"] == {"c_e": 0.1, "c_1": 1.0}
    (again,) = call("evaluate", folder, "--json").json()
    assert again["money"] == metrics["money"]
    assert "money" not in call("evaluate", folder, "--c-e", "0.1", "--json").json()[0]
    assert json.loads((folder / "config.json").read_text())["training"]["money"]["currency"] == "US$"


def test_a_plan_in_money() -> None:
    money = l2h.Money({"box": 0.01, "cloud": 0.05}, 0.5, "CHF")
    plan = Plan(data="digits", client="tree", servers={"box": "lenet5", "cloud": "alexnet"}, money=money.as_dict())
    assert plan.prices == {"box": {"c_e": 0.02, "c_1": 1.0}, "cloud": {"c_e": 0.1, "c_1": 1.0}}
    assert plan.reported_costs == [money]
    assert plan_of(json.loads(json.dumps(plan.as_dict()))) == plan
    assert "money" not in Plan(data="digits").as_dict()
    odd = l2h.Money(0.1, 0.3, server_error_cost=0.7)
    plan = Plan(data="digits", money=odd.as_dict())
    assert (plan.costs, plan.reported_costs) == ([odd.costs], [odd])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--request-cost", "0.1", "--error-cost", "0"], ["error_cost=0 must be above 0"]),
        (["--request-cost", "-0.1", "--error-cost", "1"], ["request_cost=-0.1 is negative"]),
        (["--request-cost", "0.1", "--error-cost", "-1"], ["error_cost=-1.0 is negative"]),
        (["--request-cost", "nan", "--error-cost", "1"], ["request_cost=nan is not finite"]),
        (["--request-cost", "0.1", "--error-cost", "inf"], ["error_cost=inf is not finite"]),
        (["--request-cost", "much", "--error-cost", "1"], ["--request-cost much: no number"]),
        (["--currency", "EUR"], ["--currency needs --request-cost and --error-cost"]),
        (["--per-day", "100"], ["--per-day needs --request-cost and --error-cost"]),
        (["--request-cost", "0.1"], ["--request-cost needs --error-cost"]),
        ([*MONEY, "--c-e", "0.1"], ["--request-cost stands for prices: leave out --c-e"]),
        ([*MONEY[:4], "--per-day", "0"], ["per_day=0 must be above 0"]),
        ([*MONEY[:4], "--currency", "E" * 10_000], ["currency='EEEEEEEEEEEEEEEEEEEE' is none"]),
        ([*MONEY[:4], "--currency", "[b]<i>"], ["currency='[b]<i>' is none"]),
        (["--request-cost", "cloud=0.1", "--error-cost", "1"], ["cloud"]),
        ([*MONEY[:4], "--request-cost", "0.2"], ["--request-cost 0.05: it has no name"]),
    ],
)  # fmt: skip
def test_what_is_no_money_is_refused(
    trained: tuple[Path, Result], tmp_path: Path, given: list[Any], words: list[str]
) -> None:
    run = tmp_path / "run"
    for command in (["train", *DIGITS, *QUICK, "--out", run], ["evaluate", trained[0]], ["demo", "--out", run]):
        told = call(*command, *given)
        assert_told(told, [1, 2], *words)
        assert len(told.err) < 1200
        assert not run.exists(), "it is refused before anything is written"


def test_a_cost_that_is_text_is_a_wrong_use_as_of_any_number(trained: tuple[Path, Result]) -> None:
    told = call("evaluate", trained[0], "--request-cost", "0.1", "--error-cost", "much")
    assert told.status == 2
    assert "--error-cost" in told.err
