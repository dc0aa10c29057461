"""Deviations of the authors' code from the printed recipe, trained side by side, and their figures as small files."""

import csv
import io
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from l2h import metrics
from l2h.costs import Costs
from l2h.decision import RejectorSpec
from l2h.errors import DataError
from l2h.experiments.paper.grid import ASYNC, Scale
from l2h.experiments.paper.lab import EVERYTHING, Lab, Team, Teams
from l2h.experiments.paper.passes import Pass, decisions, figures
from l2h.files import write_atomically

log = logging.getLogger("l2h")
Row = dict[str, Any]
#: The figures that the paper prints, as shares; None where a side is empty or the rejector diverged.
SIDES = ("kept", "client_kept", "server_kept", "client_sent", "server_sent")
RISKS = ("risk", "never", "always", "oracle")
_NUMBERS = (*SIDES, *RISKS, "server_right", "seconds")
_COLUMNS = ("settings", "variant", "seed", "c_1", "c_e", "sync", "diverged", *_NUMBERS, "hardware")


@dataclass(frozen=True)
class Variant:
    """The paper's recipe with one thing done otherwise, or with several."""

    name: str  # in files
    title: str  # for people
    loss: str = "paper"  # or ``released``
    start: int = 0  # epochs that the server trains before the rejector starts
    dropout: bool = False  # the server's is on while L2 judges it
    joint: bool = False  # one step of one optimizer on the sum, the server judged before it
    team: Team = None  # or :data:`EVERYTHING`: the client was fitted to all training images
    fitted: bool = False  # L2 takes the server to be right on every training image
    all_syncs: bool = False  # at every sync interval of the paper's table; else at S = 1

    def but(self, name: str, words: str, **changes: Any) -> "Variant":
        """Return the variant with some fields changed, and named after the change."""
        return replace(self, name=f"{self.name}-{name}", title=f"{self.title}, {words}", **changes)

    def cells(self, scale: Scale) -> list[tuple[Costs, str, RejectorSpec]]:
        """Return prices and sync intervals of the paper's tables, each with the rejector that is trained for it."""
        out = []
        for costs in ASYNC:
            for sync in scale.syncs if self.all_syncs else ("1",):
                # A server that is never wrong is one whose errors cost nothing.
                trained = Costs(c_e=costs.c_e, c_1=0.0) if self.fitted else costs
                steps = int(sync) if sync.isdecimal() else sync
                out.append((costs, sync, RejectorSpec(self.loss, trained, 0, steps, self.start, self.dropout)))
        return out


def variants_of(scale: Scale) -> list[Variant]:
    """Return the printed loss, the released one, and their deviations; a start is a share of the training."""
    one, four, ten = (max(1, round(scale.epochs * share / 15)) for share in (1, 4, 10))
    everything = {"team": EVERYTHING}
    out = []
    for loss in ("printed", "released"):
        base = Variant(loss, f"{loss} loss", "paper" if loss == "printed" else loss, all_syncs=True)
        # What diverges, or nearly so, at S = 1 need not be seen at every interval.
        brief = replace(base, all_syncs=loss == "released")
        out += [
            base,
            base.but(f"{four}", f"r starts after {four} epochs", start=four),
            brief.but("dropout", "e judged with dropout on", dropout=True),
            brief.but("all", "client fitted to all images", **everything),
            base.but("joint", "joint step", joint=True, all_syncs=False),
        ]
        if loss == "printed":
            late = dict.fromkeys(n for n in (one, ten) if n != four)
            out += [brief.but(f"{n}", f"r starts after {n} epoch{'s' * (n > 1)}", start=n) for n in late]
    script = {"joint": True, "dropout": True, "all_syncs": False, **everything}
    fitted = Variant("fitted", "e taken to be right on all its images", fitted=True)
    return [
        *out,
        base.but("script", "joint step, dropout on, client fitted to all", **script),
        fitted,
        fitted.but("all", "client fitted to all", **everything),
    ]


def measure(lab: Lab, variants: Sequence[Variant], folder: Path) -> list[Row]:
    """Return one row per variant, price and sync interval of a seed; what the folder holds already is not trained.

    Variants that share a server train in one pass: all but those with a joint step, whose server has another rate.
    """
    left = missing_groups(lab, variants, folder)
    for key, group in left.items():
        keep_rows(lab, variants, folder, train_group(lab, group, key))
    return _kept_rows(lab, variants, folder)


