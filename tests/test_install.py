"""What is importable where: the device's half needs no torch and imports quickly."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from prompts import made_up
from scripts import HEAVY, python
from this_platform import VERSION_0_1
from waiting import STUCK

import l2h
from l2h.routing import fit_router

PACKAGE = Path(l2h.__file__).parent
PROJECT = Path(__file__).parents[1]
#: Plain values and functions, which need numpy alone, and all that a device needs.
VALUES = ["answers", "costs", "decision", "errors", "files", "limits", "metrics", "settings"]
DEVICE = [*VALUES, "bundle", "classifiers", "edge", "functions", "protocol", "remote", "routing", "serving.bench"]
IMPORT_SECONDS = 0.3
#: What a device does: it answers, and where it would ask there is nobody to.
ON_A_DEVICE = """
import importlib.util, json, sys, time
for heavy in ("torch", "sklearn", "starlette", "onnx"):
    assert importlib.util.find_spec(heavy) is None, heavy
begun = time.perf_counter()
import numpy as np
import l2h
edge = l2h.EdgeClient(sys.argv[1], deadline=1.0)
loaded = time.perf_counter() - begun
X = np.load(sys.argv[2])
answers = edge.predict(X)
free = edge.predict(X, costs=l2h.Costs(c_e=0.0, c_1=0.0))
print(json.dumps({"label": answers.label.tolist(), "reason": answers.reason.tolist(), "free": sorted(set(free.reason)),
                  "torch": "torch" in sys.modules, "seconds": loaded}))
"""


# Without the heavy packages.


def test_the_mathematics_works_without_the_heavy_packages() -> None:
    done = python(
        f"""
import importlib
import numpy as np
import l2h
for name in {DEVICE!r}:
    importlib.import_module("l2h." + name)
costs = l2h.Costs(c_e=0.1, c_1=1.0)
posterior = np.array([[0.9, 0.1], [0.2, 0.8]])
remote = l2h.decision.bayes(posterior, np.array([0, 0]), costs)
assert remote.tolist() == [False, True], remote
answers = l2h.Answers(remote.astype(int), np.where(remote, "remote", "local"), remote.astype(str), np.zeros(2))
assert answers.by.tolist() == ["client", "server"]
assert l2h.Settings().recipe == "default"
""",
        blocked=HEAVY,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["HelpSystem", "load", "losses", "models", "training"])
def test_what_needs_torch_says_what_to_install(name: str) -> None:
    done = python(
        f"""
import l2h
try:
    l2h.{name}
except l2h.errors.MissingExtraError as error:
    assert isinstance(error, ImportError)
    assert "torch" in str(error), error
    assert "pip install -e '{PROJECT}[train" in str(error), error
else:
    raise SystemExit("nothing was raised")
