"""The commands ``train``, ``evaluate`` and ``ask`` for a router, which knows outcomes only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from l2h.cli.output import log, make_console, make_table, print_evaluations, print_json, print_line

if TYPE_CHECKING:
    from l2h.experiments.evaluating import Evaluation
    from l2h.experiments.routing import RouterConditions, RouterPlan
    from l2h.experiments.runs import RunTarget
    from l2h.training import Progress

#: What the two answerers are called where they are language models.
_WHO = {"client": "weak", "server": "strong"}
_FILE = "file (.csv or .parquet of prompts, .npy of embeddings)"
_WHY = {
    "worth_asking": "asking the server is expected to save more than it costs",
    "not_worth_asking": "asking the server is expected to cost more than it saves",
    "within_limit": "the limit leaves room for it, although it does not pay at these prices",
    "over_limit": "asking would pay, but the limit is used up by inputs that gain more",
}


def train(plan: RouterPlan, target: RunTarget, as_json: bool, trackers: Sequence[Progress] = ()) -> None:
    """Train a router and show its evaluation."""
    from l2h.cli.bars import count_progress
    from l2h.experiments.routing import train_router
    from l2h.report import write_router_page

    with count_progress("fit") as progress:
        results = train_router(plan, target, progress)
    page = write_router_page(results, target.folder, plan.as_dict())
    for tracker in trackers:
        tracker.begin(plan.as_dict())
        tracker.evaluated(results[0].report, page)
    show(results, as_json)
    if not as_json:
        log.info("The page with every number and picture: %s", page)


def evaluate(folder: Path, conditions: RouterConditions, out: Path | None, as_json: bool) -> None:
    """Evaluate a finished run of a router and show the result."""
    from l2h.experiments.routing import evaluate_router_run

    results, training = evaluate_router_run(folder, conditions, out)
    if out is not None:
        from l2h.report import write_router_page

        log.info("The page with every number: %s", write_router_page(results, out, training))
    show(results, as_json)


def ask(
    folder: Path, inputs: Sequence[str], prices: tuple[float | None, float | None], limit: str | None, as_json: bool
) -> None:
    """Say who should answer a prompt, or each row of a file of prompts or embeddings, and why."""
    from l2h.costs import Costs
    from l2h.data.outcomes import TEXT_COLUMN, read_prompts
    from l2h.files import read_config
    from l2h.routing import Router

    if len(inputs) != 1:
        raise typer.BadParameter(f"give one prompt, in quotes, or one {_FILE}; got {len(inputs)}", param_hint="INPUT")
    X = read_prompts(inputs[0], read_config(folder).get("training", {}).get("text_column", TEXT_COLUMN))
    c_e, c_1 = prices
    costs = None if c_e is None and c_1 is None else Costs(0.1 if c_e is None else c_e, 1.0 if c_1 is None else c_1)
    router = Router.load(folder)
    routes, stated = router.predict(X, costs, limit=limit), router.judge(X).stated
    rows: list[dict[str, Any]] = [
        {
            "index": i,
            "answer": _WHO[route.by],
            "source": route.source,
            "by": route.by,
            "reason": route.reason,
            "expected_saving": route.saving,
            "cost": route.cost,
            "client_right": float(stated["client"][i]),
            "server_right": float(stated["server"][i]),
        }
        for i, route in enumerate(routes)
    ]
    if as_json:
        print_json({"answers": rows})
    elif len(rows) == 1:
        row = rows[0]
        print_line(f"{row['answer']} ({row['by']}): {_WHY[row['reason']]}")
        print_line(
            f"the client is right with probability {row['client_right']:.2f}, the server with "
            f"{row['server_right']:.2f}; asking is expected to save {row['expected_saving']:+.3f}"
        )
    else:
        table = make_table(("input", "answer", "reason", "saving"), right=("input", "saving"))
        for row in rows:
            table.add_row(str(row["index"]), row["answer"], row["reason"], f"{row['expected_saving']:+.4f}")
        make_console().print(table)


def show(results: Sequence[Evaluation], as_json: bool) -> None:
    """Print the metrics as JSON, or as tables with APGR and CPT below."""
    print_evaluations(results, as_json)
    measures = results[0].report.routing
    if as_json:
        return
    if measures is None:
        print_line("\nAPGR and CPT: n/a, since the server is not better than the client here")
        return
    print_line(
        f"\nAPGR {measures.apgr:.3f} (random 0.5), CPT(50%) {measures.cpt_50:.1%}, CPT(80%) {measures.cpt_80:.1%} of "
        "the calls"
    )
