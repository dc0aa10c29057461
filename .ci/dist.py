"""Install the wheel of dist/ with each extra into an empty environment, and do there what the extra promises.

python .ci/dist.py [EXTRA ...]      from the environment of `make setup`; without names: all of them
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUNDLE = ROOT / "tests/compatibility/version_0_1/priced-bundle"
RUNS = BUNDLE.parent
ONLY_BASE = """
import importlib.util
for name in ("torch", "sklearn", "matplotlib", "starlette", "onnx"):
    assert importlib.util.find_spec(name) is None, f"{name} is there"
"""
DEVICE = f"""
import numpy as np, l2h
with l2h.EdgeClient({str(BUNDLE)!r}) as edge:
    X = np.random.default_rng(0).integers(0, 17, (8, *edge.bundle.input_shape)).astype(edge.bundle.input_dtype)
    assert len(edge.predict(X)) == 8
np.save("X.npy", X)
"""
TRAINING = """
import l2h
from sklearn.datasets import make_classification
from sklearn.tree import DecisionTreeClassifier
X, y = make_classification(600, n_informative=6, n_classes=3, random_state=0)
old = DecisionTreeClassifier(max_depth=2).fit(X[:100], y[:100])
stage = l2h.StageSettings(epochs=2)
system = l2h.HelpSystem(old, "mlp", settings=l2h.Settings(server=stage, rejector=stage, folds=2, threads=1))
system.fit(X[100:400], y[100:400]).calibrate(X[400:500], y[400:500])
print(system.evaluate(X[500:], y[500:], l2h.Costs(c_e=0.1)).risk.system)
system.save("run")
system.export("bundle")
"""
REPORT = """
import numpy as np
from l2h import Costs, metrics
from l2h.report import risk_table, write_page
rng = np.random.default_rng(0)
y, remote = rng.integers(0, 3, 60), rng.random(60) < 0.3
report = metrics.evaluate(
    y=y, client_label=rng.integers(0, 3, 60), client_confidence=rng.random(60), server_probability=np.eye(3)[y],
    remote=remote, score=rng.random(60), costs=Costs(c_e=0.1), confidence_remote=remote, head_probability={},
    class_names=("a", "b", "c"), dataset="made up", seed=0,
)
assert "made up" in write_page(report, "page", title="made up").read_text()
"""
PAGES = """
from l2h.serving.dashboard import pages
for html, _ in (pages.docs_page(), pages.login_page("m"), pages.dashboard_page("m", logged_in=True)):
    assert b"--paper" in html
