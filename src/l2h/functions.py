"""Python functions named as text: ``module:function``, or ``file.py:function``."""

import importlib.util
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from l2h.errors import SettingsError

#: Names of modules, or the path of a file, then the name of what is in it.
_TEXT = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*|.+\.py):(?P<name>[A-Za-z_][\w.]*)")


def is_function(text: str) -> bool:
    """Return whether a text has the form ``module:function`` or ``file.py:function``."""
    return _TEXT.fullmatch(text) is not None


def source_of(text: str) -> Path | None:
    """Return the file that holds the function; None where it is no Python source.

    A module is found as Python finds it, and then in the working folder.
    """
    module = _parts(text)[0]
    if module.endswith(".py"):
        path = Path(module)
        if not path.is_file():
            raise SettingsError(f"{text}: there is no file {module}")
        return path.absolute()
    _add_to_path(Path.cwd())
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError) as error:  # a package above it that is none, or fails
        raise SettingsError(f"{text}: cannot import {module} ({error})") from error
    if spec is None:
        raise SettingsError(f"{text}: there is no module {module} here or among the installed ones")
    return Path(spec.origin).absolute() if spec.origin is not None and spec.origin.endswith(".py") else None


def load_function(text: str, file: Path | None = None, source: bytes = b"") -> Callable[..., Any]:
    """Return the function that a text names; its module is run.

    With ``file``, which need not be there any more, ``source`` is run as what it holds, even if the module was imported
    before: this is how a function is loaded again.
    """
    module, name = _parts(text)
    is_file = module.endswith(".py")
    path = file or source_of(text)
    try:
        if path is None or (file is None and not is_file):
            home = importlib.import_module(module)
        else:
            _add_to_path(path.parent if is_file else Path.cwd())
            # A file has a name that no import looks for: it may be called random.py.
            name_of_home = f"_l2h_file_{path.stem}" if is_file else module
            home = _run(name_of_home, path, path.read_bytes() if file is None else source)
        found: Any = home
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise SettingsError(f"{text}: {error}") from error
    except Exception as error:  # whatever the user's module raises
        raise SettingsError(f"{text}: its module fails: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise SettingsError(f"{text} is a {type(found).__name__}, which cannot be called")
    function: Callable[..., Any] = found
    return function


def function_name(function: Any) -> str:
    """Return ``module:name`` of a function, of the one in a partial, or of the class of another object."""
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', '')}:{named.__qualname__}"


def has_own_name(function: Any) -> bool:
    """Return whether the name of a function leads to it alone; not so of a lambda, a partial, a method or an object."""
    module, _, name = function_name(function).partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return type(found) is type(function) and bool(found == function)


def _parts(text: str) -> tuple[str, str]:
    found = _TEXT.fullmatch(text)
    if found is None:
        raise SettingsError(f"{text!r} names no function: write module:function, or file.py:function")
    return found["module"], found["name"]


def _run(name: str, path: Path, source: bytes) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # what its classes look themselves up in
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    return module


def _add_to_path(folder: Path) -> None:
    """Let imports find what lies in a folder, after all that is installed."""
    with suppress(OSError):
        if os.path.realpath(folder) not in map(os.path.realpath, sys.path):
            sys.path.append(str(folder))
