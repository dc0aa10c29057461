"""How the commands present themselves, and how they refuse what they cannot do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from commands import DIGITS, QUICK, Result, assert_told, call, execute, files_of, one_line

import l2h
from l2h.cli.app import app

_TOP = typer.main.get_command(app).commands  # type: ignore[attr-defined]
COMMANDS = sorted(_TOP)
#: Every command that does something, as it is typed: those of a group stand behind its name.
LEAVES = sorted(
    f"{name} {inner}".strip() for name, one in _TOP.items() for inner in sorted(getattr(one, "commands", {"": None}))
)
#: What gives no answer that a program could read.
SILENT = {"serve"}


def plain(text: str) -> str:
    return one_line(re.sub(r"\x1b\[[0-9;]*m", "", text))


def test_the_commands_are_there() -> None:
    named = {"demo", "train", "evaluate", "compare", "paper", "calibrate", "export", "serve", "ask", "bench", "runs"}
    assert named <= set(COMMANDS)


@pytest.mark.parametrize("name", LEAVES)
def test_help_of_every_command_shows_an_example_and_its_json(name: str) -> None:
    result = call(*name.split(), "--help")
    assert result.status == 0
    assert re.search(rf"Example: l2h {name} ", plain(result.out))
    assert ("--json" in result.out) != (name in SILENT)


def test_help_of_the_program_names_every_command() -> None:
    result = execute("--help")
    assert result.status == 0
    assert all(re.search(rf"\b{name}\b", result.out) for name in COMMANDS)


def test_without_arguments_the_help_is_shown() -> None:
    result = call()
    assert result.status in (0, 2)
    said = plain(result.out + result.err)
    assert "Usage" in said
    assert all(name in said for name in COMMANDS)


def test_version() -> None:
    result = execute("--version")
    assert (result.status, result.out) == (0, f"l2h {l2h.__version__}\n")


@pytest.mark.parametrize("name", LEAVES)
def test_an_unknown_option_is_bad_usage(name: str) -> None:
    result = call(*name.split(), "--colour", "red")
    assert result.status == 2
    assert "--colour" in result.err
    assert result.out == ""


def test_an_unknown_command_is_bad_usage() -> None:
    result = call("dance")
    assert result.status == 2
    assert "dance" in result.err


def test_missing_arguments_are_bad_usage() -> None:
    assert call("train", "--data", "digits").status == 2
    assert call("evaluate").status == 2


# Refusals, before anything is written.


def refused(tmp_path: Path, *arguments: object) -> Result:
    """A training that must not begin: its folder is not made."""
    folder = tmp_path / "run"
    result = call("train", *arguments, "--out", folder)
    assert not folder.exists()
    return result


def test_a_negative_price_by_a_real_process(tmp_path: Path) -> None:
    result = execute("train", *DIGITS, "--c-e", "-0.1", "--out", tmp_path / "run")
    assert_told(result, [2], "c_e=-0.1")
    assert result.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("price", [("--c-e", "-1"), ("--c-1", "-0.5"), ("--c-e", "nan"), ("--c-1", "inf")])
def test_a_bad_price_is_bad_usage_everywhere(price: tuple[str, str], tmp_path: Path) -> None:
    assert_told(refused(tmp_path, *DIGITS, *price), [2], price[0].replace("--", "").replace("-", "_"))
    assert_told(call("demo", *price, "--out", tmp_path / "demo"), [2], price[1])
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    ("flag", "known"),
    [
        ("--client", ["tree", "lenet5", "alexnet", "vit", "mlp", ".onnx"]),
        ("--server", ["lenet5", "alexnet", "vit", "mlp"]),
        ("--rejector", ["attached", "separate"]),
    ],
)
def test_an_unknown_name_lists_the_known_ones(flag: str, known: list[str], tmp_path: Path) -> None:
    assert_told(refused(tmp_path, *DIGITS[:-2], flag, "resnet"), [1, 2], "resnet", *known)


@pytest.mark.parametrize("flag", ["--client", "--server"])
@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".pkl"])
def test_a_missing_model_file_is_named(flag: str, suffix: str, tmp_path: Path) -> None:
    missing = tmp_path / f"missing{suffix}"
    assert_told(refused(tmp_path, *DIGITS[:-2], flag, missing), [1], str(missing))


@pytest.mark.parametrize("more", [[], ["--augment", "none"]])
def test_a_missing_data_file_is_named(more: list[str], tmp_path: Path) -> None:
    missing = tmp_path / "missing.npz"
    assert_told(refused(tmp_path, "--data", missing, *more), [1], str(missing))


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("folds", "NAME=VALUE"),
        ("=3", "NAME=VALUE"),
        ("colour=3", "colour"),
        ("folds=1", "folds=1"),
        ("folds=many", "folds='many'"),
        ("server.colour=3", "server.colour=3"),
        ("server.epochs=0", "epochs=0"),
        ("server.epochs=2.5", "epochs=2.5"),
        ("server.lr=-1", "lr=-1"),
        ("server.lr=nan", "lr=nan"),
        ("server.optimizer=magic", "sgd, adamw"),
        ("client.epochs=3", "client.epochs=3"),
        ("server=3", "--server"),
        ("rejector=attached", "--rejector"),
        ("augment=shift", "--augment"),
    ],
)
def test_a_bad_setting_is_bad_usage(assignment: str, told: str, tmp_path: Path) -> None:
    assert_told(refused(tmp_path, *DIGITS, "--set", assignment), [2], told)


@pytest.mark.parametrize(
    ("assignment", "told"),
    [("width=3", "server.NAME=VALUE"), ("server.width", "NAME=VALUE"), ("server=3", "server.NAME=VALUE")],
)
def test_a_malformed_option_is_bad_usage(assignment: str, told: str, tmp_path: Path) -> None:
    assert_told(refused(tmp_path, *DIGITS, "--option", assignment), [2], told)


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("server.colour=3", ["colour", "known: width"]),
        ("server.width=wide", ["lenet5", "wide"]),
        ("rejector.colour=3", ["colour", "known: ", "width", "hidden"]),
        ("client.colour=3", ["colour"]),
        ("client.max_depth=-3", ["max_depth"]),
    ],
)
def test_a_bad_option_of_a_model_is_told_in_one_line(assignment: str, told: list[str], tmp_path: Path) -> None:
    result = call("train", *DIGITS, *QUICK, "--option", assignment, "--out", tmp_path / "run")
    assert_told(result, [1, 2], *told)


@pytest.mark.parametrize("share", ["--client-share=0", "--client-share=1.5", "--calibration=0", "--calibration=1"])
def test_shares_out_of_range_are_bad_usage(share: str, tmp_path: Path) -> None:
    assert_told(refused(tmp_path, *DIGITS, share), [2], share.partition("=")[0].strip("-").replace("-", "_"))


def test_the_papers_recipe_and_the_priced_loss_exclude_each_other(tmp_path: Path) -> None:
    assert_told(refused(tmp_path, *DIGITS, "--recipe", "paper", "--loss", "priced"), [2], "paper", "shifted", "swapped")


# What is there stays.


def test_a_finished_run_is_not_overwritten(trained: tuple[Path, Result]) -> None:
    folder, _ = trained
    before = files_of(folder)
    assert_told(call("train", *DIGITS, *QUICK, "--out", folder), [1], str(folder), "--force", "--resume")
    assert files_of(folder) == before


@pytest.mark.parametrize("more", [[], ["--force"]])
def test_a_folder_of_something_else_is_never_touched(more: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.txt").write_text("years of work")
    assert_told(call("train", *DIGITS, *QUICK, "--out", folder, *more), [1], str(folder), "no run")
    assert files_of(folder) == {"chapter.txt": b"years of work"}


def test_a_file_is_no_run_folder(trained: tuple[Path, Result], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert_told(call("train", *DIGITS, *QUICK, "--out", file), [1], str(file))
    assert_told(call("evaluate", trained[0], "--out", file), [1], str(file))
    assert file.read_text() == "mine"


def test_nothing_to_resume_is_told(tmp_path: Path) -> None:
    assert_told(refused(tmp_path, *DIGITS, *QUICK, "--resume"), [1], "nothing to resume")


def test_a_resume_with_other_settings_names_them(trained: tuple[Path, Result]) -> None:
    folder, _ = trained
    before = files_of(folder)
    result = call("train", *DIGITS, *QUICK, "--set", "server.lr=0.5", "--resume", "--out", folder)
    assert_told(result, [1], "settings.server.lr", "0.5")
    assert files_of(folder) == before
