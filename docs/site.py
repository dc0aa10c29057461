"""What mkdocs asks for while it builds the site: which files are pages, the page of the commands, and docstrings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from l2h.cli.app import app

ROOT = Path(__file__).parents[1]
#: Every file keeps its place, so that a link works in the repository and in the site.
PAGES = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "benchmarks/README.md"),
    *("docs/**/*", "examples/*", "deploy/**/*", "results/**/*.md", "results/**/*.png", "results/**/*.csv"),
)
COMMANDS = "docs/reference/commands.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the theme, those of the repository, and the page of the commands."""
    ours = [
        File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, config.use_directory_urls)
        for pattern in PAGES
        for path in sorted(ROOT.glob(pattern))
        if path.is_file() and path != Path(__file__).resolve() and "__pycache__" not in path.parts
    ]
    theme = [file for file in files if not (file.abs_src_path or "").startswith(config.docs_dir)]
    return Files([*theme, *ours, File.generated(config, COMMANDS, content=commands_page())])


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return the page with the source of every example below the paragraph that begins with a link to its script."""

    def with_source(paragraph: re.Match[str]) -> str:
        return f"{paragraph[0]}\n```python\n{(ROOT / paragraph[1]).read_text(encoding='utf-8')}```\n"

    return re.sub(r"^\[(examples/\w+\.py)\]\(.+\n(?:.+\n)*", with_source, markdown, flags=re.MULTILINE)


def commands_page() -> str:
    """Return the help of every command as a page."""
    top = typer.main.get_command(app)
    lines = ["# Commands", _plain(top.help or "")]
    for name, command in top.commands.items():
        inner = getattr(command, "commands", {"": command})
        lines += [line for each, leaf in inner.items() for line in _command(f"l2h {name} {each}".strip(), leaf)]
    return "\n\n".join(lines) + "\n"


def _command(name: str, command: typer.core.TyperCommand) -> Iterator[str]:
    yield f"## {name}"
    yield from (_plain(part) for part in (command.help or "").split("\n\n"))
    context = typer.Context(command, info_name=name)
    records = [record for param in command.get_params(context) if (record := param.get_help_record(context))]
    rows = [f"| `{option}` | {_plain(text).replace('|', '&#124;')} |" for option, text in records]
    yield "\n".join(["| | |", "|---|---|", *rows])


def _plain(text: str) -> str:
    """Return help as Markdown: what the terminal shows in bold is code here."""
    return re.sub(r"\[bold\](.*?)\[/\]", r"`\1`", " ".join(text.split()))


class Docstrings(griffe.Extension):
    """Turns what Sphinx reads in a docstring into what mkdocstrings reads: roles, and the heading of an example."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            text = re.sub(r":[a-z]+:`~?([^`]+)`", r"`\1`", obj.docstring.value)
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
