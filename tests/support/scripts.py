"""Scripts in fresh interpreters that lack some packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from waiting import STUCK

import l2h

#: What a device does not have.
HEAVY = (
    *("torch", "sklearn", "scipy", "typer", "rich", "matplotlib", "pyarrow", "PIL", "onnx", "safetensors"),
    *("skl2onnx", "onnxscript", "jinja2", "tensorboard", "starlette", "uvicorn", "granian"),
)
_BLOCK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def blocking(*packages: str) -> str:
    """Return the start of a script that cannot import these packages."""
    return _BLOCK.format(blocked=packages)


def python(
    script: str,
    *arguments: object,
    blocked: tuple[str, ...] = (),
    interpreter: str = sys.executable,
    installed: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh interpreter in which the ``blocked`` packages cannot be imported.

    It finds this source, or with ``installed`` only what is installed where the interpreter is.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    source = {} if installed else {"PYTHONPATH": str(Path(l2h.__file__).parents[1])}
    return subprocess.run(
        [interpreter, "-c", blocking(*blocked) + script, *map(str, arguments)],
        env={**kept, "OMP_NUM_THREADS": "1", **source},
        capture_output=True,
        text=True,
        timeout=STUCK,
        check=False,
    )
