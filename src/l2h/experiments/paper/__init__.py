"""The experiments of the paper, by the names of ``l2h paper``."""

from l2h.experiments.paper import asynchronous, bounded, contrastive, gallery, missing, tradeoff, vit
from l2h.experiments.paper.study import Drawing, Experiment, Run, Study

__all__ = ["EXPERIMENTS", "Drawing", "Experiment", "Run", "Study"]

#: In the order in which ``all`` runs them; those of one pass follow each other.
EXPERIMENTS: dict[str, Run] = {
    "tradeoff": tradeoff.run,
    "contrastive": contrastive.run,
    "async": asynchronous.run,
    "brr": bounded.run,
    "gallery": gallery.run,
    "missing-class": missing.run,
    "cifar100-vit": vit.run,
}
