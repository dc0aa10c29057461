"""The runs that lie below a folder, and two of them side by side. Nothing but their JSON files is read."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from l2h.errors import RunError, warn
from l2h.files import CONFIG, METRICS, holds_run, read_config, read_json
from l2h.settings import flat

#: Figures of ``metrics.json`` that two runs are compared by.
_FIGURES = ("risk", "reject_rate", "accuracy", "frontier")


@dataclass(frozen=True)
class ListedRun:
    """One run folder."""

    folder: Path
    config: Mapping[str, Any]
    metrics: Mapping[str, Any] | None  # of its first price; None where it was not evaluated

    @property
    def finished(self) -> bool:
        return "system" in self.config or "router" in self.config

    @property
    def settings(self) -> dict[str, Any]:
        """What it was trained by: its plan, or what a system that Python saved knows of itself."""
        if plan := _part(self.config, "training"):
            return plan
        system = _part(self.config, "system") or _part(self.config, "router")
        kept = ("dataset", "method", "rejector", "settings", "seed", "choice")
        return {name: system[name] for name in kept if name in system}

    @property
    def figures(self) -> dict[str, Any]:
        """What its metrics say of risk, reject rate, accuracy and frontier."""
        metrics = self.metrics or {}
        return {name: metrics[name] for name in _FIGURES if name in metrics}

    def as_dict(self) -> dict[str, Any]:
        """Return one row of the list; what is not known is None."""
        plan, metrics = self.settings, self.metrics or {}
        newest = max(path.stat().st_mtime for name in (CONFIG, METRICS) if (path := self.folder / name).exists())
        return {
            "run": str(self.folder),
            "finished": self.finished,
            "data": plan.get("data") or plan.get("outcomes") or plan.get("dataset"),
            "client": plan.get("client"),
            "server": plan.get("servers") or plan.get("server"),
            "seed": plan.get("seed", _part(plan, "settings").get("seed")),
            "costs": _part(metrics, "costs") or None,
            "prices": _part(metrics, "prices") or None,
            "risk": _part(metrics, "risk").get("system"),
            "reject_rate": metrics.get("reject_rate"),
            "accuracy": _part(metrics, "accuracy").get("system"),
            "when": datetime.fromtimestamp(newest).astimezone().isoformat(timespec="seconds"),
        }


def find_runs(folder: Path) -> Iterator[ListedRun]:
    """Give the runs in a folder and below it, but not those in hidden folders or in other runs.

    A warning names a run that cannot be read, and a ``metrics.json`` that cannot be.
    """
    if not folder.is_dir():
        raise RunError(f"there is no folder {folder}: name the one that holds your runs")
    for path, inner, files in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        if CONFIG in files and holds_run(Path(path)):
            inner.clear()
            try:
                yield ListedRun(Path(path), read_config(Path(path)), _read_metrics(Path(path, METRICS)))
            except RunError as error:
                warn(f"left out: {error}")


def compare_runs(one: ListedRun, two: ListedRun) -> dict[str, Any]:
    """Return two runs as rows of the list, the settings in which they differ, and their figures side by side."""
    settings, figures = (_side_by_side([getattr(run, name) for run in (one, two)]) for name in ("settings", "figures"))
    return {
        "runs": [one.as_dict(), two.as_dict()],
        "settings": {name: values for name, values in settings.items() if values[0] != values[1]},
        "metrics": figures,
    }


def _side_by_side(both: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    named = [{name: value for name, value in flat(values) if value != {}} for values in both]
    return {name: [values.get(name) for values in named] for name in named[0] | named[1]}


def _read_metrics(path: Path) -> dict[str, Any] | None:
    try:
        metrics = read_json(path) if path.exists() else None
    except (OSError, ValueError) as error:
        warn(f"{path} is damaged, so its figures are missing: {error}")
        return None
    return metrics if isinstance(metrics, dict) else None


def _part(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the values under a name; none where there are none or they are of another kind."""
    found = values.get(name)
    return found if isinstance(found, dict) else {}
