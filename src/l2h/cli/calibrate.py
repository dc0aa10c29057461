"""``l2h calibrate``: a finished run, on samples it has not met."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    run: Annotated[Path, typer.Argument(help="The run folder; its calibration is replaced.")],
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", help="Fresh samples: their training part. (default: the run's calibration part)"),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", help="Show the threshold that meets this bound: 20%, 20%@95%; repeat for several."),
    ] = None,
    c_1: Annotated[
        float | None, typer.Option("--c-1", help="Prices at which q1 is measured. (default: the run's)")
    ] = None,
    c_e: Annotated[float | None, typer.Option("--c-e", help="Likewise.")] = None,
    server_run: Annotated[
        Path | None, typer.Option(help="The run of a server trained by itself (--role server).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Calibrate a run: the heads' scale and shift, the reject rate q1, and thresholds for bounds on asking.

    Never on the test set: the run's own test part is not touched.

    Example: [bold]l2h calibrate runs/demo --limit 20% --limit 20%@95%[/]

    Example: [bold]l2h calibrate runs/mine --data new-samples.npz[/] after the inputs have drifted.
    """
    import l2h
    from l2h import limits
    from l2h.cli.evaluate import data_of, from_files
    from l2h.cli.output import print_json, print_pairs
    from l2h.costs import Costs
    from l2h.experiments import runs
    from l2h.experiments.plan import divide, plan_of
    from l2h.limits import RateLimit

    bounds = [RateLimit.parse(text) for text in limit or []]
    for bound in bounds:
        if bound.fraction is None or bound.window is not None:
            raise typer.BadParameter(
                f"{bound} is kept at run time and has no calibrated threshold", param_hint="--limit"
            )
    config = runs.read_config(run)
    training = config.get("training", {})
    system = l2h.load(run, **from_files(config), server_run=server_run)
    dataset = data_of(run, training, data, None)
    if data is None:
        X, y = divide(dataset, plan_of(training)).calibration
    else:
        X, y = dataset.X_train, dataset.y_train
    system.calibrate(X, y)
    trained_for = system.specs[0].costs or Costs(
        c_e=training.get("c_e", [0.1])[0] if c_e is None else c_e,
        c_1=training.get("c_1", [1.0])[0] if c_1 is None else c_1,
    )
    assert system.held_out is not None
    judged = system.held_out_judgement(0)
    thresholds = {}
    for bound in bounds:
        assert bound.fraction is not None
        saving = judged.saving(trained_for)
        cut = (
            limits.threshold_for(saving, bound.fraction)
            if bound.confidence is None
            else limits.guaranteed_threshold(saving, bound.fraction, bound.confidence)
        )
        thresholds[str(bound)] = cut.as_dict()
    system.save(run)  # last: a bound that cannot be met leaves the run as it was
    found = {
        "samples": len(y),
        "costs": trained_for.as_dict(),
        "q1": system.calibrated_rate(trained_for, which=0),
        "thresholds": thresholds,
    }
    if as_json:
        print_json(found)
        return
    print_pairs(
        f"{run}: calibrated on {len(y)} samples",
        {
            f"reject rate q1 at {trained_for}": f"{100 * found['q1']:.1f}%",  # type: ignore[operator]
            **{
                f"threshold for {name}": f"expected saving >= {cut['value']}"
                if isinstance(cut["value"], str)
                else f"expected saving >= {cut['value']:.4f}"
                for name, cut in thresholds.items()
            },
        },
    )
