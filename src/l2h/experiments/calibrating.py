"""Calibrate a finished run on samples that nothing was trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2h.costs import Costs
from l2h.decision import Policy
from l2h.experiments.finished import open_run
from l2h.limits import RateLimit, Threshold


@dataclass(frozen=True)
class RunCalibration:
    """What calibrating a run found."""

    samples: int  # how many there were
    costs: Costs  # the prices at which the rest was measured
    q1: float  # the reject rate
    thresholds: dict[str, Threshold]  # on the expected saving, by the bound that each meets

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        thresholds = {bound: threshold.as_dict() for bound, threshold in self.thresholds.items()}
        return {"samples": self.samples, "costs": self.costs.as_dict(), "q1": self.q1, "thresholds": thresholds}


def calibrate_run(
    folder: Path,
    bounds: Sequence[RateLimit] = (),
    *,
    data: str | None = None,
    c_e: float | None = None,
    c_1: float | None = None,
    server_run: Path | None = None,
) -> RunCalibration:
    """Calibrate a run and save it.

    Args:
        folder: the run; its calibration is replaced.
        bounds: shares of all requests, to find thresholds for.
        data: fresh samples, of which the training part is used; None: the run's own calibration part.
        c_e: price of a request; None: the run's.
        c_1: price of a wrong remote answer; None: the run's.
        server_run: the run of a server that was trained by itself.

    Raises:
        RunError: there is no finished run.
        LimitError: too few samples for a confidence; the run is left as it was.
    """
    run = open_run(folder, server_run)
    system = run.system
    X, y = run.calibration_samples(data)
    system.calibrate(X, y)
    costs = system.specs[0].costs or run.costs(c_e, c_1)
    held_out = system.require_fitted().held_out_judgement(0)
    thresholds = {
        str(bound): Policy(lambda *_: (0, costs), True, lambda _: held_out, bound).threshold(costs, 0)
        for bound in bounds
    }
    system.save(folder)  # last: a bound that cannot be met leaves the run as it was
    return RunCalibration(len(y), costs, system.calibrated_rate(costs, which=0), thresholds)
