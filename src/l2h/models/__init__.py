"""The named networks ``lenet5``, ``alexnet``, ``vit`` and ``mlp``, and the rejectors.

Every network takes a float batch and gives K scores; its ``embed`` gives the features that the last layer reads, which
an attached rejector can use.
"""

from l2h.models.budget import within_budget
from l2h.models.networks import MLP, AlexNet, InputScale, LeNet5, Scaled
from l2h.models.pretrained import load_pretrained, pretrained_options
from l2h.models.registry import NAMES, build, build_scaled, multiply_adds, rebuild, recommended
from l2h.models.rejectors import AttachedRejector, SeparateRejector, build_rejector, client_view, client_view_size
from l2h.models.separable import fold_batch_norm
from l2h.models.vit import ViT

__all__ = [
    "MLP",
    "NAMES",
    "AlexNet",
    "AttachedRejector",
    "InputScale",
    "LeNet5",
    "Scaled",
    "SeparateRejector",
    "ViT",
    "build",
    "build_rejector",
    "build_scaled",
    "client_view",
    "client_view_size",
    "fold_batch_norm",
    "load_pretrained",
    "multiply_adds",
    "pretrained_options",
    "rebuild",
    "recommended",
    "within_budget",
]
