"""The paper's experiments as files: pictures, JSON, CSV, one page each, and an overview of all."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2h.errors import DataError
from l2h.experiments.runs import write_json
from l2h.files import write_atomically
from l2h.report.common.figure import png
from l2h.report.common.page import data_uri, flat, write_html
from l2h.report.paper.markdown import LONG, markdown
from l2h.report.paper.plots import plot_bounds, plot_class_rates, plot_losses, plot_risk_curves, plot_tradeoff
from l2h.report.paper.tables import (
    Experiment,
    checked,
    origin,
    paragraphs,
    require_unique,
    section_csv,
    section_table,
    tables,
)
from l2h.report.run.gallery import plot_samples

if TYPE_CHECKING:
    from l2h.experiments.paper.study import Drawing

_PLOTS: dict[str, Callable[..., Any]] = {
    "tradeoff": plot_tradeoff,
    "risk": plot_risk_curves,
    "losses": plot_losses,
    "bounds": plot_bounds,
    "per_class": plot_class_rates,
    "samples": plot_samples,
}


def write_experiment(experiment: Experiment, folder: str | Path) -> Path:
    """Write ``experiment.json``, a CSV file for each table and ``report.html``.

    A number that is not finite, of a rejector that diverged, is written as null and shown as ``n/a``. In a CSV file
    a column with a spread becomes two, ``_mean`` and ``_sem``, unrounded.

    Args:
        experiment: what was measured, as plain values. In a table ``best`` marks in every row the lowest or highest
            of the measured cells, those with a ``mean``: of the columns named in ``compare`` where the table has
            that key; else of those that are no percentages; else of all.
        folder: holds the PNG files of the plots already.

    Returns:
        The page. Each file is replaced in one step: a reader never sees half of one.

    Raises:
        DataError: the experiment is of another schema, a row does not fit its columns, a name cannot be that of a
            file, or a plot is missing.
    """
    folder = Path(folder)
    experiment = checked(experiment)
    write_json(folder / "experiment.json", experiment)
    for section in tables(experiment):
        write_atomically(folder / f"{section['name']}.csv", section_csv(section))
    return write_html(
        folder / "report.html",
        "paper.html.j2",
        title=experiment["title"],
        experiment=experiment,
        meta=origin(experiment),
        sections=[_section(section, experiment, folder) for section in experiment["sections"]],
        settings=list(flat(experiment["settings"])),
    )


def write_overview(experiments: Sequence[Experiment], folder: str | Path) -> list[Path]:
    """Write ``index.html``, which links to every ``NAME/report.html``, and all results as ``RESULTS.md``.

    Args:
        experiments: as :func:`write_experiment` takes them, in the order in which they are shown.
        folder: holds the folder ``NAME`` of each.

    Returns:
        The two files.

    Raises:
        DataError: as :func:`write_experiment`, or two experiments have one name.
    """
    folder = Path(folder)
    experiments = [checked(experiment) for experiment in experiments]
    require_unique([experiment["name"] for experiment in experiments], "experiments")
    title = "Learning to Help in Multi-Class Settings: the paper's experiments"
    page = write_html(
        folder / "index.html",
        "paper.html.j2",
        title=title,
        experiment=None,
        experiments=[(experiment, origin(experiment)) for experiment in experiments],
    )
    text = markdown(title, experiments).encode("utf-8", errors="replace")
    return [page, write_atomically(folder / "RESULTS.md", text)]


def write_drawings(drawings: Mapping[str, "Drawing"], folder: Path) -> None:
    """Write every drawing into its PNG file in a folder."""
    for file, drawing in drawings.items():
        write_atomically(folder / file, png(_PLOTS[drawing.plot](**drawing.data)))


def _section(section: Mapping[str, Any], experiment: Experiment, folder: Path) -> dict[str, Any]:
    if section["kind"] == "text":
        return {"kind": "text", "paragraphs": paragraphs(section["text"])}
    if section["kind"] == "table":
        table = section_table(section, len(experiment["seeds"]))
        return {"kind": "table", "table": table, "long": len(table.rows) > LONG, "file": f"{section['name']}.csv"}
    path = folder / section["file"]
    try:
        source = data_uri(path.read_bytes())
    except OSError as error:
        raise DataError(f"the plot {path} cannot be read ({error.strerror or error}): write it first") from error
    return {"note": None, **section, "source": source}
