"""A table from the command line: trained, evaluated on another file, and what does not fit refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import QUICK, call
from customers import customers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for name, n, seed in (("calls.csv", 240, 0), ("other.csv", 80, 1)):
        frame, left = customers(n, seed)
        frame.assign(left=np.where(left, "yes", "no")).to_csv(folder / name, index=False)
    said = call(
        *("train", "--data", folder / "calls.csv", "--target", "left", "--client", "mlp", "--client-share", 0.3),
        *("--server", "mlp", "--out", folder / "run", "--json", *QUICK),
    )
    assert said.status == 0, said.err
    return folder


def test_a_run_of_a_table_is_evaluated_on_another_file_by_its_own_target(folder: Path) -> None:
    frame, left = customers(80, 1)
    shuffled = frame[frame.columns[::-1]].assign(left=np.where(left, "yes", "no"))
    shuffled.to_csv(folder / "shuffled.csv", index=False)
    said = [
        call("evaluate", folder / "run", "--data", folder / f"{name}.csv", "--json") for name in ("other", "shuffled")
    ]
    assert [result.status for result in said] == [0, 0]
    assert said[0].json()[0]["risk"] == said[1].json()[0]["risk"]


def test_bad_files_are_refused_in_one_line(folder: Path) -> None:
    frame, left = customers(80, 1)
    labelled = frame.assign(left=np.where(left, "yes", "no"))
    for changed, message in (
        (labelled.assign(region="mars"), "row 0: column 'region' is 'mars', a category that the training did not have"),
        (labelled.assign(age="old"), "row 0: column 'age' is 'old', but a number is expected"),
        (labelled.drop(columns="plan"), "the table has no column 'plan', which the training had"),
        (labelled.drop(columns="left"), "has no column 'left'; its columns are age"),
    ):
        changed.to_csv(folder / "bad.csv", index=False)
        refused = call("evaluate", folder / "run", "--data", folder / "bad.csv")
        assert (refused.status, refused.out) == (1, "")
        assert message in refused.err
        assert refused.err.count("\n") == 1
    one = call("train", "--data", folder / "one.csv", "--server", "mlp", "--client", "tree", "--out", folder / "one")
    assert "there is no file" in one.err
    labelled.assign(label=1).drop(columns="left").to_csv(folder / "one.csv", index=False)
    one = call("train", "--data", folder / "one.csv", "--server", "mlp", "--client", "tree", "--out", folder / "one")
    assert (one.status, one.err.count("\n")) == (1, 1)
    assert "column 'label' of one.csv is 1 in every row: two classes are needed" in one.err