def missing_groups(lab: Lab, variants: Sequence[Variant], folder: Path) -> dict[str, list[Variant]]:
    """Return the groups of variants whose rows the folder does not hold, by what they depend on."""
    there = {row["settings"] for row in _kept_rows(lab, variants, folder)}
    groups = _groups(lab, variants)
    for key, group in groups.items():
        if key in there:
            log.info("%s: %d variants of seed %d are there already", lab.name, len(group), lab.seed)
    return {key: group for key, group in groups.items() if key not in there}


def keep_rows(lab: Lab, variants: Sequence[Variant], folder: Path, rows: Sequence[Row]) -> None:
    """Write the rows of a group beside those of the others, in the order of the groups."""
    order = list(_groups(lab, variants))
    both = [*_kept_rows(lab, variants, folder), *rows]
    write_rows(_path(lab, folder), sorted(both, key=lambda row: order.index(row["settings"])))


def _groups(lab: Lab, variants: Sequence[Variant]) -> dict[str, list[Variant]]:
    groups = [[variant for variant in variants if variant.joint == joint] for joint in (False, True)]
    return {_key(lab, group): group for group in groups if group}


def _kept_rows(lab: Lab, variants: Sequence[Variant], folder: Path) -> list[Row]:
    keys = _groups(lab, variants)
    return [row for row in read_rows(_path(lab, folder)) if row["settings"] in keys]


def _path(lab: Lab, folder: Path) -> Path:
    return folder / f"rows-{lab.name}-{lab.seed}.csv"


def _key(lab: Lab, variants: Sequence[Variant]) -> str:
    specs = [spec for variant in variants for _, _, spec in variant.cells(lab.scale)]
    values = {**lab.key(specs), "precision": "tf32", "variants": [str(variant) for variant in variants]}
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def train_group(lab: Lab, variants: Sequence[Variant], key: str) -> list[Row]:
    """Train variants that share a server in one pass, and return their rows."""
    by_team: dict[Team, list[tuple[Variant, Costs, str, RejectorSpec]]] = {}
    for variant in variants:
        by_team.setdefault(variant.team, []).extend((variant, *cell) for cell in variant.cells(lab.scale))
    teams: Teams = {team: tuple(spec for *_, spec in cells) for team, cells in by_team.items()}
    made = lab.beside(teams, joint=variants[0].joint)
    return [
        {"settings": key, "variant": variant.name, "seed": lab.seed, "c_1": costs.c_1, "c_e": costs.c_e, "sync": sync}
        | outcome(made[team], which, costs)
        for team, cells in by_team.items()
        for which, (variant, costs, sync, _) in enumerate(cells)
    ]


def outcome(one: Pass, which: int, costs: Costs) -> Row:
    """Return the figures of one rejector of a pass on the test set."""
    remote = decisions(one, which, costs)
    row: Row = {"diverged": remote is None, **dict.fromkeys(_NUMBERS)}
    row |= {
        "server_right": one.facts["server_right"][which],
        "seconds": one.facts["seconds"].get("server and rejector"),
        "hardware": one.facts["hardware"],
    }
    if remote is None:
        return row
    table = metrics.contrastive(one.test.client_correct, one.test.server_correct, remote)
    found = figures(one.test, remote, costs)
    sides = (table.local.ratio, table.local.client, table.local.server, table.remote.client, table.remote.server)
    risks = (found["risk"], found["all_local"], found["all_remote"], found["oracle"])
    return row | dict(zip(SIDES, sides, strict=True)) | dict(zip(RISKS, risks, strict=True))


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file that :func:`write_rows` wrote; none where there is no file."""
    if not path.exists():
        return []
    try:
        rows: list[Row] = [dict(row) for row in csv.DictReader(path.read_text().splitlines())]
        for row in rows:
            row |= {name: float(row[name]) if row[name] else None for name in (*_NUMBERS, "c_1", "c_e")}
            row |= {"seed": int(row["seed"]), "diverged": row["diverged"] == "True"}
            _ = row["settings"], row["variant"], row["sync"], row["hardware"]
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} does not hold the rows of l2h paper reproduce ({error}): move it away") from error
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as a CSV file, shares with five digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: "" if v is None else round(v, 5) if isinstance(v, float) else v for k, v in row.items()})
    write_atomically(path, text.getvalue().encode())
