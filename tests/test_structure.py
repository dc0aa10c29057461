"""The shape of the source, read from its syntax trees: who may import whom, and what nobody does."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import l2h

PACKAGE = Path(l2h.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

#: Plain values and functions, each with those of them that it may import.
VALUES = {
    "errors": set(),
    "costs": {"errors"},
    "money": {"costs", "errors"},
    "files": {"errors"},
    "rows": {"errors", "files"},
    "functions": {"errors"},
    "json_lists": set(),
    "metadata": {"errors"},
    "ngrams": {"costs", "errors"},
    "table": {"errors"},
    "columns": {"errors", "ngrams", "table"},
    "settings": {"errors"},
    "style": set(),
    "labels": {"errors"},
    "budgets": {"errors"},
    "answers": {"costs", "errors"},
    "clock": set(),
    "fleet": {"errors"},
    "telemetry": {"errors"},
    "limits": {"clock", "costs", "errors", "telemetry"},
    "decision": {"answers", "costs", "errors", "limits", "money"},
    "metrics": {"costs", "decision", "errors", "labels", "limits", "money"},
}
#: The packages above them; every one may import all of ``VALUES``.
PACKAGES = {
    "audits": set(),
    "classifiers": set(),
    "protocol": set(),
    "connections": set(),
    "bundle": {"classifiers"},
    "remote": {"classifiers", "protocol"},
    "recalibration": {"audits", "bundle"},
    "edge": {"audits", "bundle", "classifiers", "protocol", "remote"},
    "serving": {"bundle", "classifiers", "connections", "protocol"},
    "losses": set(),
    "models": set(),
    "data": set(),
    "routing": {"data"},
    "training": {"classifiers", "connections", "data", "losses", "models", "remote"},
    "methods": {"classifiers", "losses", "models", "training"},
    "fitted": {"classifiers", "data", "methods", "models", "training"},
    "export": {"bundle", "classifiers", "fitted", "methods", "models", "training"},
    "system": {"bundle", "classifiers", "data", "export", "fitted", "methods", "models", "remote", "routing",
               "training"},
    "experiments": {"classifiers", "data", "losses", "methods", "models", "remote", "routing", "system", "training"},
    "estimator": {"data", "experiments", "methods", "system"},
    "report": {"audits", "data", "experiments", "methods"},
    "cli": {"audits", "bundle", "data", "edge", "experiments", "export", "methods", "models", "recalibration", "report",
            "routing", "serving", "system", "training"},
}  # fmt: skip
ALLOWED = {**VALUES, **{name: needs | set(VALUES) for name, needs in PACKAGES.items()}, "__main__": {"cli"}}
#: What packages of others each may import, beside numpy.
EXTERNAL = {
    **{name: set() for name in VALUES},
    "fleet": {"msgspec"},
    **{name: {"pandas"} for name in ("metrics", "table")},  # only where a data frame is asked for
    "audits": {"msgspec"},
    "telemetry": {"opentelemetry"},  # only where traces or metrics are sent to a collector
    # torch and LiteRT only for models of their kind, onnx only where a tensor inside a file is chosen
    "classifiers": {"ai_edge_litert", "onnx", "onnxruntime", "torch"},
    "protocol": {"orjson"},
    "connections": {"httptools", "uvicorn"},
    "bundle": {"cryptography", "msgspec", "onnxruntime"},
    "remote": {"httpx"},
    "recalibration": set(),
    "edge": {"h11", "httpx", "opentelemetry", "pybreaker"},  # opentelemetry for types alone, as in serving
    # psycopg only for accounts in PostgreSQL
    "serving": {"httpx", "opentelemetry", "orjson", "prometheus_client", "psycopg", "starlette", "uvicorn", "uvloop"},
    "losses": {"torch"},
    "models": {"safetensors", "torch"},
    "data": {"PIL", "pyarrow", "scipy", "sklearn"},
    "routing": set(),
    "training": {
        "IPython",
        "httpx",
        "mlflow",
        "onnx",
        "rich",
        "safetensors",
        "sklearn",
        "starlette",
        "torch",
        "uvicorn",
    },
    "fitted": {"torch"},
    "export": {"onnx", "onnxruntime", "skl2onnx", "sklearn", "torch"},
    "system": {"skl2onnx", "torch"},
    "methods": {"torch"},
    "experiments": {"ray", "scipy", "sklearn", "torch"},  # ray only with --on
    "estimator": {"sklearn"},
    "report": {"PIL", "jinja2", "markupsafe", "matplotlib", "rich"},
    "cli": {"rich", "typer"},
    "__main__": set(),
}
#: What looks up through the public face, ``l2h.NAME``, when it is called: a report shows and saves itself.
LOOKS_UP = {("metrics/report.py", "report")}
#: The modules that know SQLite: the permits of a device, the charges of a server and its devices, the answers of
#: somebody's API.
STORES = {
    *("limits/sqlite.py", "remote/cache.py"),
    *("serving/accounts/devices.py", "serving/accounts/history.py", "serving/accounts/sqlite.py"),
    *("serving/accounts/reserve.py", "serving/accounts/source.py"),
}
#: CIFAR is published as pickles; the class there builds numpy arrays and nothing else.
UNPICKLERS = {("data/published.py", "pickle.Unpickler")}
LONGEST_COMMAND, LONGEST_REPEAT = 80, 12


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    """``data/npz.py``."""
    return path.relative_to(PACKAGE).as_posix()


def package_of(path: Path) -> str:
    """``l2h/data/npz.py`` is part of ``data``."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Every import of a file, in full (``l2h.costs.Costs``), also those inside functions and for types alone."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: relative imports are not used here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def home_of(name: str) -> str:
    """The package that ``l2h.NAME`` comes from: a package itself, or the home of a class of the public face."""
    if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists():
        return name
    return str(getattr(l2h, name).__module__).split(".")[1]


