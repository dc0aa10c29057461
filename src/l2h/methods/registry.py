"""The methods by name: ours, those of installed packages, and those of the user's files."""

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

from l2h.errors import SettingsError, UnknownNameError
from l2h.methods.base import FAMILIES, Method
from l2h.methods.deferral import DEFERRAL
from l2h.methods.helping import HELPING, SPELLED, PricedAttached
from l2h.methods.learned import Learned
from l2h.methods.posthoc import OFFLOADING, POSTHOC
from l2h.methods.simple import REFERENCES, SIMPLE

#: What ``l2h train`` does where nothing else is asked for.
DEFAULT = PricedAttached.name
#: Entry points of this group name a method's class, or a module that registers methods.
GROUP = "l2h.methods"
M = TypeVar("M", bound=type[Method])

#: By name, in the order of tables.
_METHODS: dict[str, type[Method]] = {
    method.name: method for method in (*SIMPLE, *DEFERRAL, *POSTHOC, *OFFLOADING, *HELPING, *REFERENCES)
}
_loaded: set[str] = set()


def register(method: M) -> M:
    """Add a method, as a decorator of its class.

    Raises:
        SettingsError: it is no method, lacks a part, or has the name of another.

    Example:
        >>> @register                                                       # doctest: +SKIP
        ... class Mine(Learned):
        ...     name, title, equation, net = "mine", "My method", "exp(-r)", "attached"
        ...     def loss(self, scores, pool, prices): ...
    """
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise SettingsError(f"{method!r} is no method: subclass l2h.methods.Method or l2h.methods.Learned")
    needed = ("name", "title", "family", "equation", *(("net",) if issubclass(method, Learned) else ()))
    missing = [part for part in needed if not isinstance(getattr(method, part, None), str)]
    if missing:
        raise SettingsError(f"method {method.__name__} lacks {', '.join(missing)}: give each as a text of the class")
    if method.family not in FAMILIES:
        raise SettingsError(f"method {method.name!r} has family={method.family!r}; known: {', '.join(FAMILIES)}")
    if _METHODS.get(method.name, method) is not method:
        raise SettingsError(f"there is a method {method.name!r} already: give {method.__name__} another name")
    _METHODS[method.name] = method
    return method


def load_file(path: str | Path) -> list[str]:
    """Run a Python file that registers methods, once, and return the names of all that it registered."""
    file = Path(path).expanduser().resolve()
    module = f"l2h_method_{file.stem}"
    if str(file) not in _loaded:
        if not file.is_file():
            raise SettingsError(f"no file at {path}: --method-file names a Python file that registers methods")
        spec = importlib.util.spec_from_file_location(module, file)
        if spec is None or spec.loader is None:
            raise SettingsError(f"{path} is no Python file: --method-file names one that registers methods")
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[module] = loaded
        try:
            spec.loader.exec_module(loaded)
        except Exception as error:
            raise SettingsError(f"{path} fails: {type(error).__name__}: {error}") from error
        _loaded.add(str(file))
    names = [method.name for method in _METHODS.values() if method.__module__ == module]
    if not names:
        raise SettingsError(f"{path} registers no method: put @l2h.methods.register before its class")
    return names


def known() -> list[str]:
    """Return the names of all methods, in the order of tables."""
    _load_entry_points()
    return list(_METHODS)


def get(names: Iterable[str]) -> list[Method]:
    """Return the named methods, in the order of tables.

    Raises:
        UnknownNameError: a name is none of the known ones, or is given twice.
    """
    names = list(names)
    _require_known(names, known())
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UnknownNameError(f"method {twice[0]!r} is named twice")
    return [method() for name, method in _METHODS.items() if name in names]


def find_learned(name: str) -> Learned:
    """Return a method that trains a rejector."""
    spelled_names = {method.name: method for method in SPELLED.values()}
    learned = {n: m for n in known() if issubclass(m := _METHODS[n], Learned)} | spelled_names
    _require_known([name], list(learned))
    return learned[name]()


def spelled(loss: str, net: str) -> Learned:
    """Return the method that a loss and a kind of rejector stand for: ``("priced", "attached")`` is the default."""
    return SPELLED[loss, net]()


def _require_known(names: Sequence[str], there: Sequence[str]) -> None:
    unknown = [name for name in names if name not in there]
    if unknown:
        raise UnknownNameError(f"unknown method {unknown[0]!r}; known: {', '.join(there)}")


def _load_entry_points() -> None:
    if GROUP in _loaded:
        return
    _loaded.add(GROUP)
    for entry in entry_points(group=GROUP):
        found = entry.load()
        if isinstance(found, type):
            register(found)
