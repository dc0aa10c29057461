"""Commands that take their options as groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from l2h.cli.options import takes_groups


@dataclass(frozen=True)
class Price:
    c_e: Annotated[float, typer.Option("--c-e", help="Price of a request.")] = 0.1


@dataclass(frozen=True)
class Target:
    folder: Annotated[str, typer.Argument()]
    force: Annotated[bool, typer.Option("--force")] = False
    names: Annotated[list[str] | None, typer.Option("--name")] = None


calls: list[tuple[Price, Target]] = []


@takes_groups
def command(price: Price, target: Target) -> None:
    """Do something."""
    calls.append((price, target))


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def test_every_field_of_every_group_is_an_option_with_its_default() -> None:
    calls.clear()
    assert run("here")[0] == 0
    assert run("there", "--c-e", "0.5", "--force", "--name", "a", "--name", "b")[0] == 0
    assert calls == [(Price(), Target("here")), (Price(0.5), Target("there", True, ["a", "b"]))]


def test_a_field_without_a_default_is_required() -> None:
    assert run("--force")[0] == 2


def test_help_shows_the_options_in_the_order_of_the_groups() -> None:
    status, text = run("--help")
    assert status == 0
    assert "Do something." in text
    assert "Price of a request." in text
    assert text.index("--c-e") < text.index("--force") < text.index("--name")