def test_every_package_is_in_the_table_and_the_table_has_no_circle() -> None:
    assert {package_of(path) for path in SOURCES} - {"__init__"} <= set(ALLOWED)
    assert set(EXTERNAL) == set(ALLOWED)
    done: set[str] = set()
    while len(done) < len(ALLOWED):
        ready = {name for name, needs in ALLOWED.items() if needs <= done} - done
        assert ready, f"these need each other: {sorted(set(ALLOWED) - done)}"
        done |= ready


def test_imports_point_down_only() -> None:
    found = set()
    for path in SOURCES:
        package = package_of(path)
        if package == "__init__":  # it names the homes of the public face, and imports them when asked
            continue
        parts = [name.split(".") for name in imports(path)]
        needed = {home_of(part[1]) for part in parts if part[0] == "l2h" and len(part) > 1 and part[1] != "__version__"}
        found |= {(package, other) for other in needed - ALLOWED[package] - {package}}
    assert not found


def test_only_what_is_listed_looks_up_through_the_public_face() -> None:
    found = set()
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "l2h":
                package, home = package_of(path), "errors" if node.attr == "__version__" else home_of(node.attr)
                found |= {(name_of(path), home)} if home not in ALLOWED[package] | {package} else set()
    assert found == LOOKS_UP


@pytest.mark.parametrize("package", EXTERNAL)
def test_each_package_needs_no_more_of_others_than_the_table_says(package: str) -> None:
    needed = {name.split(".")[0] for path in SOURCES if package_of(path) == package for name in imports(path)}
    assert needed - sys.stdlib_module_names - {"l2h", "numpy"} <= EXTERNAL[package]


def test_nobody_touches_what_is_private_to_another() -> None:
    public = {"_asdict", "_replace", "_fields", "_make", "_exit"}  # of named tuples and os, by their documentation
    found = set()
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom):
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                found |= {(name_of(path), f"{node.module}.{name}") for name in names if is_private(name)}
            elif isinstance(node, ast.Import):
                found |= {(name_of(path), a.name) for a in node.names if any(map(is_private, a.name.split(".")))}
            elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in public:
                owner = ast.unparse(node.value)
                if owner not in ("self", "cls", "super()"):
                    found.add((name_of(path), f"{owner}.{node.attr}"))
    assert not found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_every_public_class_name_exists_once() -> None:
    places = defaultdict(list)
    for path in SOURCES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not is_private(node.name):
                places[node.name].append(name_of(path))
    assert not {name: files for name, files in places.items() if len(files) > 1}


def test_only_the_stores_know_sqlite() -> None:
    users = {name_of(path) for path in SOURCES if any(name.split(".")[0] == "sqlite3" for name in imports(path))}
    assert users == STORES


def test_no_command_is_longer_than_a_page() -> None:
    long = set()
    for path in SOURCES:
        if package_of(path) != "cli":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno + 1 > LONGEST_COMMAND:
                    long.add(f"{path.stem}.{node.name}")
    assert not long


def test_nothing_is_unpickled() -> None:
    reading = {
        *("pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "torch.load"),
        *("pandas.read_pickle", "shelve.open"),
    }
    found = set()
    for path in SOURCES:
        modules = {name.split(".")[0] for name in imports(path)}
        assert not modules & {"cloudpickle", "dill", "joblib", "_pickle", "cPickle"}, name_of(path)
        found |= {(name_of(path), name) for name in imports(path) if name in reading}
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in reading:
                found.add((name_of(path), ast.unparse(node)))
            elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
                assert ast.unparse(node.value) == str(node.arg == "weights_only"), f"{name_of(path)}:{node.lineno}"
    assert found == UNPICKLERS


def test_nothing_is_written_twice() -> None:
    """No run of a dozen lines stands in two places; comments, blank lines, imports and spaces do not count."""
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path in SOURCES:
        lines = list(code_lines(path))
        for start in range(len(lines) - LONGEST_REPEAT + 1):
            part = lines[start : start + LONGEST_REPEAT]
            places[tuple(text for _, text in part)].append(f"{name_of(path)}:{part[0][0]}")
    assert not [where for where in places.values() if len(where) > 1]


def code_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that count, with their numbers."""
    text = path.read_text(encoding="utf-8")
    skipped: set[int] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert node.end_lineno is not None
            skipped |= set(range(node.lineno, node.end_lineno + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = {token.start[0]: token.start[1] for token in tokens if token.type == tokenize.COMMENT}
    for number, line in enumerate(text.splitlines(), 1):
        folded = " ".join(line[: comments.get(number)].split())
        if folded and number not in skipped:
            yield number, folded
