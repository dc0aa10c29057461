"""Training: stages, recipes, checkpoints, progress."""

from l2h.settings import Settings, StageSettings
from l2h.training.job import Job
from l2h.training.loop import Context, pick_device, repeatable
from l2h.training.progress import LogProgress, Progress, Silent, Tee, TensorBoardProgress
from l2h.training.recipes import HeldOut, Trained, train
from l2h.training.rejectors import Pool, RejectorBatch, RejectorStage
from l2h.training.server import train_classifier

__all__ = [
    "Context",
    "HeldOut",
    "Job",
    "LogProgress",
    "Pool",
    "Progress",
    "RejectorBatch",
    "RejectorStage",
    "Settings",
    "Silent",
    "StageSettings",
    "Tee",
    "TensorBoardProgress",
    "Trained",
    "pick_device",
    "repeatable",
    "train",
    "train_classifier",
]