"""
LITERT = """
import numpy as np, l2h
client = l2h.as_client("client.tflite", preprocessing=l2h.Preprocessing(scale="0..1"))
assert len(client.answers(np.load("digits.npy"), 10).label) == 5
"""


@dataclass(frozen=True)
class Environment:
    """An environment that holds the wheel with one extra, and a folder to work in."""

    interpreter: Path
    folder: Path

    def run(self, *words: object, folder: Path | None = None) -> str:
        """Run a program of the environment; end with what it said where it fails."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        arguments = [str(self.interpreter), *map(str, words)]
        done = subprocess.run(
            arguments, cwd=folder or self.folder, env=kept, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def python(self, script: str) -> str:
        return self.run("-c", script)

    def l2h(self, *words: object) -> str:
        return self.run("-m", "l2h", *words)


def check_base(env: Environment) -> None:
    """The device: answers and decides, without torch."""
    env.python(ONLY_BASE + DEVICE)
    assert '"answers"' in env.l2h("ask", BUNDLE, "X.npy", "--json")
    assert "lenet5" in env.l2h("runs", RUNS)
    env.l2h("keys", "add", "phones", "--file", "keys.json")


def check_serve(env: Environment) -> None:
    """The server: its pages, without what reports need, and a load on a bundle, which a server is started for."""
    env.python(PAGES)
    assert "requests_per_second" in env.l2h("bench", "serve", BUNDLE, "--seconds", 1, "--json")


def check_train(env: Environment) -> None:
    """Training, saving, exporting."""
    env.python(TRAINING)
    assert (env.folder / "bundle/manifest.json").is_file()


def check_report(env: Environment) -> None:
    """Pages and pictures, also without torch."""
    env.python(REPORT)


def check_litert(env: Environment) -> None:
    """A client that is a .tflite file."""
    sys.path.insert(0, str(ROOT / "tests/support"))
    import numpy as np
    from litert_maker import write_litert
    from model_files import digits, linear

    from l2h import Preprocessing

    write_litert(env.folder / "client.tflite", linear(Preprocessing(scale="0..1", layout="NHWC")))
    np.save(env.folder / "digits.npy", digits()[0][:5])
    env.python(LITERT)


def check_tensorboard(env: Environment) -> None:
    """The package that `l2h train --tensorboard` writes with."""
    env.python("import tensorboard.summary.writer.event_file_writer")


def check_mlflow(env: Environment) -> None:
    """The package that `l2h train --mlflow` logs with, and the SQLite files of its folders."""
    env.python("import mlflow; mlflow.MlflowClient('sqlite:///mlflow.db').create_experiment('digits')")
    assert (env.folder / "mlflow.db").is_file()


def check_otel(env: Environment) -> None:
    """Traces and metrics of a device: a collector that is not there holds nothing up."""
    env.python(DEVICE.replace(f"({str(BUNDLE)!r})", f"({str(BUNDLE)!r}, otlp='http://127.0.0.1:9')"))


def check_postgres(env: Environment) -> None:
    """Accounts in PostgreSQL: one that cannot be reached is told in a line."""
    env.python("import psycopg, psycopg_binary")
    url = "postgresql://nobody@127.0.0.1:9/none"
    script = f"from l2h.cli.app import run; assert run(['keys', 'list', '--accounts', {url!r}]) == 1"
    env.python(script)


def check_signing(env: Environment) -> None:
    """A bundle is signed and checked; without a signature it is refused."""
    shutil.copytree(BUNDLE, env.folder / "bundle")
    env.l2h("sign", "key", "signing.key")
    env.l2h("sign", "bundle", "bundle", "--key", "signing.key")
    env.l2h("sign", "check", "bundle", "--key", "signing.key.pub")
    env.python("import l2h; l2h.EdgeClient('bundle', verify_key='signing.key.pub').close()")


def check_ray(env: Environment) -> None:
    """A task on a Ray of this machine."""
    # Ray takes no function that is built in.
    env.python("import ray; ray.init(num_cpus=1, include_dashboard=False); ray.get(ray.remote(lambda: 2).remote())")


def check_docs(env: Environment) -> None:
    """The site, from the unpacked sdist."""
    env.run("-m", "mkdocs", "build", "--strict", "--quiet", folder=unpacked(env.folder))


def check_dev(env: Environment) -> None:
    """The sdist has what its tests need: some of them run from it, with the wheel in place of the source."""
    tests = ("test_costs.py", "test_structure.py", "cli/test_cli_runs.py", "docs", "examples")
    files = [f"tests/{name}" for name in tests]
    said = env.run("-m", "pytest", "-m", "not long", *files, folder=unpacked(env.folder))
    assert " passed" in said
    env.l2h("demo", "--out", "demo")


CHECKS: dict[str, Callable[[Environment], None]] = {
    "": check_base,
    "cli": check_base,
    "serve": check_serve,
    "postgres": check_postgres,
    "report": check_report,
    "litert": check_litert,
    "tensorboard": check_tensorboard,
    "mlflow": check_mlflow,
    "otel": check_otel,
    "signing": check_signing,
    "ray": check_ray,
    "docs": check_docs,
    "train": check_train,
    "dev": check_dev,
}


def unpacked(folder: Path) -> Path:
    """Unpack the sdist into a folder, and return where it lies."""
    (archive,) = (ROOT / "dist").glob("l2h-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def main() -> None:
    """Check the extras named on the command line, or all."""
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*CHECKS} == {"", *extras}, "an extra without a check, or a check without its extra"
    (wheel,) = (ROOT / "dist").glob("l2h-*.whl")
    for extra in sys.argv[1:] or CHECKS:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as name:
            subprocess.run([sys.executable, "-m", "venv", Path(name) / "venv"], check=True)
            env = Environment(Path(name) / "venv/bin/python", Path(name) / "work")
            env.folder.mkdir()
            asked = f"l2h[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
            env.run("-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", asked)
            CHECKS[extra](env)
        print(
            f"{wheel.name} {f'[{extra}]' if extra else 'alone'}: {CHECKS[extra].__doc__} "
            f"{time.monotonic() - begun:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
