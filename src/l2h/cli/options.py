"""Options that several commands share."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from l2h.errors import SettingsError

#: Options by their panel of ``--help``.
price_option = partial(typer.Option, rich_help_panel="Prices")
run_option = partial(typer.Option, rich_help_panel="Run")
training_option = partial(typer.Option, rich_help_panel="Training")


def _load_methods(files: list[str] | None) -> list[str] | None:
    if files:
        from l2h.methods import load_file

        try:
            for file in files:
                load_file(file)
        except SettingsError as error:
            raise typer.BadParameter(str(error)) from error
    return files


TestPart = Annotated[str | None, typer.Option(help="The test part, where it is a file of its own.")]
Limit = Annotated[int | None, typer.Option(help="Use only so many rows of each part.", min=1)]
Device = Annotated[str, training_option(help="auto, cpu, cuda, cuda:1.")]
Precision = Annotated[str, training_option(help="fp32, tf32 or bf16.")]
Set = Annotated[
    list[str] | None,
    training_option(
        "--set",
        help="Any further setting: folds=3, distill=0.7, server.epochs=20, rejector.lr=3e-4, server.optimizer=sgd.",
    ),
]
ModelOption = Annotated[
    list[str] | None,
    training_option(
        "--option", help="A model's own option: server.width=2, rejector.width=4, client.max_depth=4, server.patch=4."
    ),
]
MethodFiles = Annotated[
    list[str] | None,
    typer.Option("--method-file", callback=_load_methods, help="Python file that registers methods; repeat."),
]
ServerRun = Annotated[Path | None, typer.Option(help="The run of a server trained by itself (--role server).")]
BundleFolder = Annotated[Path, typer.Argument(help="The bundle's folder, as l2h export writes it.")]
KeyFile = Annotated[
    Path | None, typer.Option(help="File that holds the key for the server. (default: the variable L2H_KEY)")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
