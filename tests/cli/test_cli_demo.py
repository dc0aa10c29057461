"""``l2h demo`` keeps its promise: asking for help pays, on a small machine, with nothing to prepare."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import assert_schema, command, environment, one_line

MEMORY = 1.5e9  # bytes


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "wait4"), reason="needs the child's own resource usage")
def test_the_demo_beats_every_trivial_rule_within_its_memory(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(command("demo", "--out", folder), env=environment(), stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (tmp_path / "err").read_text()

    metrics = json.loads((folder / "metrics.json").read_text())
    assert_schema(metrics)
    risk = metrics["risk"]
    for rule in ("all_local", "all_remote", "random", "confidence"):
        assert risk["system"] < risk[rule]
    assert risk["oracle"] <= risk["system"]

    said = one_line((tmp_path / "out").read_text())
    for words in ("kept (LOCAL)", "sent (REMOTE)", "never ask", "always ask", "confidence threshold", "oracle"):
        assert words in said
    assert f"{risk['system']:.4f}" in said

    page = (folder / "report.html").read_text()
    assert page.count("data:image/") >= 3
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!data:|\#)[^"'\s>]""", page), "nothing is loaded from elsewhere"
    assert not re.search(r"<script|@import|url\((?!['\"]?(?:data:|#))", page)

    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    assert peak < MEMORY
