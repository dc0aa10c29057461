"""A bound on the reject rate: accuracy against the bound for the paper's rule, our threshold, and random asking."""

import numpy as np

from l2h import limits
from l2h.costs import Costs
from l2h.experiments.paper.measure import cell, curve, decisions
from l2h.experiments.paper.passes import Pass
from l2h.experiments.paper.study import CALIBRATION, Drawing, Experiment, Study, title_of

FREE = Costs(c_e=0.0)
RULES = ("stochastic, paper's recipe", "threshold, paper's recipe", "stochastic, our recipe", "threshold, our recipe")


def run(study: Study) -> Experiment:
    """The rules are calibrated on samples kept for it and measured on the test set."""
    out = Experiment(
        "brr",
        "A bound on the reject rate",
        "Which accuracy does each rule reach when at most a share q may be sent?",
        errata=[
            CALIBRATION,
            "The paper's prose swaps the two cases of the stochastic rule; its algorithms are right, and run here.",
        ],
    )
    bounds = study.scale.bounds
    base = Costs(c_e=0.25, c_1=study.scale.c_1[0])
    for name in study.sets:
        published, ours = study.published(name), study.ours(name)
        sources = {RULES[0]: published, RULES[1]: published, RULES[2]: ours, RULES[3]: ours}
        found = {
            rule: [
                [_at(one, rule, q, base, seed) for q in bounds] for seed, one in zip(study.seeds, passes, strict=True)
            ]
            for rule, passes in sources.items()
        }
        found["random"] = [
            [(q, q * one.test.server_correct.mean() + (1 - q) * one.test.client_correct.mean()) for q in bounds]
            for one in published
        ]
        curves = [
            {
                "label": rule,
                "bound": list(bounds),
                "rate": curve([[None if p is None else float(p[0]) for p in seed] for seed in seeds]),
                "accuracy": curve([[None if p is None else float(p[1]) for p in seed] for seed in seeds]),
            }
            for rule, seeds in found.items()
        ]
        out.plot(f"brr-{name}.png", f"{title_of(name)}: accuracy under a bound", Drawing("bounds", {"curves": curves}))
        means = {
            rule: cell([_mean([None if p is None else float(p[1]) for p in seed]) for seed in seeds], percent=True)
            for rule, seeds in found.items()
        }
        out.table(
            f"brr-{name}",
            f"{title_of(name)}: accuracy averaged over the bounds",
            ["rule", "mean accuracy"],
            [[rule, mean] for rule, mean in means.items()],
            f"The stochastic rule thins or fills up the rejector's choice at c_1 = {base.c_1:g}, c_e = {base.c_e:g}.",
        )
        threshold, stochastic = means[RULES[3]], means[RULES[2]]
        if threshold is not None and stochastic is not None:
            out.findings.append(
                f"{title_of(name)}: by our recipe the threshold has {100 * threshold['mean']:.1f}% on average over the "
                f"bounds, the paper's stochastic rule {100 * stochastic['mean']:.1f}%."
            )
    return out


def _at(one: Pass, rule: str, q: float, base: Costs, seed: int) -> tuple[float, float] | None:
    """Realised rate and accuracy."""
    loss = "shifted" if one.specs[0].loss != "priced" else "priced"
    which = one.find(loss, base)
    sent = decisions(one, which, base)
    held = one.judgement(which, "calibration")
    if sent is None or not np.isfinite(held.scores).all():
        return None
    rng = np.random.default_rng(seed)
    if rule.startswith("stochastic"):
        remote = limits.stochastic(sent, float(held.remote(base).mean()), q, rng)
    else:
        remote = limits.threshold_for(held.saving(FREE), q).apply(one.judgement(which).saving(FREE), rng)
    right = np.where(remote, one.test.server_correct, one.test.client_correct)
    return float(remote.mean()), float(right.mean())


def _mean(values: list[float | None]) -> float | None:
    return None if any(v is None for v in values) else float(np.mean([v for v in values if v is not None]))
