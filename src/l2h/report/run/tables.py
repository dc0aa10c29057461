"""The tables of a report."""

from collections.abc import Mapping
from typing import Any

from l2h.decision import oracle
from l2h.metrics import Report, Side
from l2h.report.common.table import Column, TextTable, headings, texts
from l2h.report.common.text import SAME, counted, number, percent, plus_minus, signed
from l2h.report.run.verdict import outcomes, verdict

KEPT, SENT, ALL = "kept (LOCAL)", "sent (REMOTE)", "all"
#: The rules that risk is compared over, by their names in ``metrics.json``.
RULES = {
    "system": "this system",
    "all_local": "never ask",
    "all_remote": "always ask",
    "random": "ask at random, same rate",
    "confidence": "confidence threshold",
    "oracle": "oracle",
}
_GAINS = {"gain": "this system", "confidence_gain": "confidence", "label_free_gain": "label-free bound"}
_WHO = [Column("client", kind="client"), Column("server", kind="server")]


def risk_table(report: Report) -> TextTable:
    """Return the risk of the system and its baselines, the best one marked (the oracle excluded), and the verdict."""
    risks, asked, system = report.risk.as_dict(), report.confidence_remote, report.risk.system
    rates = {
        "system": report.reject_rate,
        "all_local": 0.0,
        "all_remote": 1.0,
        "random": report.reject_rate,
        "confidence": None if asked is None else float(asked.mean()),
        "oracle": float(oracle(*outcomes(report), report.costs).mean()),
    }
    lowest = min(risk for key, risk in risks.items() if risk is not None and key != "oracle")
    rows = []
    for key, name in RULES.items():
        risk = risks[key]
        best = risk is not None and key != "oracle" and risk <= lowest + SAME
        versus = "" if key == "system" else signed(None if risk is None else risk - system)
        kind = "best" if best else "beyond" if key == "oracle" else ""
        rows.append(texts(name + " (best)" * best, number(risk), versus, percent(rates[key]), kind=kind))
    result = verdict(report)
    colour = {"good": "green", "unsure": "yellow", "bad": "red"}[result.standing]
    title, columns = f"{report.dataset}: risk at {report.costs}", headings("rule", "risk", "vs system", "reject rate")
    return TextTable(title, columns, rows, result.text, style=f"bold {colour}")


def sides(report: Report) -> dict[str, Side]:
    """Return the accuracies of both classifiers on the inputs kept, on those sent, and on all, by name."""
    everything = Side(1.0, report.accuracy["client"], report.accuracy["server"])
    return {KEPT: report.contrastive.local, SENT: report.contrastive.remote, ALL: everything}


def contrastive_table(report: Report) -> TextTable:
    """Return both accuracies on the inputs kept, on those sent, and on all; ``n/a`` for an empty side."""
    rows = []
    for name, side in sides(report).items():
        shares = (percent(share) for share in (side.ratio, side.client, side.server))
        rows.append(texts(name, *shares, signed(side.difference, points=True)))
    columns = [*headings("inputs", "share"), *_WHO, Column("difference")]
    note = f"joint accuracy {percent(report.contrastive.joint)}"
    return TextTable(f"{report.dataset}: accuracy on the inputs kept and sent", columns, rows, note)


def class_table(report: Report) -> TextTable:
    """Return the reject rate and the accuracies of each class; ``n/a`` for a class that does not occur."""
    rows = []
    for k, (name, rate) in enumerate(zip(report.class_names, report.per_class, strict=True)):
        here = report.y == k
        right = [float(of[here].mean()) if here.any() else None for of in outcomes(report)]
        rows.append(texts(name, str(here.sum()), percent(rate), *map(percent, right)))
    return TextTable("", [*headings("class", "samples", "reject rate"), *_WHO], rows)


def spread_table(merged: Mapping[str, Any], n: int) -> TextTable:
    """Return mean and standard error over seeds.

    Args:
        merged: what :func:`l2h.metrics.spread_of_reports` gives.
        n: how many seeds there are.
    """
    accuracy, risk, frontier = (merged.get(key) or {} for key in ("accuracy", "risk", "frontier"))
    shares = {f"{who} accuracy": accuracy.get(who) for who in ("client", "server", "system")}
    shares["reject rate"] = merged.get("reject_rate")
    rows = [texts(f"{name}, %", plus_minus(value, ".2f", factor=100)) for name, value in shares.items()]
    rows += [texts(f"risk: {name}", plus_minus(risk.get(key))) for key, name in RULES.items()]
    rows += [texts(f"frontier gain: {name}", plus_minus(frontier.get(key))) for key, name in _GAINS.items()]
    note = f"mean ± standard error over {n} seeds" if n > 1 else "one seed: no spread"
    columns = headings("figure", "mean ± s.e." if n > 1 else "value")
    return TextTable(counted(n, "seed") + _prices(merged), columns, rows, note)


def _prices(merged: Mapping[str, Any]) -> str:
    costs = merged.get("costs") or {}
    if not all(costs.get(name) for name in ("c_1", "c_e")):
        return ""
    if any((costs[name]["std"] or 0.0) > 1e-9 for name in ("c_1", "c_e")):
        return " at different prices"
    return f" at c_1={costs['c_1']['mean']:g}, c_e={costs['c_e']['mean']:g}"
