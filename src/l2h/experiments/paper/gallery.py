"""Images kept and images sent, at the paper's main prices."""

import numpy as np

from l2h import metrics
from l2h.experiments.paper.grid import MAIN
from l2h.experiments.paper.measure import decisions
from l2h.experiments.paper.passes import Pass
from l2h.experiments.paper.study import BOUNDED, OURS, Drawing, Experiment, Study, title_of


def run(study: Study) -> Experiment:
    """Of the first seed."""
    out = Experiment(
        "gallery",
        "What is kept and what is sent",
        "Which images does the device answer, and which does it send?",
    )
    seed = study.seeds[0]
    for name in study.sets:
        lab = study.lab(name, seed)
        for label, one, loss in ((BOUNDED, lab.published(), "shifted"), (OURS, lab.ours(), "priced")):
            remote = decisions(one, one.find(loss, MAIN), MAIN)
            if remote is None:
                out.text(f"{title_of(name)}, {label}: the rejector diverged, so there is nothing to show.")
                continue
            report = _report(one, remote, lab.dataset.class_names, name, seed)
            file = f"gallery-{name}-{'ours' if loss == 'priced' else 'published'}.png"
            out.plot(
                file,
                f"{title_of(name)}, {label}: {100 * remote.mean():.1f}% sent",
                Drawing("samples", {"report": report, "images": lab.dataset.X_test, "seed": seed}),
            )
    out.findings.append("Drawn at random by the seed, not chosen.")
    return out


def _report(one: Pass, remote: object, names: tuple[str, ...], dataset: str, seed: int) -> metrics.Report:
    test = one.test
    probability = np.eye(len(names))[test.server_label]
    return metrics.evaluate(
        y=test.y,
        client_label=test.client_label,
        client_confidence=np.ones(len(test.y)),
        server_probability=probability,
        remote=np.asarray(remote, dtype=bool),
        score=np.asarray(remote, dtype=np.float64),
        costs=MAIN,
        confidence_remote=None,
        head_probability={},
        class_names=names,
        dataset=dataset,
        seed=seed,
    )
