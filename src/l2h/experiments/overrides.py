"""Settings and model options from texts of the form ``NAME=VALUE``."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from l2h.classifiers import Preprocessing
from l2h.errors import SettingsError
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
    """Split ``name=value``; the value is a number, true, false or none where it reads as one, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise SettingsError(f"{text!r} is no NAME=VALUE")
    words: dict[str, Any] = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return name, words[value.lower()]
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value
