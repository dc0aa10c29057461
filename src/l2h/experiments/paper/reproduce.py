"""Which deviation from the printed recipe gives the paper's tables? Each is trained, and ranked by its distance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from l2h.costs import Costs
from l2h.experiments.paper.grid import MAIN, PUBLISHED
from l2h.experiments.paper.passes import Cell, cell
from l2h.experiments.paper.study import ERRATA, Drawing, Experiment, Study, printed, title_of
from l2h.experiments.paper.variants import SIDES, Row, Variant, measure, variants_of

LABELS = ("kept", "client on kept", "server on kept", "client on sent", "server on sent")
#: A distance below which we say that a variant gives the tables, in percentage points.
NEAR = 3.0
WHY = "the rejector diverged in every seed, or one side is empty"
#: Why S matters at all, for the page.
JUDGED = (
    "At S = 1 the server is judged on the batch of the step that it has just taken, so it looks better than it is on "
    "images that it has not just seen. A copy that is some steps old has not seen the batch lately, and looks about as "
    "good as it is. Under the printed loss, and under the bounded one, a server that looks better is asked more: S = 1 "
    "sends more than S = 100, pays for more requests, and costs more. Under the released loss the sign is reversed."
)
#: What a reader of the paper should take from it.
READER = (
    "Read the printed tables as the outcome of code that differs from the printed loss. With the printed L2 a rejector "
    "runs off to infinity as long as the server is often wrong. The released loss is bounded, but it rewards asking "
    "where the server is wrong, so it is no surrogate of the paper's risk. On images that the server has fitted, where "
    "it is never wrong, both losses are the same and c_1 has no say: they keep where the client is right with a "
    "probability above 1 - c_e. By the tables' own numbers the rejector costs more than never asking. To train for a "
    "price, use a bounded form (`shifted`, `swapped`) or `priced`, on images that the server was not fitted to."
)
CellKey = tuple[Costs, str]  # prices and sync interval


@dataclass(frozen=True)
class Ranked:
    """One variant with its figures and its distances from the tables, in percentage points."""

    variant: Variant
    rows: list[Row]  # of all seeds
    contrastive: float | None  # None where a figure is missing at the main prices
    asynchronous: float | None

    @property
    def distance(self) -> float | None:
        """Both tables count alike."""
        if self.contrastive is None or self.asynchronous is None:
            return None
        return float(np.hypot(self.contrastive, self.asynchronous) / np.sqrt(2))

    @property
    def lost(self) -> int:
        return sum(row["diverged"] for row in self.rows)

    def at(self, costs: Costs, sync: str) -> list[Row]:
        """Return the rows of a cell, one per seed."""
        return [row for row in self.rows if (row["c_1"], row["c_e"], row["sync"]) == (costs.c_1, costs.c_e, sync)]


def run_reproduce(study: Study) -> Experiment:
    """Train the printed loss, the released one and each deviation, and rank them by distance from the tables."""
    out = Experiment(
        "reproduce",
        "Where the paper's tables come from",
        "Which deviation of the authors' code from the printed recipe gives the printed contrastive and async tables?",
        errata=[*ERRATA],
    )
    variants = variants_of(study.scale)
    for name in study.sets:
        folder = study.folder / out.name
        rows = [row for seed in study.seeds for row in measure(study.lab(name, seed), variants, folder)]
        study.hardware.update(row["hardware"] for row in rows)
        theirs = printed_cells(name)
        ranked = rank(variants, rows, theirs)
        _tables(out, name, ranked, theirs)
        out.plot(
            f"reproduce-{name}.png",
            f"{title_of(name)}: every variant at c_1 = 1.25, c_e = 0.25",
            Drawing("reproduction", {"rows": _drawn(ranked), "printed": theirs.get((MAIN, "1"))}),
        )
        out.findings += [f"{title_of(name)}: {sentence}" for sentence in conclusions(ranked, theirs)]
        out.findings += [f"{title_of(name)}: {sentence}" for sentence in about_intervals(ranked, study.scale.syncs)]
    out.text(f"{JUDGED}\n\n{READER}")
    return out


def printed_cells(name: str) -> dict[CellKey, dict[str, float]]:
    """Return what the paper prints for a data set as shares, by prices and S; of the digits nothing."""
    out: dict[CellKey, dict[str, float]] = {}
    for row in printed("cifar10-svhn-alexnet"):
        if f"{name}_m" not in row:
            return {}
        costs, side = Costs(c_e=float(row["ce"]), c_1=float(row["c1"])), {"local": "kept", "remote": "sent"}
        own = out.setdefault((costs, row["sync_interval"]), {})
        for who, key in (("client", "m"), ("server", "e")):
            own[f"{who}_{side[row['decision']]}"] = float(row[f"{name}_{key}"]) / 100
    for row in printed("contrastive-main"):
        if row["dataset"] == name and row["decision"] == "local":
            out[MAIN, "1"]["kept"] = float(row["ratio"]) / 100
    return out


def rank(variants: Sequence[Variant], rows: Sequence[Row], theirs: dict[CellKey, dict[str, float]]) -> list[Ranked]:
    """Return the variants by distance; those without all figures at the main prices are last."""
    out = []
    for variant in variants:
        one = Ranked(variant, [row for row in rows if row["variant"] == variant.name], None, None)
        cells = _cells(one)
        main = _apart(one, [(MAIN, "1")], theirs)
        whole = _apart(one, cells, theirs, without="kept")
        found = None if len(main) < len(SIDES) else _root_mean_square(main)
        out.append(Ranked(variant, one.rows, found, _root_mean_square(whole) if whole else None))
    return sorted(out, key=lambda one: (one.distance is None, one.distance or 0.0))


def _apart(
    one: Ranked, cells: Sequence[CellKey], theirs: dict[CellKey, dict[str, float]], without: str = ""
) -> list[float]:
    """Return how far the means over the seeds are from what is printed, figure by figure."""
    out = []
    for key in cells:
        for figure, value in theirs.get(key, {}).items():
            known = [row[figure] for row in one.at(*key) if row[figure] is not None]
            if figure != without and known:
                out.append(100 * (float(np.mean(known)) - value))
    return out


def _root_mean_square(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _tables(out: Experiment, name: str, ranked: list[Ranked], theirs: dict[CellKey, dict[str, float]]) -> None:
    main = theirs.get((MAIN, "1"), {})
    rows: list[list[Any]] = [[PUBLISHED, "", "", "", *(_share(main.get(figure)) for figure in SIDES), "", ""]]
    for one in ranked:
        at = one.at(MAIN, "1")
        distances = [_points(value) for value in (one.distance, one.contrastive, one.asynchronous)]
        shares = [cell([row[figure] for row in at], percent=True, why=WHY) for figure in SIDES]
        risk = cell([row["risk"] for row in at], why=WHY)
        rows.append([one.variant.title, *distances, *shares, risk, f"{one.lost} of {len(one.rows)}"])
    out.table(
        f"ranking-{name}",
        f"{title_of(name)}: variants by their distance from the printed tables",
        ["variant", "distance", "contrastive", "async", *LABELS, "risk", "diverged"],
        rows if main else rows[1:],
        "Distances are root mean squares in percentage points: over the five figures of the contrastive table, over "
        "the accuracies of the async table at the sync intervals that a variant was trained for, and of these two. "
        "Shares, accuracies and risk are at c_1 = 1.25, c_e = 0.25, S = 1. Diverged: of all prices, intervals, seeds.",
    )
    every: list[list[Any]] = []
    for one in ranked:
        for costs, sync in _cells(one):
            printed_here = theirs.get((costs, sync), {})
            at = one.at(costs, sync)
            every.append(
                [one.variant.title, f"{costs.c_1:g}", f"{costs.c_e:g}", sync]
                + [part for figure in SIDES for part in (_share(printed_here.get(figure)), _over(at, figure))]
                + [cell([row["risk"] for row in at], why=WHY), _over(at, "server_right")]
            )
    out.table(
        f"cells-{name}",
        f"{title_of(name)}: every cell",
        ["variant", "c_1", "c_e", "S"]
        + [part for label in LABELS for part in (f"{label}, paper", label)]
        + ["risk", "server right, as judged"],
        every,
        "The last column is the share of training images on which L2 took the server to be right in the last epoch.",
    )


def _cells(one: Ranked) -> list[CellKey]:
    seen = dict.fromkeys((row["c_1"], row["c_e"], row["sync"]) for row in one.rows)
    return [(Costs(c_e=c_e, c_1=c_1), sync) for c_1, c_e, sync in seen]


def _over(rows: Sequence[Row], figure: str) -> Cell:
    return cell([row[figure] for row in rows], percent=True, why=WHY)


def _share(value: float | None) -> Any:
    return "" if value is None else {"mean": value, "sem": None, "percent": True}


def _points(value: float | None) -> Any:
    return "" if value is None else f"{value:.1f}"


def _drawn(ranked: list[Ranked]) -> list[dict[str, Any]]:
    """Return what the figure shows of each variant."""
    return [
        {"label": one.variant.title, "distance": one.distance}
        | {figure: _over(one.at(MAIN, "1"), figure) for figure in ("kept", "client_kept", "client_sent")}
        for one in ranked
    ]


def conclusions(ranked: Sequence[Ranked], theirs: dict[CellKey, dict[str, float]]) -> list[str]:
    """Return in words what the ranking says."""
    counted = [one for one in ranked if one.distance is not None]
    by_name = {one.variant.name: one for one in ranked}
    plain, released, fitted = (by_name[name] for name in ("printed", "released", "fitted"))
    out = [f"by the printed loss {plain.lost} of {len(plain.rows)} rejectors diverged."]
    if not theirs or not counted:
        return [*out, "the paper prints nothing of these data, or every variant diverged: none is ranked."]
    best, main = counted[0], theirs[MAIN, "1"]
    out.append(
        f'nearest to the printed tables is "{best.variant.title}", {best.distance:.1f} points away'
        + (
            "."
            if best.distance is not None and best.distance <= NEAR
            else ": no variant gives them at the stated prices."
        )
    )
    gap = 100 * (main["client_kept"] - main["client_sent"])
    for one in (released, fitted, best):
        values = {figure: _over(one.at(MAIN, "1"), figure)["mean"] for figure in SIDES}
        if None not in values.values():
            apart = 100 * (values["client_kept"] - values["client_sent"])
            out.append(
                f'"{one.variant.title}" keeps {100 * values["kept"]:.1f}%, the table {100 * main["kept"]:.1f}%; its '
                f"client is {apart:.1f} points better on what is kept than on what is sent, the table's {gap:.1f}."
            )
    return list(dict.fromkeys(out))


def about_intervals(ranked: Sequence[Ranked], syncs: Sequence[str]) -> list[str]:
    """Return in words what the sync interval does to L2 and to the risk."""
    out = []
    first, second = syncs[:2]
    for one in ranked:
        if not one.variant.all_syncs:
            continue
        figures = ("server_right", "kept", "risk")
        found = [[_over(one.at(MAIN, sync), figure)["mean"] for figure in figures] for sync in (first, second)]
        if any(value is None for values in found for value in values):
            continue
        (right, kept, risk), (right_later, kept_later, risk_later) = found
        out.append(
            f'"{one.variant.title}": at S = {first} L2 takes the server to be right on {100 * right:.1f}% of the '
            f"training images in the last epoch, at S = {second} on {100 * right_later:.1f}%; {100 * kept:.1f}% and "
            f"{100 * kept_later:.1f}% are kept, at a risk of {risk:.3f} and {risk_later:.3f}."
        )
    return out
