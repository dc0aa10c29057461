"""The page of a report and its plots."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from l2h.costs import Costs
from l2h.decision import STUDENT, AnyCosts
from l2h.files import PLOTS, write_atomically
from l2h.metrics import OutcomeReport, Report
from l2h.report.common.figure import png
from l2h.report.common.inline import show_plots
from l2h.report.common.page import data_uri, flat, write_html
from l2h.report.common.text import percent
from l2h.report.run.gallery import Images, Sample, choose, plot_samples
from l2h.report.run.plots import Rows, plot_sync, run_plots
from l2h.report.run.prices import few_prices, money_tile, price_table, price_view
from l2h.report.run.tables import answerer_table, class_table, compute_table, contrastive_table, risk_table
from l2h.report.run.verdict import headline, verdict

if TYPE_CHECKING:
    from l2h.experiments.evaluating import Evaluation, Evaluations

_PIXELS = 64  # of the longer side of an image that is shown pixel by pixel
_THUMBNAIL = 160  # pixels, the longer side of an image in the gallery


def write_page(
    report: OutcomeReport,
    folder: str | Path,
    *,
    title: str,
    history: Rows = (),
    images: Images | None = None,
    settings: Mapping[str, Any] | None = None,
    next_steps: Sequence[str] = (),
    seed: int = 0,
    plots: str | None = None,
    file: str = "report.html",
    evaluations: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write a page into a folder and return its path. Each file is replaced in one step: nobody reads half a file.

    Args:
        report: what the page is about.
        folder: made where it does not exist.
        title: of the page.
        history: rows with ``stage``, ``epoch``, ``train_loss`` and ``held_out_loss``.
        images: uint8 (n, C, H, W), the inputs behind the report, C being 1 or 3.
        settings: what the run was made with; may be nested.
        next_steps: what the reader may do now, one line each; text between backticks is set as code.
        seed: of the choice of images.
        plots: a folder within ``folder`` for the plots as PNG files; ``None`` to write the page alone.
        file: the name of the page.
        evaluations: all that was asked for, this report first, as rows of its ``summary``; none where that is all.
    """
    folder = Path(folder)
    pictures = None if plots is None else folder / plots
    samples = plot_samples(report, images, seed=seed) if isinstance(report, Report) and pictures is not None else None
    if pictures is not None and samples is not None:
        write_atomically(pictures / "samples.png", png(samples))
    sides = {} if images is None or not isinstance(report, Report) else choose(report, images, per_side=12, seed=seed)
    return write_html(
        folder / file,
        "report.html.j2",
        title=title,
        report=report,
        headline=headline(report),
        verdict=verdict(report),
        prices=_prices(report.costs),
        sent=_sent(report),
        student_beside=isinstance(report, Report)
        and report.student_risk is not None
        and STUDENT not in report.answerers,
        risks=risk_table(report),
        contrastive=contrastive_table(report),
        answerers=answerer_table(report) if len(report.answerers) > 2 else None,
        compute=compute_table(report) if isinstance(report, Report) and report.compute is not None else None,
        classes=class_table(report) if isinstance(report, Report) else None,
        plots=show_plots(run_plots(report, history), pictures),
        gallery={side: [_card(sample) for sample in samples] for side, samples in sides.items()},
        settings=list(flat(settings or {})),
        next_steps=list(next_steps),
        money=None if report.money is None else money_tile(report),
        view=price_view(report),
        few=few_prices(report),
        asked=price_table(evaluations) if len(evaluations) > 1 else None,
        limited=any(row.get("bound") for row in evaluations),
    )


def write_run_page(evaluations: "Evaluations", folder: Path) -> Path:
    """Write the plots and the page of a run's first evaluation into a folder and return the path of the page."""
    report, dataset, history = evaluations.results[0].report, evaluations.dataset, evaluations.history
    steps = ["`l2h train --data DATA --client YOUR.onnx --server lenet5 --out runs/mine` trains around your own client"]
    several = [server.name for server in report.choice.servers] if len(report.choice.servers) > 1 else []
    prices = " ".join(f"--price {name}=0.1" for name in several) or "--c-e 0.05 --c-e 0.2"
    if report.heads:
        steps = [f"`l2h evaluate {evaluations.run} {prices}` prices it differently, with no new training", *steps]
    three = report.alternatives.get("three_ways")
    if three is not None and three.risk(report.costs) < report.risk.system:
        steps = [f"`l2h calibrate {evaluations.run} --second-opinion` lets the rejector's student answer too", *steps]
    page = write_page(
        report,
        folder,
        title=f"Learning to help on {dataset.name}",
        history=history,
        images=dataset.X_test if dataset.X_test.ndim == 4 else None,
        settings=evaluations.training,
        next_steps=steps,
        seed=report.seed or 0,
        plots=PLOTS,
        evaluations=[result.summary() for result in evaluations.results],
    )
    syncs = [spec.sync for spec in evaluations.specs]
    if history and len(set(syncs)) > 1:
        write_atomically(folder / PLOTS / "sync.png", png(plot_sync(history, syncs)))
    return page


def write_router_page(results: "Sequence[Evaluation]", folder: Path, training: Mapping[str, Any]) -> Path:
    """Write the plots and the page of a router's first evaluation into a folder and return the path of the page."""
    report = results[0].report
    return write_page(
        report,
        folder,
        title=f"Routing on {report.dataset}",
        settings=training,
        next_steps=[
            '`l2h ask RUN "a prompt"` says who should answer it',
            "`l2h evaluate RUN --outcomes OTHER.csv` measures it on other outcomes",
        ],
        plots=PLOTS,
        evaluations=[result.summary() for result in results],
    )


def _prices(costs: AnyCosts) -> str:
    if isinstance(costs, Costs):
        return ", ".join(f"{name} = {value:g}" for name, value in costs.as_dict().items())
    return "; ".join(f"{name} {_prices(one)}" for name, one in costs.items())


def _sent(report: OutcomeReport) -> str:
    """Return who answers, in short."""
    if len(report.answerers) == 2:
        return "the rest is answered on the device"
    return ", ".join(f"{name} {percent(figures.share)}" for name, figures in report.choice.figures().items())


def _card(sample: Sample) -> dict[str, Any]:
    image = Image.fromarray(sample.image)
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    # A small image keeps every pixel; a photograph would make the page large.
    kind = "PNG" if max(image.size) <= _PIXELS else "JPEG"
    image.save(buffer, format=kind, optimize=True)
    return {"sample": sample, "source": data_uri(buffer.getvalue(), kind.lower())}
