"""Settings and model options from texts of the form ``NAME=VALUE``."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from l2h.classifiers import Preprocessing
from l2h.errors import SettingsError, about
from l2h.files import read_json
from l2h.models import recommended
from l2h.settings import (
    CHOICES,
    DEFAULT_REJECTOR,
    PAPER_REJECTOR,
    PAPER_SERVER,
    SEPARABLE_REJECTOR,
    Settings,
    StageSettings,
)


def make_settings(
    values: dict[str, Any], overrides: Sequence[str], server: str, sized: bool = False, several: bool = False
) -> Settings:
    """Return settings for a server: a model's name, or a file; of several servers, the first.

    ``values`` are fields of :class:`l2h.Settings`, ``recipe`` among them; stages that are not given get the defaults of
    the recipe and of the server. ``overrides`` are ``name=value``, for the stages ``server.name`` or ``rejector.name``.
    Of several servers each gets the stage that suits it, unless an override names one of its fields.
    A rejector that is ``sized`` to a budget, or whose trunk is separable, gets its stage when it is trained, unless an
    override names one of its fields.
    """
    paper = values["recipe"] == "paper"
    usual = PAPER_REJECTOR if paper else SEPARABLE_REJECTOR if sized else DEFAULT_REJECTOR
    stages: dict[str, StageSettings] = {
        "server": values.get("server") or (PAPER_SERVER if paper else recommended(server)),
        "rejector": values.get("rejector") or usual,
    }
    named = {
        stage: values.get(stage) is not None or any(text.startswith(f"{stage}.") for text in overrides)
        for stage in stages
    }
    plain = dict(values)
    for override in overrides:
        name, value = _assignment(override)
        stage, _, key = name.partition(".")
        if name in ("augment", *stages):
            raise SettingsError(f"--set {override}: {name} has a flag of its own, --{name}")
        if not key:
            # "none" is a choice of some settings, and no value of the others.
            plain[name] = "none" if value is None and "none" in CHOICES.get(name, ()) else value
        elif stage in stages and key in StageSettings.__dataclass_fields__:
            stages[stage] = replace(stages[stage], **{key: value})
        else:
            if stage == "client":
                raise SettingsError(
                    f"--set {override}: the training of a stand-in client is fixed; --client tree takes a moment, and "
                    "--client-share less than 1 fewer samples"
                )
            known = ", ".join(StageSettings.__dataclass_fields__)
            raise SettingsError(f"--set {override}: known are server.X and rejector.X with X one of {known}")
    for stage, later in (("rejector", sized), ("server", several and not paper)):
        if later and not named[stage]:
            del stages[stage]
    return Settings.from_dict(plain | {name: vars(stage) for name, stage in stages.items()})


def parse_options(options: Sequence[str], servers: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Return options such as ``server.width=2`` by the field of the plan that holds them: ``server_options``.

    Servers that have names have their options under these: ``box.width=2``.
    """
    by_model: dict[str, dict[str, Any]] = {"client_options": {}, "server_options": {}, "rejector_options": {}}
    for option in options:
        name, value = _assignment(option)
        # The longest name first: a server may be called "box" and another "box.2".
        named = next((one for one in sorted(servers, key=len, reverse=True) if name.startswith(f"{one}.")), None)
        if named is not None:
            by_model["server_options"].setdefault(named, {})[name.removeprefix(f"{named}.")] = value
            continue
        model, _, key = name.partition(".")
        if f"{model}_options" not in by_model or not key or (model == "server" and servers):
            known = [f"{one}.NAME=VALUE" for one in ("client", *(servers or ("server",)), "rejector")]
            raise SettingsError(f"--option {option}: expected {', '.join(known[:-1])} or {known[-1]}")
        by_model[f"{model}_options"][key] = value
    return by_model


def as_texts(values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return settings by name as texts of ``--set``, and options of models by name as texts of ``--option``."""
    sets: list[str] = []
    options: list[str] = []
    for name, value in values.items():
        stage, _, key = name.partition(".")
        of_stage = stage in ("server", "rejector") and key in StageSettings.__dataclass_fields__
        (sets if of_stage or not key else options).append(f"{name}={value_text(value)}")
    return sets, options


def augment_of(values: Mapping[str, Any]) -> str | None:
    """Return the augmentation among settings by name, where ``none`` was read as None; None where there is none."""
    return value_text(values["augment"]) if "augment" in values else None


def read_values(path: Path) -> dict[str, Any]:
    """Return settings and options by name from a file of JSON: ``{"server.lr": 0.003, "server.width": 4}``."""
    try:
        values = read_json(path)
    except (OSError, ValueError) as error:
        raise SettingsError(f"--settings {path}: {getattr(error, 'strerror', None) or error}") from error
    plain = isinstance(values, dict) and not any(isinstance(value, dict | list) for value in values.values())
    if not plain or not all(name and "=" not in name for name in values):
        raise SettingsError(f'--settings {path}: expected one object of names and values: {{"server.lr": 0.003}}')
    with about(f"--settings {path}"):
        for name in (one for one in ("recipe", "seed", "device", "precision") if one in values):
            raise SettingsError(f"{name} has a flag of its own, --{name}")
        other = ("augment", "start", "dropout", "joint")  # these depend on the data, or on the recipe
        make_settings(
            {"recipe": "default"}, as_texts({n: v for n, v in values.items() if n not in other})[0], "alexnet"
        )
    return dict(values)


def parse_preprocessing(values: dict[str, str | None], flag: str) -> dict[str, Any]:
    """Return fields of :class:`l2h.Preprocessing` from texts; ``flag`` is how an error names one, without its end."""
    kinds: dict[str, tuple[str, Callable[[str], float]]] = {
        "mean": (",", float),
        "std": (",", float),
        "size": ("x", int),
    }
    found: dict[str, Any] = {}
    for name, text in values.items():
        if text is None:
            continue
        separator, kind = kinds.get(name, ("", None))
        try:
            found[name] = text if kind is None else [kind(part) for part in text.split(separator)]
        except ValueError as error:
            form = "224 or 224x160" if name == "size" else "a number, or one per channel as 0.485,0.456,0.406"
            raise SettingsError(f"{flag}{name} {text}: expected {form}") from error
    if len(found.get("size", ())) == 1:
        found["size"] *= 2
    try:
        return Preprocessing.from_dict(found).as_dict()
    except SettingsError as error:
        raise SettingsError(f"{flag}...: {error}") from error


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise SettingsError(f"{text!r} is no NAME=VALUE")
    return name, parse_value(value)


def value_text(value: Any) -> str:
    """Return the text that :func:`parse_value` reads as this value."""
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)


def parse_value(text: str) -> Any:
    """Return a number, true, false or none where a text reads as one, else the text."""
    words: dict[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
