"""The example of the page on tables runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks).replace('server="mlp")', 'server="mlp", settings=quick)')
    quick = (
        "import l2h; stage = l2h.StageSettings(epochs=4); quick = l2h.Settings(server=stage, rejector=stage, folds=2)\n"
    )
    exec(compile(quick + code, str(PAGE), "exec"), {})
    assert "Answer(label='" in capsys.readouterr().out
    assert (tmp_path / "legacy.onnx").is_file()
    assert (tmp_path / "bundle" / "manifest.json").is_file()
