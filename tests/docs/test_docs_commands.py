"""Every command that a page shows is one of the program's, and runs, or it is written down here why it does not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from commands import QUICK, call, command, environment, execute
from PIL import Image
from prompts import write_csv
from shown_commands import COMMANDS, PAGES, PROJECT, Shown, alike, blocks, parse, shown
from this_platform import VERSION_0_1
from waiting import STUCK, free_port

import l2h

#: Why a command of a block is only parsed, by what it looks like. All others run below, most of them in a smaller form.
ONLY_PARSED = {
    r" \.\.\.": "a part of a command",
    r"--role (server|client)": "two hosts: tests/training/hosts runs both",
    r"compare --dataset digits --seeds 5|DATA/|runs/legacy": "how the figures were made, in minutes to hours",
    r"compare (--crossed|--rows)": "tests/cli/test_cli_crossed.py crosses losses, and shows rows of both kinds",
    r"^l2h frontier": "a training for each budget and seed: tests/cli/test_cli_frontier.py runs smaller ones",
    r"\b(box|cloud)\b|(bundles|runs)/two": "several servers: tests/cli, tests/edge and tests/serving run them",
    r"runs/large": "more images than memory holds: tests/cli/test_cli_stream.py runs smaller ones",
    r"--on ray": "a cluster: tests/cli/test_cli_ray.py runs one of two nodes",
    r"^l2h tune|best.json": "many trainings: tests/cli/test_cli_tune.py runs smaller ones",
    r"--server https://host": "a host of somebody: tests/remote runs a training against one",
    r"--accounts|accounts copy": "a database: tests/serving/accounts has one",
    r"devices forget": "it needs a device that has reported: tests/serving makes one forgotten",
    r"^l2h (audit|recalibrate|sign)|--verify-key": "pairs of a device, and keys: tests/audits, recalibration, edge",
    r"serve mymodel.py:predict": "tests/serving runs functions without a bundle",
}
#: Pages that build on each other, in the order in which they run in one folder.
STORIES = {
    "tutorial": ["tutorial.md"],
    "field": ["README.md", "guide.md", "bundle.md", "deploy.md", "edge.md"],
    "serving": ["serving.md", "monitoring.md"],
    "models": ["CONTRIBUTING.md", "api.md"],
    "tables": ["tables.md"],
    "costs": ["costs.md", "shift.md"],
    "routing": ["routing.md"],
}


def of(kind: str, pages: list[Path] = PAGES) -> list[Shown]:
    return [one for page in pages for one in shown(page) if one.words and one.words[0] == kind]


def test_every_command_is_one_of_the_program() -> None:
    found = of("l2h")
    assert len(found) > 100
    wrong = {(one.page, one.text): fault for one in found if (fault := parse(one))}
    assert wrong == {}


def test_the_parser_would_see_what_is_wrong() -> None:
    for text, fault in {
        "l2h dance": "dance",
        "l2h train --data digits": "out",
        "l2h train --date digits --out run": "--date",
        "l2h demo --seed one": "integer",
        "l2h keys dance": "dance",
    }.items():
        assert fault in (parse(Shown("", text, True)) or "")


def test_every_example_of_a_help_is_one_of_the_program() -> None:
    leaves = [leaf for one in COMMANDS.values() for leaf in getattr(one, "commands", {"": one}).values()]
    examples = [text for leaf in leaves for text in re.findall(r"\[bold\](l2h .*?)\[/\]", leaf.help or "", re.DOTALL)]
    assert len(examples) >= len(leaves)
    assert {text: fault for text in examples if (fault := parse(Shown("", " ".join(text.split()), True)))} == {}


def test_every_reason_not_to_run_a_command_is_needed_and_every_page_has_a_story() -> None:
    texts = [one.text for one in of("l2h") if one.in_block]
    assert [pattern for pattern in ONLY_PARSED if not any(re.search(pattern, text) for text in texts)] == []
    with_commands = {one.page for one in to_run(PAGES)}
    assert with_commands == {page for pages in STORIES.values() for page in pages}


def test_what_else_is_shown_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    assert {one.words[1] for one in of("make")} <= targets
    scripts = [word for one in of("python") for word in one.words[1:2] if word.startswith("benchmarks/")]
    assert scripts
    assert [name for name in scripts if not (PROJECT / name).is_file()] == []
    extras = set(re.findall(r"^([a-z]+) = \[", (PROJECT / "pyproject.toml").read_text(), re.MULTILINE))
    named = re.findall(r"'\.\[([a-z,]+)\]'", "\n".join(page.read_text(encoding="utf-8") for page in PAGES))
    assert {extra for names in named for extra in names.split(",")} <= extras


def to_run(pages: list[Path]) -> list[Shown]:
    """The commands of blocks that run, in their order; the page of the benchmarks repeats what the tutorial does."""
    found = [one for page in pages if page.parent.name != "benchmarks" for one in shown(page) if one.in_block]
    ours = [one for one in found if re.match(r"l2h |python \w+\.py$", one.text)]
    return [one for one in ours if not any(re.search(pattern, one.text) for pattern in ONLY_PARSED)]


class Reader:
    """Somebody who types what the pages show, in one folder."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.server: subprocess.Popen[str] | None = None
        self.port = free_port()

    def type(self, one: Shown) -> str:
        url = f"http://127.0.0.1:{self.port}"
        text = re.sub(r"http://(127\.0\.0\.1|SERVER):8080|\bURL\b", url, one.text).replace("BUNDLE", "bundle")
        text = text.replace("--deadline 1", "--deadline 60")  # a busy machine answers later
        words = Shown(one.page, text, True).words
        if words[0] == "python":
            return subprocess.run([sys.executable, *words[1:]], env=environment(), check=True, **PIPES).stdout
        if words[1] == "serve":
            return self.serve(words[1:])
        if one.page != "tutorial.md":
            words += MORE.get(words[1], [])
            words += QUICK[-2:] if words[1] == "train" and "--budget" not in words else []
        # A method of one's own would stay registered in this process.
        result = (execute if "--method-file" in words else call)(*words[1:])
        assert result.status == 0, f"{one.page}: {one.text}\n{result.err}"
        if key := re.search(r"l2h_[\w-]+", result.out):
            self.patch.setenv("L2H_KEY", key[0])
        return result.out

    def serve(self, words: list[str]) -> str:
        """Start a server in place of the one that runs, and return the line that says so."""
        self.stop()
        own = ["--port", str(self.port), "--ledger", "ledger.db"]
        self.server = subprocess.Popen(command(*words, *own), env=environment(), stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        line = self.server.stdout.readline()
        assert line.startswith("serving "), words
        return line

    def stop(self) -> None:
        if self.server is not None:
            self.server.terminate()
            assert self.server.wait(STUCK) == 0
            self.server.stdout.close()
            self.server = None


#: What makes a command small, and lets pages name the same folders.
MORE = {
    "train": [*QUICK[:-2], "--set", "server.epochs=1", "--honest", "holdout", "--force"],
    "compare": [*QUICK, "--seeds", "1", "--limit", "300"],
    "export": ["--force"],
}
PIPES = {"stdout": subprocess.PIPE, "text": True}


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "adapter", raising=False)
    one = Reader(tmp_path, monkeypatch)
    yield one
    one.stop()


