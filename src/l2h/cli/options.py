"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: Panels of ``--help``.
PRICES, RUN, TRAINING = "Prices", "Run", "Training"

TestPart = Annotated[str | None, typer.Option(help="The test part, where it is a file of its own.")]
Limit = Annotated[int | None, typer.Option(help="Use only so many rows of each part.", min=1)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.", rich_help_panel=TRAINING)]
Precision = Annotated[str, typer.Option(help="fp32, tf32 or bf16.", rich_help_panel=TRAINING)]
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
ServerRun = Annotated[Path | None, typer.Option(help="The run of a server trained by itself (--role server).")]
BundleFolder = Annotated[Path, typer.Argument(help="The bundle's folder, as l2h export writes it.")]
KeyFile = Annotated[
    Path | None, typer.Option(help="File that holds the key for the server. (default: the variable L2H_KEY)")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
