"""``l2h demo`` keeps its promise: asking for help pays, on a small machine, with nothing to prepare."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import assert_schema, command, environment, one_line
from this_platform import VERSION_0_1, assert_near, same_platform

from l2h.experiments.carry_out import load_data, train_run
from l2h.experiments.evaluating import evaluate_plan
from l2h.experiments.plan import digits_plan
from l2h.experiments.runs import RunTarget
from l2h.training import Silent

pytestmark = pytest.mark.skipif(not hasattr(os, "wait4"), reason="needs the resource usage of a child process")

MEMORY = 1.5e9  # bytes
#: Elsewhere sums in another order change the last bits of the first step, and training carries that on: the figures
#: are then those of another training. Seeds 1 to 3, with splits and clients of their own, moved the risk and accuracy
#: of server and system by at most 0.012; here split and client are the same, so the reject rate moves no further.
OTHER_PLATFORM = 0.03
LAST_BITS = 1e-10


@dataclass(frozen=True)
class Demo:
    """A finished demo with seed 0."""

    folder: Path
    said: str
    peak: float

    @property
    def metrics(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "metrics.json").read_text()))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """``l2h demo`` by a real process, and the memory that it took."""
    base = tmp_path_factory.mktemp("demo")
    with (base / "out").open("w") as out, (base / "err").open("w") as err:
        process = subprocess.Popen(command("demo", "--out", base / "demo"), env=environment(), stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (base / "err").read_text()
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Demo(base / "demo", one_line((base / "out").read_text()), peak)


@pytest.mark.long
def test_the_demo_beats_every_trivial_rule_within_its_memory(demo: Demo) -> None:
    assert_schema(demo.metrics)
    risk = demo.metrics["risk"]
    for rule in ("all_local", "all_remote", "random", "confidence"):
        assert risk["system"] < risk[rule]
    assert risk["oracle"] <= risk["system"]

    for words in ("kept (LOCAL)", "sent (REMOTE)", "never ask", "always ask", "confidence threshold", "oracle"):
        assert words in demo.said
    assert f"{risk['system']:.4f}" in demo.said

    page = (demo.folder / "report.html").read_text()
    assert page.count("data-hover=") >= 3
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!data:|\#)[^"'\s>]""", page), "nothing is loaded from elsewhere"
    assert not re.search(r"<script .|@import|url\((?!['\"]?(?:data:|#))", page)
    assert demo.peak < MEMORY


@pytest.mark.long
def test_a_rejector_of_the_size_of_version_0_1_has_its_figures(tmp_path: Path) -> None:
    plan = digits_plan()
    dataset = load_data(plan)
    system = train_run(plan, dataset, RunTarget(tmp_path), Silent())
    figures = evaluate_plan(system, dataset, plan, tmp_path).results[0].as_dict()
    before = json.loads((VERSION_0_1 / "demo.json").read_text())
    if same_platform():
        # Processors of one kind differ in the last bits of sums, which the fit of two numbers per head carries on.
        assert_near({key: figures[key] for key in before}, before, LAST_BITS)
        return
    for name in ("accuracy", "reject_rate", "risk"):
        assert_near(figures[name], before[name], OTHER_PLATFORM, name)
