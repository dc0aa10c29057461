"""What the pages show: commands, with the real parser that reads them, and what is printed."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import typer

from l2h.cli.app import app

PROJECT = Path(__file__).parents[2]
PAGES = [
    *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((PROJECT / "docs").glob("*.md")),
]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?<=\n\n)(?:^    \S.*\n)+", re.MULTILINE)
TOP = typer.main.get_command(app)
COMMANDS = TOP.commands  # type: ignore[attr-defined]
_BAD_USAGE = typer.BadParameter.__mro__[1]
#: What a page writes for a number.
_NUMBERS = {"$s", "S"}
#: By how many percentage points printed figures may differ where floating-point sums differ.
OTHER_POINTS = 6.0


@dataclass(frozen=True)
class Shown:
    """One command of a page: a line of a block, or a part of a sentence."""

    page: str
    text: str
    in_block: bool

    @property
    def words(self) -> list[str]:
        """The command without comments and redirections."""
        words = shlex.split(self.text, comments=True)
        return words[: words.index(">")] if ">" in words else words

    @property
    def partial(self) -> bool:
        """Whether the page leaves something out."""
        return "..." in self.words or not self.in_block


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return [block for name, block in _FENCED.findall(text) if name == language]


def shown(page: Path) -> list[Shown]:
    """Return every command on a page, in its order."""
    text, found = page.read_text(encoding="utf-8"), []
    prose = _FENCED.sub("\n", text)
    for block in [*blocks(text, ""), *_INDENTED.findall(prose)]:
        lines = [part.strip() for line in block.replace("\\\n", " ").splitlines() for part in line.split(" && ")]
        found += [Shown(page.name, line, True) for line in lines if re.match(r"(l2h|make|python) ", line)]
    prose = _INDENTED.sub("\n", prose)
    found += [Shown(page.name, " ".join(span.split()), False) for span in re.findall(r"`(l2h [^`]+)`", prose)]
    return found


def parse(command: Shown) -> str | None:
    """Return what the parser of the commands has against a command; None where nothing."""
    words = [word for word in command.words[1:] if word != "--help"]
    words = ["0" if word in _NUMBERS else word for word in words]
    if "--method-file" in words:  # the parser would load it, for this whole process
        words = [word for word in words if word not in ("--method-file", "mine.py")]
    for i, word in enumerate(words):
        if word == "..." and i and words[i - 1].startswith("-"):
            words[i] = "1"  # the value of an option that the page leaves to the reader
    words = [word for word in words if word != "..."]
    parser = TOP
    while words and words[0] in getattr(parser, "commands", ()):
        parser, words = parser.commands[words[0]], words[1:]  # type: ignore[attr-defined]
    if hasattr(parser, "commands"):
        return None if words in ([], ["--version"]) else f"there is no command {words[0]}"
    try:
        parser.make_context(command.text, words)
    except _BAD_USAGE as error:
        if command.partial and type(error).__name__ == "MissingParameter":
            return None
        return f"{type(error).__name__}: {error}"
    return None


def alike(shown: list[str], printed: list[str]) -> bool:
    """Whether a printed line begins as the page shows it; figures of another platform's training differ a little."""
    if len(printed) < len(shown):
        return False
    for one, other in zip(shown, printed, strict=False):
        # With decimals, percentages, or amounts of three digits; a label or an index is the same everywhere.
        numbers = [re.fullmatch(r"\(?([+-]?(?:\d+\.\d+%?|\d+%|\d{3,})),?\)?,?", word) for word in (one, other)]
        a, b = (float(number[1].rstrip("%")) if number else 0.0 for number in numbers)
        points = OTHER_POINTS if max(abs(a), abs(b)) > 1 else OTHER_POINTS / 100
        near = all(numbers) and abs(a - b) <= max(points, 0.2 * abs(b) if abs(b) >= 100 else 0)
        if one != other and not near:
            return False
    return True