def pages_of(story: str) -> list[Path]:
    return [page for name in STORIES[story] for page in PAGES if page.name == name and page.parent.name != "benchmarks"]


def pictures(folder: Path, size: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Digits in colour as an image folder, and as arrays."""
    data = l2h.load_dataset("digits", limit=240)
    X = np.repeat(np.repeat(np.repeat(data.X_train, 3, 1), size // 8, 2), size // 8, 3) * 15
    for i, (image, label) in enumerate(zip(X, data.y_train, strict=True)):
        path = folder / str(label) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(path)
    return X, data.y_train


@pytest.mark.long
def test_the_tutorial_runs_and_prints_what_it_shows(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    (page,) = pages_of("tutorial")
    text = page.read_text(encoding="utf-8")
    first, last = blocks(text, "python")
    Path("old.py").write_text(first)
    said = "\n".join(reader.type(one) for one in to_run([page]))
    program = last.replace(":8080", f":{reader.port}").replace("deadline=1.0", "deadline=60.0")
    exec(compile(program, str(page), "exec"), {})
    assert "server worth_asking" in capsys.readouterr().out
    for line in "".join(blocks(text, "text")).splitlines():
        assert any(alike(line.split(), other.split()) for other in said.splitlines()), line


@pytest.mark.long
def test_the_programs_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = next(page for page in PAGES if page.name == "guide.md")
    found = blocks(guide.read_text(encoding="utf-8"), "python")
    programs = [block for block in found if block.startswith("import l2h")]
    assert len(programs) == 2
    monkeypatch.chdir(tmp_path)
    for program in programs:
        exec(compile(program, str(guide), "exec"), {})
    assert (tmp_path / "page.html").stat().st_size > 10_000


@pytest.mark.long
@pytest.mark.parametrize("story", [name for name in STORIES if name != "tutorial"])
def test_the_commands_of_the_pages_run(story: str, reader: Reader, certificate: tuple[Path, Path]) -> None:
    from sklearn.tree import DecisionTreeClassifier

    if story in ("field", "models"):
        X, y = pictures(Path("data/cifar10"))
        shutil.copytree("data/cifar10", "photos")
        l2h.export.save_onnx(DecisionTreeClassifier(max_depth=4).fit(X[:100].reshape(100, -1), y[:100]), "legacy.onnx")
        Image.fromarray(X[0].transpose(1, 2, 0)).save("photo.png")
        answers = "import numpy as np\ndef ask(X):\n    return np.eye(10)[X.sum((1, 2, 3)) % 10]\n"
        Path("adapter.py").write_text(answers)
        contributing = next(page for page in PAGES if page.name == "CONTRIBUTING.md")
        Path("mine.py").write_text(blocks(contributing.read_text(encoding="utf-8"), "python")[0])
    elif story == "serving":
        shutil.copytree(VERSION_0_1 / "priced-bundle", "bundles/digits")
        Path("mymodel.py").write_text("import numpy as np\ndef predict(X):\n    return np.ones((len(X), 10))\n")
        for file, name in zip(certificate, ("cert.pem", "key.pem"), strict=True):
            shutil.copy(file, name)
    elif story == "tables":
        first, second = blocks(pages_of(story)[0].read_text(encoding="utf-8"), "python")
        made: dict[str, Any] = {}
        exec(first.partition("system = ")[0] + second, made)  # the table, the old model, and its file
        table = made["customers"].assign(left=made["left"])
        for name, rows in (("customers", slice(200, 800)), ("other", slice(800, 900)), ("rows", slice(900, 910))):
            table[rows].to_csv(f"{name}.csv", index=False)
    else:
        write_csv(Path("prompts.csv"), 120)
        for name in ("answers", "other"):
            pandas.read_csv("prompts.csv").to_parquet(f"{name}.parquet")
    printed = []
    for one in to_run(pages_of(story)):
        if one.page == "api.md" and "serve" in one.words:  # as the sentence above it says
            assert call("export", "runs/api", "--out", "bundle").status == 0
            assert call("keys", "add", "phones", "--file", "keys.json").status == 0
        said = reader.type(one)
        assert said, one.text
        printed += said.splitlines()
    if story == "costs":  # no page of a story that is trained for a moment shows figures
        for line in "".join(blocks(pages_of(story)[0].read_text(encoding="utf-8"), "text")).splitlines():
            assert any(alike(line.split(), other.split()) for other in printed), line
