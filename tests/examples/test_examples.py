"""The examples run as a newcomer runs them, leave nothing behind, and print what docs/examples.md shows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from commands import environment
from shown_commands import PROJECT, alike, blocks
from waiting import NBCLIENT, STUCK

FOLDER = PROJECT / "examples"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
NOTEBOOK = FOLDER / "notebook.ipynb"
#: Of each section of the page, by the file that it links to: what the page says is printed.
SHOWN = {
    re.search(r"\(\.\./examples/([\w.]+)\)", section)[1]: "".join(blocks(section, "text"))  # type: ignore[index]
    for section in (PROJECT / "docs/examples.md").read_text(encoding="utf-8").split("\n## ")[1:]
}


def assert_shown(name: str, printed: str) -> None:
    """The page shows all that is printed, in order; figures may differ a little on another platform."""
    shown, said = SHOWN[name].split(), printed.split()
    assert len(shown) == len(said), printed
    assert [pair for pair in zip(shown, said, strict=True) if not alike([pair[0]], [pair[1]])] == [], printed


def test_every_example_is_short_and_on_the_page() -> None:
    assert len(SCRIPTS) == 5
    assert {*SHOWN} == {*SCRIPTS, NOTEBOOK.name}
    for name in SCRIPTS:
        source = (FOLDER / name).read_text(encoding="utf-8")
        assert source.count("\n") <= 70, name
        assert (ast.get_docstring(ast.parse(source)) or "").endswith(f"\n    python examples/{name}"), name


def test_the_notebook_is_kept_without_outputs() -> None:
    # They would change with every run, and nobody could review them; the page shows them.
    cells = [cell for cell in nbformat.read(NOTEBOOK, 4).cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in cells if cell.outputs or cell.execution_count] == []


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_prints_what_the_page_shows(name: str, tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    run = [sys.executable, FOLDER / name]
    told = environment(HOME=str(home))
    done = subprocess.run(run, cwd=work, env=told, capture_output=True, text=True, timeout=STUCK, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert_shown(name, done.stdout)
    assert [*work.iterdir(), *home.rglob("l2h")] == []  # other packages may keep caches


@pytest.mark.long
def test_the_notebook_runs_and_shows_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(HOME=str(tmp_path)).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, 4)
    nbclient.NotebookClient(notebook, **NBCLIENT, resources={"metadata": {"path": str(tmp_path)}}).execute()
    given = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert {output.get("name", "stdout") for output in given} == {"stdout"}
    results = [output for output in given if output.output_type != "display_data"]  # not the bars and the picture
    assert_shown(NOTEBOOK.name, "\n".join(one.text if "text" in one else one.data["text/plain"] for one in results))
    assert [one.data["text/html"].count("<table") for one in results if "text/html" in one.get("data", ())] == [1, 1]
    assert any("image/png" in output.get("data", ()) for output in given)
    assert (tmp_path / "wave.html").stat().st_size > 10_000
