"""``l2h train --outcomes``, ``l2h evaluate`` of a router, and ``l2h ask`` with a prompt."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import assert_schema, assert_told, call, files_of, one_line
from prompts import write_csv
from scripts import python

import l2h


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("tables") / "train.csv", 500)


@pytest.fixture(scope="module")
def run(table: Path) -> Path:
    folder = table.with_name("router")
    result = call("train", "--outcomes", table, "--c-e", "0.1", "--c-e", "0.3", "--json", "--out", folder)
    assert result.status == 0, result.err
    assert "fit 42 of 42" in result.err
    for report in result.json():
        assert_schema(report)
        assert report["samples"] == 100
        assert 0.5 < report["routing"]["apgr"] < 1.5
    assert json.loads((folder / "metrics.json").read_text()).items() >= result.json()[0].items()
    return folder


def test_the_run_folder_has_its_files(run: Path) -> None:
    files = set(files_of(run))
    assert {"config.json", "metrics.json", "report.html", "plots/frontier.png", "checkpoints/router.npz"} <= files
    page = (run / "report.html").read_text()
    assert "APGR" in page
    assert "Reject rate per class" not in page
    reading = page[page.index("How to read this page") :]
    assert "oracle" in reading
    assert "confidence" not in reading
    assert "label-free bound" not in reading


def test_evaluate_gives_the_same_numbers_again(run: Path) -> None:
    before = files_of(run)
    again = call("evaluate", run, "--json").json()[0]
    assert json.loads((run / "metrics.json").read_text()).items() >= again.items()
    assert files_of(run) == before


def test_evaluate_on_other_outcomes(run: Path, tmp_path: Path) -> None:
    other = write_csv(tmp_path / "other.csv", 200, seed=3, text_column="question")
    arguments = ["evaluate", run, "--outcomes", other, "--text-column", "question"]
    result = call(*arguments, "--json", "--c-e", "0.2", "--out", tmp_path / "out")
    assert result.status == 0, result.err
    (report,) = result.json()
    assert (report["dataset"], report["samples"], report["costs"]["c_e"]) == ("other", 200, 0.2)
    assert json.loads((tmp_path / "out" / "metrics.json").read_text()).items() >= report.items()
    direct = l2h.Router.load(run).evaluate(other, costs=l2h.Costs(c_e=0.2), text_column="question")
    assert json.loads(json.dumps(direct.as_dict()))["risk"] == report["risk"]
    said = one_line(call(*arguments, "--limit", "20%").out)
    for words in ("APGR", "CPT(50%)", "never", "always", "random"):
        assert words in said


def test_ask_says_weak_or_strong_and_why(run: Path) -> None:
    strong, weak = (call("ask", run, f"{topic}: what is the answer?") for topic in ("algebra", "sports"))
    assert strong.out.startswith("strong (server): ")
    assert weak.out.startswith("weak (client): ")
    (row,) = call("ask", run, "algebra: what is the answer?", "--c-e", "2", "--json").json()["answers"]
    assert (row["answer"], row["source"], row["reason"]) == ("weak", "local", "not_worth_asking")


def test_ask_routes_the_prompts_of_a_table_and_takes_no_file_for_a_prompt(run: Path, tmp_path: Path) -> None:
    prompts = ["algebra: what is the answer?", "sports: what is the answer?"]
    table = tmp_path / "my prompts.csv"
    table.write_text("\n".join(["id,prompt", *(f"{i},{text}" for i, text in enumerate(prompts))]))
    rows = call("ask", run, table, "--json").json()["answers"]
    assert [row["answer"] for row in rows] == ["strong", "weak"]
    (tmp_path / "notes.txt").write_text(prompts[0])
    assert_told(call("ask", run, tmp_path / "notes.txt"), 1, "notes.txt' is no table", ".csv")
    assert_told(call("ask", run, "nothere.csv"), 1, "there is no file or folder 'nothere.csv'")
    assert call("ask", run, "x" * 5000).status == 0
    assert "in quotes" in one_line(call("ask", run, *prompts).err)


def test_ask_needs_no_torch(run: Path) -> None:
    blocked = ("torch", "sklearn", "scipy", "matplotlib", "pyarrow", "onnx", "safetensors")
    words = ["l2h", "ask", str(run), "algebra: what is it?"]
    done = python(f"sys.argv = {words!r}\nfrom l2h.cli import main\nmain()", blocked=blocked)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("strong")


def test_export_and_calibrate_say_what_to_use_instead(run: Path, tmp_path: Path) -> None:
    assert_told(call("export", run, "--out", tmp_path / "b"), 1, "is its own bundle", "l2h.Router.load(FOLDER)")
    assert_told(call("calibrate", run), 1, "which its training calibrates", "l2h train --outcomes FILE")
    assert not (tmp_path / "b").exists()


def test_embeddings_from_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    l2h.HelpSystem.fit_outcomes(X, X[:, 0] > 0, rng.random(200) < 0.9).save(tmp_path / "run")
    np.save(tmp_path / "x.npy", X[:3])
    rows = call("ask", tmp_path / "run", tmp_path / "x.npy", "--json").json()["answers"]
    assert [row["answer"] for row in rows] == ["weak" if x > 0 else "strong" for x in X[:3, 0]]
    assert_told(call("ask", tmp_path / "run", "a prompt"), 1, "embeddings")
    assert_told(call("evaluate", tmp_path / "run"), 1, "--outcomes")


def test_bad_usage_is_one_line(run: Path, table: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("prompt,client_right,server_right\na,1,0\nb,0,7\n")
    assert_told(call("train", "--outcomes", bad, "--out", tmp_path / "r"), 1, "row 1", "server_right", "'7'")
    bad.write_text("prompt,right\na,1\n")
    assert_told(call("train", "--outcomes", bad, "--out", tmp_path / "r"), 1, "client_right", "prompt, right")
    assert_told(call("train", "--outcomes", table, "--out", run), 1, "already holds a run")
    assert not (tmp_path / "r").exists()
    for arguments in (
        ("train", "--out", tmp_path / "r"),
        ("train", "--outcomes", table, "--data", "digits", "--out", tmp_path / "r"),
        ("train", "--outcomes", table, "--resume", "--out", tmp_path / "r"),
        ("evaluate", run, "--data", "digits"),
        ("ask", run),
    ):
        result = call(*arguments)
        assert result.status == 2
        assert "Traceback" not in result.err