""",
        blocked=HEAVY,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing", [HEAVY, ("typer", "rich")])
def test_the_commands_say_what_to_install(missing: tuple[str, ...]) -> None:
    done = python("sys.argv = ['l2h', '--version']\nfrom l2h.cli import main\nmain()", blocked=missing)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"pip install -e '{PROJECT}[cli]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["demo", "train --data digits --out run", "export runs/mine --out bundle"])
def test_a_command_that_needs_torch_says_what_to_install(command: str) -> None:
    arguments = ["l2h", *command.split()]
    done = python(f"sys.argv = {arguments!r}\nfrom l2h.cli import main\nmain()", blocked=("torch",))
    assert done.returncode == 1, done.stderr
    assert "torch" in done.stderr
    assert f"pip install -e '{PROJECT}[train,report]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["--version", "serve --help", "ask --help", "keys --help", "bench edge --help"])
def test_the_commands_of_the_field_need_no_torch(command: str) -> None:
    blocked = ("torch", "sklearn", "matplotlib", "pyarrow", "onnx", "safetensors")
    arguments = ["l2h", *command.split()]
    done = python(f"sys.argv = {arguments!r}\nfrom l2h.cli import main\nmain()", blocked=blocked)
    assert done.returncode == 0, done.stderr


def test_every_hint_names_an_extra_that_is_there() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named, elsewhere = set(), []
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
            if getattr(call.func, "id", "") == "missing_extra":
                named |= {*ast.literal_eval(call.args[1]).split(",")}
        elsewhere += [line for line in source.splitlines() if "pip install" in line]
    assert named >= {"train", "report", "serve", "litert", "tensorboard", "mlflow"}
    assert named <= extras.keys()
    assert [line for line in elsewhere if "pip install pandas" not in line] == []  # all others are made in one place


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="colour"):
        _ = l2h.colour


def test_importing_l2h_imports_nothing_heavy() -> None:
    done = python("import l2h\nprint(*sorted({name.split('.')[0] for name in sys.modules}))")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "l2h" in loaded
    assert not loaded & {*HEAVY, "onnxruntime", "httpx", "pandas", "numba"}


def test_importing_the_mathematics_imports_numpy_alone() -> None:
    done = python(
        f"import importlib\nfor name in {VALUES!r}: importlib.import_module('l2h.' + name)\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "numpy" in loaded
    assert not loaded & {*HEAVY, "onnxruntime", "httpx", "pandas", "numba"}


# Names and version.


def test_every_public_name_resolves() -> None:
    for name in l2h.__all__:
        assert getattr(l2h, name) is not None
    assert set(l2h.__all__) <= set(dir(l2h))


def test_the_public_face_is_complete() -> None:
    assert {"Costs", "HelpSystem", "load", "Answers", "Answer", "Report", "as_client", "load_dataset"} <= set(
        l2h.__all__
    )


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert l2h.__version__ == project["version"]


# A real installation.


@pytest.mark.long
def test_the_base_install_is_enough_for_a_device(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=STUCK)
    interpreter = str(tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python")
    install = subprocess.run(
        [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(PROJECT)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=STUCK,
        check=False,
    )
    assert install.returncode == 0, install.stderr

    def inside(script: str) -> subprocess.CompletedProcess[str]:
        return python(script, interpreter=interpreter, installed=True)

    absent = inside("import importlib.util\nassert importlib.util.find_spec('torch') is None")
    assert absent.returncode == 0, absent.stderr
    works = inside(
        "import importlib, l2h\n"
        f"for name in {DEVICE!r}: importlib.import_module('l2h.' + name)\n"
        "assert l2h.__file__.startswith(sys.prefix), l2h.__file__\n"
        "assert l2h.Costs(c_e=0.1, c_1=1.0).c_e == 0.1\n"
        "print(l2h.__version__)"
    )
    assert works.returncode == 0, works.stderr
    assert works.stdout.strip() == l2h.__version__
    seconds = []
    for _ in range(5):
        timed = inside("import time\nbegun = time.process_time()\nimport l2h\nprint(time.process_time() - begun)")
        seconds.append(float(timed.stdout))
    assert statistics.median(seconds) < IMPORT_SECONDS
    assert_answers(interpreter, tmp_path)
    assert_commands(interpreter, tmp_path)
    fit_router(*made_up(200)).save(tmp_path / "router")
    words = "algebra: what is it?", "sports: what is it?"
    routed = inside(f"import l2h\nprint(*l2h.Router.load({str(tmp_path / 'router')!r}).predict({words!r}).by)")
    assert routed.stdout.split() == ["server", "client"], routed.stderr


def assert_answers(interpreter: str, folder: Path) -> None:
    """A device's half of a bundle gives there what it gives here."""
    bundle = shutil.copytree(
        VERSION_0_1 / "priced-bundle", folder / "bundle", ignore=shutil.ignore_patterns("server.onnx")
    )
    with l2h.EdgeClient(bundle) as edge:
        X = np.random.default_rng(2).integers(0, 17, (40, *edge.bundle.input_shape)).astype(edge.bundle.input_dtype)
        expected = edge.predict(X)
    np.save(folder / "X.npy", X)
    done = python(ON_A_DEVICE, bundle, folder / "X.npy", interpreter=interpreter, installed=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["label"] == expected.label.tolist()
    assert found["reason"] == expected.reason.tolist()
    assert found["free"] == ["no_server"]
    assert not found["torch"]


def assert_commands(interpreter: str, folder: Path) -> None:
    """There ``l2h ask`` answers arrays, pictures and tables; what is missing is installed by the command that is named.

    It is so for the installed package and for the checkout, whose source the second hint is about.
    """

    def l2h_command(*arguments: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        words = [interpreter, "-m", "l2h", *map(str, arguments)]
        source = {} if path is None else {"PYTHONPATH": str(path)}
        return subprocess.run(
            words, env=kept | source, cwd=folder, capture_output=True, text=True, timeout=STUCK, check=False
        )

    asked = l2h_command("ask", folder / "bundle", folder / "X.npy", "--json")
    assert asked.returncode == 0, asked.stderr
    assert len(json.loads(asked.stdout)["answers"]) == 40
    Image.fromarray(np.load(folder / "X.npy")[0, 0]).save(folder / "one.png")
    assert "client" in l2h_command("ask", folder / "bundle", folder / "one.png").stdout
    assert "unfinished" not in l2h_command("runs", VERSION_0_1).stdout
    for source, form in ((None, "'l2h[serve]'"), (PROJECT / "src", f"-e '{PROJECT}[serve]'")):
        refused = l2h_command("serve", folder / "bundle", "--print-config", path=source)
        assert refused.returncode == 1
        assert refused.stderr.strip().endswith(f"pip install {form}"), refused.stderr
        hint = shlex.split(refused.stderr.strip().rpartition(": ")[2])
        done = subprocess.run([interpreter, "-m", *hint, "--quiet"], cwd=folder, timeout=STUCK, check=False)
        assert done.returncode == 0
        assert l2h_command("serve", folder / "bundle", "--print-config", path=source).returncode == 0
        subprocess.run(
            [interpreter, "-m", "pip", "uninstall", "--yes", "--quiet", "uvicorn"], check=True, timeout=STUCK
        )
