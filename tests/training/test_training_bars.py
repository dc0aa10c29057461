"""Who sees how ``fit`` goes: a terminal and a notebook by default, anybody who asks, nobody else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from clouds import X, Y, make
from prompts import made_up
from terminals import on_a_terminal
from waiting import NBCLIENT

from l2h import HelpClassifier, HelpSystem
from l2h.errors import DataError, SettingsError
from l2h.training import Progress
from l2h.training.bars import training_progress

SUPPORT = str(Path(__file__).parents[1] / "support")
SCRIPT = f"""
import sys
sys.path.insert(0, {SUPPORT!r})
from clouds import X, Y, make
from l2h.training import Progress

class Failing(Progress):
    def finish(self, stage):
        raise RuntimeError("the disk is full")

"""


class Noting(Progress):
    """Keeps the names of the stages that were finished."""

    def __init__(self) -> None:
        self.finished: list[str] = []

    def finish(self, stage: str) -> None:
        self.finished.append(stage)


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_a_terminal_has_bars_which_an_exception_removes() -> None:
    failing = "try: make().fit(X, Y, progress=[None, Failing()])\nexcept RuntimeError as error: print('END', error)"
    script = f"{SCRIPT}make().fit(X, Y)\nprint('MIDDLE')\n{failing}"
    status, seen = on_a_terminal([sys.executable, "-c", script], columns=80)
    assert status == 0, seen
    first, _, second = seen.partition("MIDDLE")
    assert "━" in first
    for stage in ("server fold 1", "server fold 2", "rejector"):
        assert stage in first
    assert "…" not in first, "a column is cut off"
    assert "END the disk is full" in second
    drawn, _, after = second.rpartition("━")
    assert "server fold 1" in drawn
    assert "\x1b[2K" in after.partition("END")[0], "the line is erased"
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") == 2, "the cursor is shown again"


@pytest.mark.parametrize("progress", [None, False])
def test_elsewhere_nobody_is_told(
    progress: bool | None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as builds set it
    make().fit(X, Y, progress=progress)
    prompts, client, server = made_up(60)
    HelpSystem.fit_outcomes(prompts, client, server, progress=progress)
    out, err = capfd.readouterr()
    assert out == ""
    assert "server fold" not in err
    assert "fit " not in err


def test_who_asks_gets_lines(capfd: pytest.CaptureFixture[str]) -> None:
    noting = Noting()
    make().fit(X, Y, progress=[True, noting])
    lines = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("the client")]
    assert noting.finished == ["server fold 1", "server fold 2", "server", "rejector"]
    assert [line.split(":")[0] for line in lines] == [stage for stage in noting.finished for _ in range(2)]
    prompts, client, server = made_up(60)
    HelpSystem.fit_outcomes(prompts, client, server, progress=True)
    assert capfd.readouterr().err.splitlines()[-1] == "fit 42 of 42"
    counts: list[tuple[int, int]] = []
    HelpSystem.fit_outcomes(prompts, client, server, progress=lambda done, total: counts.append((done, total)))
    assert counts[-1] == (42, 42)
    assert capfd.readouterr().err == ""


def test_the_classifier_of_scikit_learn_is_quiet_unless_told(capfd: pytest.CaptureFixture[str]) -> None:
    HelpClassifier(epochs=1, random_state=0).fit(X, Y)
    assert capfd.readouterr() == ("", "")
    HelpClassifier(epochs=1, random_state=0, verbose=1).fit(X, Y)
    assert "rejector: epoch 1/1" in capfd.readouterr().err


@pytest.mark.parametrize("wrong", ["yes", 1, [True, 3]])
def test_what_cannot_be_told_is_refused(wrong: Any) -> None:
    with pytest.raises(SettingsError, match=r"progress=.* must be True, False, None or an object"):
        make().fit(X, Y, progress=wrong)
    with pytest.raises(DataError), training_progress(True):
        raise DataError("passes through")


NOTEBOOK = [
    f"{SCRIPT}system = make().fit(X, Y)",
    "try: make().fit(X, Y, progress=[None, Failing()])\nexcept RuntimeError: pass",
    "make().fit(X, Y, progress=False)",
    "system.evaluate(X, Y)",
    "print(system.evaluate(X, Y))",
]


@pytest.mark.long
def test_a_notebook_has_bars_and_shows_what_comes_out() -> None:
    import nbclient
    import nbformat

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in NOTEBOOK])
    nbclient.NotebookClient(book, kernel_name="python3", **NBCLIENT).execute()
    fitted, failed, quiet, report, printed = (
        [output.data for output in cell.outputs if "data" in output] for cell in book.cells
    )
    (bars,) = fitted  # one picture, drawn over and over
    for stage in ("server fold 1", "server fold 2", "server", "rejector"):
        assert stage in bars["text/plain"]
    assert "━" in bars["text/html"]
    assert failed == [{"text/plain": ""}]
    assert [shown["text/plain"][:18] for shown in quiet] == ["HelpSystem(client="]
    assert "<table " in report[0]["text/html"]
    assert printed == []
    assert "never ask" in book.cells[-1].outputs[0].text
