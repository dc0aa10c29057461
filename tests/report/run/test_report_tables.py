"""The terminal tables: their numbers, and a verdict that tells wins and losses alike."""

from __future__ import annotations

import re
import subprocess
import sys
from statistics import fmean, stdev

import numpy as np
import pytest
from report_maker import make_report
from report_reader import rendered

from l2h import Costs
from l2h.metrics import Report, spread_of_reports
from l2h.report import contrastive_table, headline, risk_table, spread_table, verdict
from l2h.report.common.table import TextTable

REPORTS = [
    {},
    {"classes": 2, "n": 301, "seed": 3},
    {"skill": -1.0, "costs": Costs(c_e=0.25, c_1=1.25)},
    {"rate": 0.0},
    {"rate": 1.0, "confidence": False},
    {"costs": Costs.from_outcomes(c_cc=1, c_ce=11, c_sc=3, c_se=12), "seed": 5},
]


def printed(table: TextTable) -> str:
    return "\n".join(rendered(table, 200))


def rows(table: TextTable) -> dict[str, list[str]]:
    """Cells by the first cell, as a reader of the terminal would take them."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in rendered(table, 200)]
    return {cells[0].removesuffix(" (best)"): cells[1:] for cells in lines if len(cells) > 1}


def losses(report: Report, remote: list[bool]) -> list[float]:
    """Sample by sample, straight from the table of the four outcomes."""
    costs, out = report.costs, []
    for y, m, e, sent in zip(report.y, report.client_label, report.server_label, remote, strict=True):
        if sent:
            out.append(costs.c_sc if e == y else costs.c_se)
        else:
            out.append(costs.c_cc if m == y else costs.c_ce)
    return out


@pytest.mark.parametrize("options", REPORTS)
def test_contrastive_table_holds_the_counts_of_either_side(options: dict[str, object]) -> None:
    report = make_report(**options)  # type: ignore[arg-type]
    found = rows(contrastive_table(report))
    sides = {"kept (LOCAL)": ~report.remote, "sent (REMOTE)": report.remote, "all": report.y >= 0}
    for name, chosen in sides.items():
        ours = [i for i in range(len(report.y)) if chosen[i]]
        share, client, server, difference = found[name]
        assert share == f"{100 * len(ours) / len(report.y):.1f}%"
        if not ours:
            assert (client, server, difference) == ("n/a", "n/a", "n/a")
            continue
        right_m = sum(int(report.client_label[i] == report.y[i]) for i in ours) / len(ours)
        right_e = sum(int(report.server_label[i] == report.y[i]) for i in ours) / len(ours)
        # Half a unit of the last printed digit.
        assert float(client[:-1]) == pytest.approx(100 * right_m, abs=0.0501)
        assert float(server[:-1]) == pytest.approx(100 * right_e, abs=0.0501)
        assert float(difference) == pytest.approx(100 * (right_e - right_m), abs=0.0501)


def test_contrastive_table_states_the_joint_accuracy() -> None:
    report = make_report()
    answers = np.where(report.remote, report.server_label, report.client_label)
    assert f"joint accuracy {100 * np.mean(answers == report.y):.1f}%" in printed(contrastive_table(report))


@pytest.mark.parametrize("options", REPORTS)
def test_risk_table_holds_the_mean_of_the_losses(options: dict[str, object]) -> None:
    report = make_report(**options)  # type: ignore[arg-type]
    n, found = len(report.y), rows(risk_table(report))
    never, always = losses(report, [False] * n), losses(report, [True] * n)
    system = fmean(losses(report, list(report.remote)))
    rate = sum(report.remote) / n
    expected = {
        "this system": (system, rate),
        "never ask": (fmean(never), 0.0),
        "always ask": (fmean(always), 1.0),
        "ask at random, same rate": (rate * fmean(always) + (1 - rate) * fmean(never), rate),
        "oracle": (fmean(map(min, never, always)), None),
    }
    for name, (risk, sent) in expected.items():
        cells = found[name]
        assert float(cells[0]) == pytest.approx(risk, abs=5.01e-5)
        if name != "this system":
            assert float(cells[1]) == pytest.approx(risk - system, abs=5.01e-5)
        if sent is not None:
            assert float(cells[-1][:-1]) == pytest.approx(100 * sent, abs=0.0501)
    confidence = found["confidence threshold"]
    assert (confidence[0] == "n/a") == (report.risk.confidence is None)
    if report.confidence_remote is None:
        assert confidence[-1] == "n/a"
    else:
        asked = sum(report.confidence_remote) / n
        assert float(confidence[-1][:-1]) == pytest.approx(100 * asked, abs=0.0501)


def test_the_best_rule_that_can_be_had_is_marked() -> None:
    for seed in range(4):
        report = make_report(seed=seed)
        risks = {
            "this system": report.risk.system,
            "never ask": report.risk.all_local,
            "always ask": report.risk.all_remote,
            "ask at random, same rate": report.risk.random,
            "confidence threshold": report.risk.confidence,
        }
        best = min(risks, key=lambda name: risks[name] or 0.0)
        marked = re.findall(r"(\S.*?) \(best\)", printed(risk_table(report)))
        assert marked == [best]


def test_verdict_flips_with_the_sign_of_the_difference() -> None:
    good, bad = make_report(4000), make_report(4000, skill=-1.0)
    assert good.risk.system < good.risk.best_trivial
    assert bad.risk.system > bad.risk.best_trivial
    assert verdict(good).pays
    assert not verdict(bad).pays
    share = 1 - good.risk.system / good.risk.best_trivial
    assert f"asking pays: the risk is {100 * share:.1f}% below the best trivial rule" in printed(risk_table(good))
    assert "does not pay at these prices" in printed(risk_table(bad))
    assert "asking pays" not in printed(risk_table(bad))


def test_verdict_names_the_rule_that_wins() -> None:
    dear = make_report(skill=0.0, rate=0.5, costs=Costs(c_e=0.6), confidence=False)
    cheap = make_report(skill=0.0, rate=0.5, costs=Costs(c_e=0.0), confidence=False)
    assert str(verdict(dear)).startswith("asking does not pay at these prices")
    assert "(never ask)" in str(verdict(dear))
    assert str(verdict(cheap)).startswith("answering locally does not pay at these prices")
    assert "(always ask)" in str(verdict(cheap))


def test_a_system_that_never_asks_equals_the_rule_that_never_asks() -> None:
    report = make_report(rate=0.0, costs=Costs(c_e=0.6), confidence=False)
    result = verdict(report)
    assert not result.pays
    assert result.difference == 0.0
    assert "equal to the best trivial rule (never ask)" in result.text


def test_verdict_says_when_confidence_does_better() -> None:
    report = make_report(4000, skill=0.35)
    assert report.risk.confidence is not None
    assert report.risk.confidence < report.risk.system
    assert "confidence threshold" in verdict(report).text
    assert re.search(r"does better|does not pay", verdict(report).text)


def test_interval_is_that_of_the_paired_losses_and_small_samples_are_noise() -> None:
    report = make_report(800)
    n = len(report.y)
    system = losses(report, list(report.remote))
    trivial = min((losses(report, [sent] * n) for sent in (False, True)), key=fmean)
    paired = [a - b for a, b in zip(system, trivial, strict=True)]
    result = verdict(report)
    assert result.difference == pytest.approx(fmean(paired), abs=1e-12)
    assert result.interval == pytest.approx(1.96 * stdev(paired) / n**0.5, rel=1e-4)
    few = [verdict(make_report(40, seed=seed)) for seed in range(20)]
    unclear = [v for v in few if not v.clear and v.difference]
    assert unclear
    assert all("within the noise of 40 samples" in v.text for v in unclear)


def test_headline_holds_the_numbers_that_matter() -> None:
    report = make_report()
    text = headline(report)
    for value in (report.risk.system, report.risk.best_trivial, report.risk.confidence):
        assert f"{value:.4f}" in text
    for value in (report.reject_rate, *report.accuracy.values()):
        assert f"{100 * value:.1f}%" in text


def test_perfect_client_divides_by_nothing() -> None:
    report = make_report(50, rate=0.5, client_accuracy=1.0, confidence=False)
    assert report.risk.all_local == 0.0
    assert "does not pay" in printed(risk_table(report))


@pytest.mark.parametrize("seeds", [1, 4])
def test_spread_table_holds_mean_and_standard_error(seeds: int) -> None:
    reports = [make_report(seed=seed) for seed in range(seeds)]
    found = rows(spread_table(spread_of_reports([r.as_dict() for r in reports]), seeds))
    for name, factor, digits, values in (
        ("risk: this system", 1, 4, [r.risk.system for r in reports]),
        ("client accuracy, %", 100, 2, [r.accuracy["client"] for r in reports]),
        ("frontier gain: this system", 1, 4, [r.gains["system"] or 0.0 for r in reports]),
    ):
        mean, *error = found[name][0].split(" ± ")
        unit = 0.51 * 10.0**-digits
        assert float(mean) == pytest.approx(factor * fmean(values), abs=unit)
        if seeds == 1:
            assert not error
        else:
            assert float(error[0]) == pytest.approx(factor * stdev(values) / seeds**0.5, abs=unit)


def test_spread_table_prints_a_missing_figure_as_such() -> None:
    reports = [make_report(seed=0).as_dict(), make_report(seed=1, confidence=False).as_dict()]
    assert rows(spread_table(spread_of_reports(reports), 2))["risk: confidence threshold"] == ["n/a"]


def test_data_set_name_is_not_markup() -> None:
    report = make_report()
    object.__setattr__(report, "dataset", "[bold]cats[/bold] [/red]")
    assert "[bold]cats[/bold] [/red]" in printed(risk_table(report))


def test_importing_the_package_imports_no_heavy_library() -> None:
    program = (
        "import sys, l2h.report;"
        "assert not {'matplotlib', 'jinja2', 'rich'} & set(sys.modules), 'imported';"
        "print(sorted(dir(l2h.report))[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "Verdict"), done.stderr


@pytest.mark.parametrize(
    ("package", "function"), [("matplotlib", "plot_risk"), ("jinja2", "write_page"), ("matplotlib", "plot_sync")]
)
def test_a_missing_package_is_named_with_its_cure(package: str, function: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from l2h.errors import MissingExtraError\n"
        f"try:\n    from l2h.report import {function}\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert package in done.stdout, done.stderr
    assert "[report]'" in done.stdout
