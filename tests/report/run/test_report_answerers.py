"""Reports on several servers and a second opinion: who answers, beside what the system would be without them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from report_maker import make_images, make_report, make_several
from report_reader import Page, rendered

from l2h import Costs
from l2h.labels import LabelCodec
from l2h.metrics import Answered, Report, evaluate, spread_of_reports
from l2h.report import (
    answerer_table,
    contrastive_table,
    headline,
    plot_contrastive,
    plot_frontier,
    plot_per_class,
    plot_reliability,
    plot_risk,
    risk_table,
    spread_table,
    verdict,
    write_page,
)
from l2h.report.common.table import TextTable
from l2h.report.run.tables import class_table


def printed(table: TextTable) -> str:
    return "\n".join(rendered(table, 120))


def rows(table: TextTable) -> dict[str, list[str]]:
    cells = (re.split(r"\s{2,}", line.strip()) for line in rendered(table, 120))
    return {row[0].removesuffix(" (best)"): row[1:] for row in cells}


@pytest.fixture(scope="module", params=[False, True], ids=["two ways", "three ways"])
def report(request: pytest.FixtureRequest) -> Report:
    return make_several(second_opinion=request.param)


def test_the_table_of_answerers_holds_every_figure(report: Report) -> None:
    found, values = rows(answerer_table(report)), report.as_dict()
    for name, figures in values["answerers"].items():
        share, answered, everywhere, c_e, c_1, _, alone = found[name]
        shown = [float(cell[:-1]) / 100 for cell in (share, answered, everywhere)]
        expected = [figures[key] for key in ("share", "accuracy_on_answered", "accuracy")]
        assert shown == pytest.approx(expected, abs=5.01e-4)
        price = values["prices"].get(name, {"c_e": 0.0, "c_1": 1.0})
        assert (float(c_e), float(c_1)) == (price["c_e"], price["c_1"])
        right = np.asarray(report.given[name]) == report.y
        assert float(alone) == pytest.approx(np.mean(price["c_e"] + price["c_1"] * ~right), abs=5.01e-5)
    assert found["box"][5] == "2,100,000"
    assert found["cloud"][5] == "n/a"


def test_the_system_stands_beside_each_server_alone_and_the_other_number_of_ways(report: Report) -> None:
    found, values = rows(risk_table(report)), report.as_dict()
    ways = "two_ways" if "two_ways" in values else "three_ways"
    name = {"two_ways": "without the second opinion", "three_ways": "with its student as a second opinion"}[ways]
    expected = {
        name: values[ways],
        "asking box alone": values["single_server"]["box"],
        "asking cloud alone": values["single_server"]["cloud"],
    }
    for rule, figures in expected.items():
        assert float(found[rule][0]) == pytest.approx(figures["risk"], abs=5.01e-5)
        assert float(found[rule][2][:-1]) == pytest.approx(100 * figures["reject_rate"], abs=0.0501)
    for server, risk in values["risk"]["by_server"].items():
        assert float(found[f"always ask {server}"][0]) == pytest.approx(risk, abs=5.01e-5)
    student = "its student in the client's place" if ways == "three_ways" else "the student alone"
    assert float(found[student][0]) == pytest.approx(values["student"]["risk"], abs=5.01e-5)
    assert "confidence threshold, asking box" in found


def test_the_inputs_that_each_answers_have_everybodys_accuracy(report: Report) -> None:
    found = rows(contrastive_table(report))
    names = [one.name for one in report.answerers]
    for k, who in enumerate(names):
        here = report.choice.chosen == k
        right = [np.mean(np.asarray(report.given[name])[here] == report.y[here]) for name in names]
        shown = [float(cell[:-1]) / 100 for cell in found[f"answered by {who}"]]
        assert shown == pytest.approx([here.mean(), *right], abs=5.01e-4)


def test_the_headline_says_who_answers_how_much(report: Report) -> None:
    text = headline(report)
    for name, figures in report.choice.figures().items():
        assert name in text
        if name != "client":
            assert f"{figures.share:.1%}" in text
        assert f"{figures.accuracy:.1%}" in text


def with_student(student: float, ways: float, seed: int = 0) -> Report:
    """A report of client and server whose student, and whose second opinion, are right so often."""
    report = make_report(2000, seed=seed)
    rng = np.random.default_rng(seed)
    wrong = (report.y + 1) % 10
    answered = np.where(report.remote, "server", "client")
    label = np.where(rng.random(2000) < student, report.y, wrong)
    three = np.where(label == report.y, "student", answered) if ways > student else answered
    two = Answered.of_two(report.remote, report.confidence_remote)
    return evaluate(
        y=report.y,
        client_label=report.client_label,
        client_confidence=np.ones(2000),
        server_probability=np.eye(10)[report.server_label],
        score=report.score,
        costs=report.costs,
        head_probability={},
        class_names=report.class_names,
        student_label=label,
        answered=Answered(two.answerers, two.by, two.local, two.remote, two.confidence, {"three_ways": three}),
    )


def test_the_verdict_says_that_the_student_alone_would_beat_the_system() -> None:
    good, poor = with_student(0.95, 1.0), with_student(0.3, 0.0)
    assert good.student_risk is not None
    assert good.student_risk < good.risk.system
    text = verdict(good).text
    assert "student alone" in text
    for figure in (good.student_risk, good.risk.system, good.alternatives["three_ways"].risk(good.costs)):
        assert f"{figure:.4f}" in text
    assert text in " ".join(printed(risk_table(good)).split())
    assert "student" not in verdict(poor).text
    assert "its student in the client's place" in printed(risk_table(poor))
    assert "(best)" in printed(risk_table(poor))
    assert "(best)" not in printed(risk_table(good))


def test_the_student_alone_is_a_trivial_rule_where_it_may_answer() -> None:
    free = make_several(second_opinion=True, costs={"box": Costs(c_e=0.9), "cloud": Costs(c_e=0.9)})
    assert verdict(free).rule == "the student alone"
    assert verdict(free).risk == free.student_risk


def test_the_verdict_says_that_one_server_alone_would_do_better() -> None:
    report = make_several()
    object.__setattr__(report, "alternatives", report.alternatives | {"cloud": report.choice.cheapest(report.costs)})
    text = verdict(report).text
    assert f"asking cloud alone would cost less: {report.risk.oracle:.4f} against {report.risk.system:.4f}" in text


def test_every_plot_shows_every_answerer(report: Report) -> None:
    names = {one.name for one in report.answerers}
    shown = [plot_frontier(report), plot_contrastive(report), plot_reliability(report)]
    for figure in shown:
        assert figure is not None
        said = " ".join(text.get_text() for text in figure.legends[0].get_texts())
        assert all(name in said for name in names)
    bars = [bar.get_width() for bar in plot_risk(report).axes[0].patches]
    assert any(width == pytest.approx(report.alternatives["box"].risk(report.costs)) for width in bars)


def test_the_bars_of_a_class_end_at_what_is_not_the_clients(report: Report) -> None:
    ax = plot_per_class(report).axes[0]
    for i, label in enumerate(ax.get_yticklabels()):
        here = report.y == report.class_names.index(label.get_text())
        width = sum(container[i].get_width() for container in ax.containers)
        assert width == pytest.approx(np.mean(report.choice.chosen[here] != 0))
        servers = sum(container[i].get_width() for container in ax.containers[:2])
        assert servers == pytest.approx(report.remote[here].mean())


def test_the_page_shows_who_answers(report: Report, tmp_path: Path) -> None:
    found = Page(write_page(report, tmp_path, title="A title", images=make_images(600, 3)))
    headings = [text for tag, text in found.headings if tag == "h2"]
    assert headings[1] == "Who answers"
    assert "Accuracy on the inputs that each answers" in headings
    opening = found.text[: found.text.index("Who answers")]
    for figures in report.choice.figures().values():
        assert f"{figures.share:.1%}" in opening
    assert "box c_e = 0.05, c_1 = 1; cloud c_e = 0.2, c_1 = 1.25" in opening
    cards = found.text[found.text.index("Images kept and sent") : found.text.index("Reject rate per class")]
    for one in report.answerers:
        assert cards.count(one.name) >= 24
    assert ("by student" in found.text) == ("student" in report.choice.figures())


def test_the_spread_over_seeds_has_every_answerer() -> None:
    reports = [make_several(seed=seed, second_opinion=True).as_dict() for seed in range(3)]
    found = rows(spread_table(spread_of_reports(reports), 3))
    title = printed(spread_table(spread_of_reports(reports), 3))
    assert "box c_1=1, c_e=0.05; cloud c_1=1.25, c_e=0.2" in title
    for name, values in (
        ("answered by student, %", [100 * one["answerers"]["student"]["share"] for one in reports]),
        ("risk: always ask cloud", [one["risk"]["by_server"]["cloud"] for one in reports]),
        ("risk: without the second opinion", [one["two_ways"]["risk"] for one in reports]),
        ("risk: asking box alone", [one["single_server"]["box"]["risk"] for one in reports]),
    ):
        mean, _, error = found[name][0].partition(" ± ")
        assert float(mean) == pytest.approx(np.mean(values), abs=5.1e-3 if "%" in name else 5.1e-5)
        assert float(error) == pytest.approx(np.std(values, ddof=1) / 3**0.5, abs=5.1e-3 if "%" in name else 5.1e-5)


@pytest.mark.parametrize("labels", [("cat", "dog", "eel"), (3, 5, 9)])
def test_the_table_of_classes_counts_labels_of_any_kind(labels: tuple[str | int, ...]) -> None:
    rng = np.random.default_rng(0)
    y, client, server = (rng.integers(3, size=90) for _ in range(3))
    report = evaluate(
        y=y,
        client_label=client,
        client_confidence=np.ones(90),
        server_probability=np.eye(3)[server],
        remote=rng.random(90) < 0.5,
        score=rng.random(90),
        costs=Costs(c_e=0.1),
        head_probability={},
        class_names=LabelCodec.find(np.repeat(np.array(labels), 5)),
    )
    found = rows(class_table(report))
    for k, label in enumerate(labels):
        here = y == k
        right = [f"{np.mean(given[here] == k):.1%}" for given in (client, server)]
        assert found[str(label)] == [str(here.sum()), f"{report.remote[here].mean():.1%}", *right]
