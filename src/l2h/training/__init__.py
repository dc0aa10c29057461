"""Training: stages, recipes, checkpoints, progress."""

from l2h.training.job import Job
from l2h.training.loop import Context, pick_device, repeatable
from l2h.training.parallel import data_parallel
from l2h.training.progress import Progress, Silent
from l2h.training.recipes import HeldOut, StudentAnswers, Trained
from l2h.training.rejector_stage import BatchLoss, Objective, RejectorStage, SamplePool
from l2h.training.rejectors import RejectorBatch
from l2h.training.server import train_classifier
from l2h.training.trackers import MLflowProgress, TensorBoardProgress

__all__ = [
    "BatchLoss",
    "Context",
    "HeldOut",
    "Job",
    "MLflowProgress",
    "Objective",
    "Progress",
    "RejectorBatch",
    "RejectorStage",
    "SamplePool",
    "Silent",
    "StudentAnswers",
    "TensorBoardProgress",
    "Trained",
    "data_parallel",
    "pick_device",
    "repeatable",
    "train_classifier",
]
