"""What a person sees while a training works: bars on a terminal and in a notebook, plain lines elsewhere if asked."""

import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from l2h.errors import SettingsError, shown
from l2h.training.progress import LogProgress, Tee
from l2h.training.progress import Progress as Listener

#: Of the description of a bar, and of a line of bars in a notebook.
_DESCRIPTION, _WIDTH = 22, 120
_REFRESH = 0.2  # seconds between two pictures of the bars in a notebook
_HTML = '<pre style="white-space:pre;overflow-x:auto;line-height:1.3;margin:0">{code}</pre>'
#: Whom ``fit`` tells: None and True are bars, True also lines where nothing can be drawn, False is nobody.
Told = Listener | bool | None


def write_line(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class BarProgress(Listener):
    """One bar per stage: loss, steps per second, time left."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self._task: Any = None
        self._asking: dict[str, Any] = {}

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        self._task = self.bars.add_task(stage, total=epochs * steps, completed=done * steps, loss="")

    def step(self) -> None:
        self.bars.advance(self._task)

    def epoch(self, stage: str, row: Mapping[str, Any]) -> None:
        held_out = "" if row.get("held_out_loss") is None else f" held-out {row['held_out_loss']:.4f}"
        self.bars.update(self._task, loss=f"loss {row['train_loss']:.4f}{held_out}")

    def asked(self, done: int, total: int, stage: str = "server") -> None:
        if stage not in self._asking:
            self._asking[stage] = self.bars.add_task(f"{stage} asked", total=total, loss="", unit="inputs")
        self.bars.update(self._asking[stage], completed=done, total=total)

    def finish(self, stage: str) -> None:
        # The bar is full, also where the stage stopped early.
        self.bars.update(self._task, total=self.bars.tasks[self._task].completed)


class _Rate(TextColumn):
    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Any) -> Text:
        return Text("" if not task.speed else f"{task.speed:.0f} {task.fields.get('unit', 'steps')}/s")


class _NotebookBars(Progress):
    """Bars in the output of a notebook's cell. IPython draws them: for rich's own, ipywidgets must be installed."""

    _handle: Any = None
    _drawn = 0.0

    def start(self) -> None:
        from IPython.display import display

        self._handle = display(self._picture(), raw=True, display_id=True)

    def stop(self) -> None:
        self._handle.update({"text/plain": ""} if self.live.transient else self._picture(), raw=True)

    def advance(self, task_id: Any, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._draw()

    def update(self, task_id: Any, **fields: Any) -> None:
        super().update(task_id, **fields)
        self._draw()

    def _draw(self) -> None:
        now = time.monotonic()
        if now - self._drawn >= _REFRESH:
            self._drawn = now
            self._handle.update(self._picture(), raw=True)

    def _picture(self) -> dict[str, str]:
        out = Console(file=io.StringIO(), width=_WIDTH, record=True, force_jupyter=False)
        out.print(self.get_renderable())
        html = out.export_html(inline_styles=True, code_format=_HTML, clear=False)
        return {"text/html": html, "text/plain": out.export_text()}


@contextmanager
def training_progress(
    told: Told | Sequence[Told] = None,
    console: Console | None = None,
    write: Callable[[str], None] = write_line,
) -> Iterator[Listener]:
    """Give the one who is told of a training in the block: bars, lines written by ``write``, objects, or several.

    Bars are drawn on a terminal and in a notebook. What was drawn is removed where the block raises.
    """
    given: list[Any] = list(told) if isinstance(told, list | tuple) else [told]
    for one in given:
        if not (one is None or isinstance(one, bool) or hasattr(one, "epoch")):
            raise SettingsError(
                f"progress={shown(one)} must be True, False, None or an object such as a l2h.training.Progress"
            )
    console = console or Console(stderr=True)
    others = [one for one in given if not (one is None or isinstance(one, bool))]
    if _draws(console) and (None in given or True in given):
        with _shown_bars(console, losses=True) as bars:
            yield Tee(BarProgress(bars), *others)
    else:
        yield Tee(*([LogProgress(write=write)] if True in given else []), *others)


@contextmanager
def count_progress(
    title: str,
    told: Callable[[int, int], None] | bool | None = None,
    console: Console | None = None,
    write: Callable[[str], None] = write_line,
) -> Iterator[Callable[[int, int], None]]:
    """Give a function that is told how many of how many are done: a bar, a line per tenth, or the function ``told``."""
    console = console or Console(stderr=True)
    if callable(told):
        yield told
    elif told is not False and _draws(console):
        with _shown_bars(console) as bars:
            task = None

            def draw(done: int, total: int) -> None:
                nonlocal task
                task = bars.add_task(title) if task is None else task  # no bar before there is something to show
                bars.update(task, completed=done, total=total)

            yield draw
    else:
        tenths: set[int] = set()

        def tell(done: int, total: int) -> None:
            tenth = 10 * done // max(1, total)
            if told and tenth not in tenths:
                write(f"{title} {done} of {total}")
            tenths.add(tenth)

        yield tell


def make_bars(console: Console, width: int = _DESCRIPTION, *, losses: bool = False) -> Progress:
    """Return bars, their descriptions so wide; with the speed and the loss of a training where asked.

    A narrow terminal shows fewer columns.
    """
    wide = console.is_jupyter or console.width >= _WIDTH
    return (_NotebookBars if console.is_jupyter else Progress)(
        TextColumn(f"{{task.description:<{width}}}"),
        BarColumn(bar_width=30 if wide else 10),
        MofNCompleteColumn(),
        *([_Rate()] if losses and wide else []),
        *([TimeElapsedColumn()] if wide else []),
        TimeRemainingColumn(),
        *([TextColumn("{task.fields[loss]}")] if losses else []),
        console=console,
    )


@contextmanager
def _shown_bars(console: Console, *, losses: bool = False) -> Iterator[Progress]:
    bars = make_bars(console, losses=losses)
    bars.start()
    try:
        yield bars
    except BaseException:
        bars.live.transient = True
        raise
    finally:
        bars.stop()


def _draws(console: Console) -> bool:
    # By the file: a setting such as FORCE_COLOR makes a terminal of anything.
    return console.is_jupyter or (console.is_interactive and console.file.isatty())
