"""Flags that the commands that train have in common, and what ``--set`` and ``--option`` mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from l2h.errors import SettingsError
from l2h.settings import CHOICES, PAPER_REJECTOR, PAPER_SERVER, Settings, StageSettings

TRAINING = "Training"  # the panel of --help
TestPart = Annotated[str | None, typer.Option(help="The test part, where it is a file of its own.")]
Limit = Annotated[int | None, typer.Option(help="Use only so many rows of each part.", min=1)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.", rich_help_panel=TRAINING)]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any further setting: folds=3, distill=0.7, server.epochs=20, rejector.lr=3e-4, server.optimizer=sgd.",
        rich_help_panel=TRAINING,
    ),
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        help="A model's own option: server.width=2, rejector.width=4, client.max_depth=4, server.patch=4.",
        rich_help_panel=TRAINING,
    ),
]
Precision = Annotated[str, typer.Option(help="fp32, tf32 or bf16.", rich_help_panel=TRAINING)]


def make_settings(values: dict[str, Any], overrides: list[str], server: str) -> Settings:
    """Settings from flags and ``--set name=value``; ``server.`` and ``rejector.`` reach into the stages."""
    from l2h.models import recommended
    from l2h.settings import DEFAULT_REJECTOR

    paper = values["recipe"] == "paper"
    stages: dict[str, StageSettings] = {
        "server": values.get("server") or (PAPER_SERVER if paper else recommended(server)),
        "rejector": values.get("rejector") or (PAPER_REJECTOR if paper else DEFAULT_REJECTOR),
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
            known = ", ".join(StageSettings.__dataclass_fields__)
            raise SettingsError(f"--set {override}: known are server.X and rejector.X with X one of {known}")
    return Settings.from_dict(plain | {name: vars(stage) for name, stage in stages.items()})


def parse_options(options: list[str]) -> dict[str, dict[str, Any]]:
    """``--option server.width=2`` by model."""
    out: dict[str, dict[str, Any]] = {"client": {}, "server": {}, "rejector": {}}
    for option in options:
        name, value = _assignment(option)
        model, _, key = name.partition(".")
        if model not in out or not key:
            raise SettingsError(
                f"--option {option}: expected client.NAME=VALUE, server.NAME=VALUE or rejector.NAME=VALUE"
            )
        out[model][key] = value
    return out


def _assignment(text: str) -> tuple[str, Any]:
    """``name=value``; the value is a number, true, false or none where it reads as one, else text."""
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
