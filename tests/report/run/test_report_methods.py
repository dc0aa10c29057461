"""What a report does by itself: it is saved as a page, becomes a data frame, and shows itself in a notebook."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from report_maker import make_history, make_images, make_report, make_several
from report_reader import EVIL, Page
from scripts import python

from l2h import Money
from l2h.errors import DataError, SettingsError
from l2h.metrics import Report, evaluate_outcomes


@pytest.mark.usefixtures("no_pictures")
def test_a_report_is_saved_as_one_page_of_any_name(tmp_path: Path) -> None:
    report = make_report(120)
    path = report.save(tmp_path / "new" / "to the boss.html", history=make_history(), images=make_images(120, 3))
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["to the boss.html"]
    found = Page(path)
    assert ("h1", "Learning to help on made up") in found.headings
    assert {"Loss curves", "Images kept and sent"} <= {text for _, text in found.headings}
    assert all(link.startswith(("data:", "#")) for link in found.links if "://" in link or "data:" in link)
    plain = Page(report.save(str(tmp_path / "b.html"), title=EVIL))
    assert ("h1", EVIL) in plain.headings
    assert not {"Loss curves", "Images kept and sent"} & {text for _, text in plain.headings}


@pytest.mark.parametrize("name", ["page", "page.pdf", "folder/"])
def test_another_name_than_that_of_a_page_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"must end in \.html"):
        make_report(60).save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_pictures")
def test_images_of_other_samples_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="59 images for a report on 60 samples"):
        make_report(60).save(tmp_path / "page.html", images=make_images(59, 3))
    assert list(tmp_path.iterdir()) == []


def test_a_frame_has_the_figures_of_every_rule() -> None:
    report = make_report(300, confidence=True)
    frame = report.to_frame()
    assert list(frame.index) == ["system", "all_local", "all_remote", "random", "confidence", "oracle"]
    assert list(frame.columns) == ["rule", "risk", "difference", "accuracy", "reject_rate"]
    for name, risk in report.risk.as_dict().items():
        assert frame.risk[name] == pytest.approx(risk)
        assert frame.difference[name] == pytest.approx(risk - report.risk.system)
    client, server, remote = report.client_correct, report.server_correct, report.remote
    rate = remote.mean()
    assert frame.reject_rate.tolist()[:4] == pytest.approx([rate, 0, 1, rate])
    expected = [np.where(remote, server, client).mean(), client.mean(), server.mean()]
    expected += [(1 - rate) * client.mean() + rate * server.mean()]
    expected += [np.where(report.confidence_remote, server, client).mean(), (client | server).mean()]
    assert frame.accuracy.tolist() == pytest.approx(expected)
    paid = replace(report, money=Money(0.05, 0.5, per_day=10_000))
    assert paid.to_frame().amount["all_local"] == pytest.approx(5000 * (1 - client.mean()))
    unknown = make_report(60, confidence=False).to_frame().loc["confidence"]
    assert unknown[["risk", "difference", "accuracy", "reject_rate"]].isna().all()


def test_a_frame_names_every_server_and_what_would_be_without_the_others() -> None:
    report = make_several()
    frame = report.to_frame()
    names = [one.name for one in report.choice.servers]
    assert len(names) > 1
    assert {f"by_server.{name}" for name in names} | {f"single_server.{name}" for name in names} <= {*frame.index}
    assert frame.index.is_unique
    assert frame.risk[f"by_server.{names[0]}"] == pytest.approx(report.risk.by_server[names[0]])
    assert pandas.concat({"here": frame, "there": frame}).shape == (2 * len(frame), 5)


@pytest.mark.usefixtures("no_pictures")
def test_a_report_of_outcomes_does_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    client, server, remote = (rng.random(80) < share for share in (0.5, 0.9, 0.4))
    report = evaluate_outcomes(
        client_correct=client, server_correct=server, remote=remote, score=rng.random(80),
        costs=make_report(60).costs, head_probability={}, dataset="prompts",
    )  # fmt: skip
    assert report.to_frame().accuracy["all_remote"] == pytest.approx(server.mean())
    assert ("h1", "Routing on prompts") in Page(report.save(tmp_path / "page.html")).headings


def test_a_report_shows_itself_safely(tmp_path: Path) -> None:
    report: Report = replace(make_report(200), dataset=f"{EVIL}\udcff\n" + "long " * 400)
    (tmp_path / "cell.html").write_text(report._repr_html_(), encoding="utf-8")
    found = Page(tmp_path / "cell.html")
    assert EVIL in found.text
    assert "script" not in {tag for tag, _ in found.tags}
    assert len(found.source) < 4000
    (table,) = found.tables
    assert [row[0].split(" (")[0].rstrip("*") for row in table[1:]] == report.to_frame().rule.tolist()
    assert f"{report.risk.all_local:.4f}" in table[2]
    shown = str(make_report(200))
    assert "never ask" in shown
    assert " pay" in shown, "the verdict"
    assert max(map(len, shown.splitlines())) <= 120
    assert "\x1b" not in shown
    assert len(repr(make_report(200))) < 240
    assert "\n" not in repr(make_report(200))


def test_a_report_says_what_it_comes_to_in_money_and_names_no_data_set_without_a_name() -> None:
    report = replace(make_report(200), money=Money(0.002, 0.02, currency="$", per_day=1000), dataset="unnamed")
    sentence = report.as_dict()["money"]["sentence"]
    assert "$" in sentence
    assert str(report).startswith("risk at ")
    assert sentence in " ".join(str(report).split())
    assert sentence in report._repr_html_()


MADE = """
import numpy as np
from l2h import Costs, errors, metrics
right, remote = np.arange(40) % 3 > 0, np.arange(40) % 2 > 0
report = metrics.evaluate_outcomes(client_correct=right, server_correct=~right, remote=remote, score=right * 1.0,
                                   costs=Costs(c_e=0.1), head_probability={})
assert "never ask" in report._repr_html_() and "never ask" in str(report)
"""


@pytest.mark.parametrize(
    ("call", "blocked", "hint"),
    [
        ("save('page.html')", ("matplotlib",), "[report]"),
        ("save('page.html')", ("jinja2",), "[report]"),
        ("to_frame()", ("pandas",), "pip install pandas"),
    ],
)
def test_what_is_missing_is_named_with_the_command_that_installs_it(
    call: str, blocked: tuple[str, ...], hint: str
) -> None:
    script = f"{MADE}\ntry: report.{call}\nexcept errors.MissingExtraError as error: print(error)"
    done = python(script, blocked=(*blocked, "torch"))
    assert done.returncode == 0, done.stderr
    assert blocked[0] in done.stdout
    assert hint in done.stdout
    assert done.stdout.count("\n") == 1
