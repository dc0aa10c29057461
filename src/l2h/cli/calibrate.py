"""``l2h calibrate``: calibrate a finished run on samples that nothing was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from l2h.cli import options as shared
from l2h.cli.output import print_json, print_pairs

if TYPE_CHECKING:
    from l2h.experiments.finished import RunCalibration


def calibrate(
    run: Annotated[Path, Argument(help="The run folder; its calibration is replaced.")],
    data: Annotated[
        str | None,
        Option("--data", "-d", help="Fresh samples: their training part. (default: the run's calibration part)"),
    ] = None,
    target: shared.Target = None,
    cache: shared.Cache = None,
    on_error: shared.OnError = None,
    limit: Annotated[
        shared.Texts,
        Option(
            "--limit",
            help="Show the threshold that meets this bound: 20%, 20%@95%; repeat for several. Of several servers "
            "cloud=10%, all=20%: what is added to their prices.",
        ),
    ] = None,
    c_1: Annotated[
        float | None, Option("--c-1", help="Price of a wrong remote answer, for q1. (default: the run's)")
    ] = None,
    c_e: Annotated[float | None, Option("--c-e", help="Price of a request, for q1. (default: the run's)")] = None,
    price: shared.ServerPrices = None,
    second_opinion: shared.SecondOpinion = None,
    server_run: shared.ServerRun = None,
    server: shared.Asked = None,
    method_files: shared.MethodFiles = None,
    as_json: shared.AsJson = False,
) -> None:
    """Calibrate a run: the heads' scale and shift, the reject rate q1, and thresholds for bounds on asking.

    Never on the test set: the run's own test part is not touched.

    Example: [bold]l2h calibrate runs/demo --limit 20% --limit 20%@95%[/]

    Example: [bold]l2h calibrate runs/demo --second-opinion[/] lets the rejector's student answer from now on.

    Example: [bold]l2h calibrate runs/mine --data new-samples.npz[/] after the inputs have drifted.
    """
    from l2h.cli.bars import count_progress
    from l2h.errors import RunError
    from l2h.experiments.finished import Asking, Conditions, calibrate_run
    from l2h.limits import RateLimit
    from l2h.routing.saving import holds_router

    if holds_router(run):
        hint = "l2h train --outcomes FILE trains it anew on fresh outcomes, and l2h evaluate --limit 20% tries a bound"
        raise RunError(f"{run} holds a router, which its training calibrates: {hint}")
    bounds = shared.read_bounds(limit)
    for bound in bounds:
        for one in [bound] if isinstance(bound, RateLimit) else bound.values():
            if one.at_run_time:
                raise typer.BadParameter(
                    f"{one} is kept at run time and has no calibrated threshold", param_hint="--limit"
                )
    with count_progress("server: inputs asked") as asked:
        conditions = Conditions(
            data=data,
            target=target,
            cache=cache,
            on_error=on_error,
            c_e=None if c_e is None else [c_e],
            c_1=None if c_1 is None else [c_1],
            prices=shared.read_prices(price),
            bounds=bounds,
            second_opinion=second_opinion,
            server_run=server_run,
            asking=Asking(shared.by_name(server, "--server"), asked),
        )
        result = calibrate_run(run, conditions)
    if as_json:
        print_json(result.as_dict())
        return
    print_pairs(f"{run}: calibrated on {result.samples} samples", _pairs(result))


def _pairs(result: RunCalibration) -> dict[str, str]:
    from l2h.costs import prices_text

    pairs = {f"reject rate q1 at {prices_text(result.costs)}": f"{100 * result.q1:.1f}%"}
    if len(result.shares) > 2:
        pairs |= {f"answered by {name}": f"{100 * share:.1f}%" for name, share in result.shares.items()}
    for name, found in result.thresholds.items():
        if isinstance(found, dict):
            added = ", ".join(f"{server} {price:+.4f}" for server, price in found.items())
            pairs[f"added to the prices for {name}"] = added
        else:
            pairs[f"threshold for {name}"] = f"expected saving >= {found.value:.4f}"
    return pairs
