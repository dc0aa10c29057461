"""The servers of a system as the user gave them, checked: those to be trained, and those that are taken as they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from l2h.bundle.parts import NAME
from l2h.classifiers import Classifier
from l2h.decision import SERVER
from l2h.errors import SettingsError, about, shown
from l2h.methods import Learned
from l2h.training.job import server_title, take_server

#: What a server may not be called, since it is the name of something else in answers, limits and reports.
RESERVED = ("client", "student", "rejector", "system", "all", "local", "remote")


@dataclass(frozen=True)
class GivenServer:
    """One server: what is trained into it, or the classifier that is taken as it is. One of the two is None."""

    name: str
    trainable: Any = None
    fixed: Classifier | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of a named one

    def __str__(self) -> str:
        given = self.fixed if self.trainable is None else self.trainable
        return (
            f"{self.name}={given!r}" if isinstance(given, str | Classifier) else f"{self.name}={type(given).__name__}"
        )


def take_servers(
    server: Any,
    servers: Mapping[str, Any] | None,
    train_server: bool | Mapping[str, bool] | None,
    options: Mapping[str, Any] | None,
) -> tuple[GivenServer, ...]:
    """Return the servers in their order; raise a :class:`SettingsError` for names that cannot be used."""
    if (server is None) == (servers is None):
        raise SettingsError(
            "give one server, server=..., or several by their names, servers={'box': ..., 'cloud': ...}"
        )
    if isinstance(server, Mapping):
        raise SettingsError(f"server={shown(server)} is several servers: give servers={{'box': ..., 'cloud': ...}}")
    if servers is None:
        servers, options = {SERVER.name: server}, {SERVER.name: options or {}}
    if not isinstance(servers, Mapping) or not servers:
        raise SettingsError(f"servers={shown(servers)} names no server: give {{'box': ..., 'cloud': ...}}")
    options = options or {}
    files: dict[str, str] = {}
    for name in servers:
        check_name(name)
        if files.setdefault(name.lower(), name) != name:
            raise SettingsError(
                f"servers {files[name.lower()]!r} and {name!r} differ in case alone, and may share files"
            )
    for what, named in (("server_options", options), ("train_server", train_server)):
        for name, value in named.items() if isinstance(named, Mapping) else ():
            if name not in servers or (named is options and not isinstance(value, Mapping)):
                raise SettingsError(f"{what}={shown(named)} is by name, {{'NAME': ...}}, of {', '.join(servers)}")
    found = []
    for name, given in servers.items():
        with about(server_title(name)):
            train = train_server.get(name) if isinstance(train_server, Mapping) else train_server
            found.append(GivenServer(name, *take_server(given, train), dict(options.get(name, {}))))
    return tuple(found)


def answers_folder(run: Path, name: str) -> Path:
    """Return where a run folder keeps the answers of a server that is asked: functions may share a name."""
    return run if name == SERVER.name else run / "answers" / name


def check_name(name: Any) -> None:
    """Refuse what no server can be called."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in RESERVED:
        raise SettingsError(
            f"a server cannot be called {name!r}: use letters, digits, '.', '_' and '-', and none of "
            f"{', '.join(RESERVED)}"
        )


def check_method(method: Learned, servers: int, second_opinion: bool, rejector: Any, recipe: str) -> None:
    """Refuse a method that cannot train for several servers, or that gives no second opinion."""
    if not isinstance(second_opinion, bool):
        raise SettingsError(f"second_opinion={second_opinion!r} must be True or False")
    if servers > 1 and not method.several_servers:
        raise SettingsError(
            f"method {method.name!r} trains for one server; there are {servers}: loss 'priced' answers for any number"
        )
    if second_opinion and not (method.any_price and method.student and recipe != "paper" and rejector == "attached"):
        raise SettingsError(
            "second_opinion=True lets the rejector's student answer: it needs an attached rejector that answers for "
            f"every price, as method 'priced-attached' trains it, not {method.name!r} with rejector "
            f"{rejector if isinstance(rejector, str) else 'of your own'!r} and recipe {recipe!r}"
        )


def check_student(options: Mapping[str, Any]) -> None:
    """Refuse options that leave no room for a student where the student is to answer."""
    if options.get("width") == 0:
        raise SettingsError(
            "second_opinion=True needs a student, and a rejector of width 0 has none: give a larger one"
        )
