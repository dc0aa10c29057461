"""Fuzz the readers of what comes from outside, guided by coverage, for some time each.

    python -m tests.hostile.fuzz                         # every reader, a minute each
    python -m tests.hostile.fuzz wire npz --seconds 600
    python -m tests.hostile.fuzz wire crash-0a1b2c       # one input again

A new input that reaches new code is kept in the folder that ``--found`` names, none by default. An input that breaks a
reader is written to ``crash-*`` in the working folder, and the status is not 0.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.py"))
#: Of one input: the largest, and how long it may take. The memory of each is checked by the targets.
LIMITS = ["-max_len=16384", "-timeout=20", "-rss_limit_mb=4096"]


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.hostile.fuzz", description=__doc__, formatter_class=form)
    parser.add_argument("targets", nargs="*", default=TARGETS, help=f"of {', '.join(TARGETS)}, or an input after one")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--runs", type=int, default=-1, help="inputs for each target, beside the corpus")
    parser.add_argument("--found", type=Path, help="folder for new inputs, one below it for each target")
    given = parser.parse_args()
    targets = [name for name in given.targets if name in TARGETS]
    again = [name for name in given.targets if name not in TARGETS]
    if len(targets) != 1:
        command = [sys.executable, __file__, "--seconds", str(given.seconds), "--runs", str(given.runs)]
        command += [] if given.found is None else ["--found", str(given.found)]
        return max([subprocess.call([*command, name]) for name in targets], default=2)
    with tempfile.TemporaryDirectory() as folder:
        found = (given.found or Path(folder)) / targets[0]
        found.mkdir(parents=True, exist_ok=True)
        flags = [*LIMITS, "-seed=1", f"-max_total_time={given.seconds}", f"-runs={given.runs}"]
        fuzz(targets[0], again or [*flags, str(found), str(HERE / "corpus" / targets[0])])
    return 0


def fuzz(target: str, arguments: list[str]) -> None:
    """Run libFuzzer, which ends the process itself with 77 where an input breaks the reader."""
    import atheris

    sys.path[:0] = [str(HERE), str(HERE.parents[1] / "support")]
    with atheris.instrument_imports(include=["l2h"]):
        module = importlib.import_module(f"fuzz_{target}")
    from fuzzing import HeldTooMuch

    def check(data: bytes) -> None:
        try:
            module.check(data)
        except (
            HeldTooMuch
        ):  # once in many thousand inputs a table of the interpreter grows: only the reader does it again
            module.check(data)

    mutator = {"custom_mutator": module.mutate} if hasattr(module, "mutate") else {}
    atheris.Setup([sys.argv[0], *arguments], check, **mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
