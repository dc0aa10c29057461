"""Training: stages, recipes, checkpoints, progress."""

from l2h.settings import Settings, StageSettings
from l2h.training.job import Job
from l2h.training.loop import Context, pick_device, repeatable
from l2h.training.objective import BatchLoss, Objective, SamplePool
from l2h.training.progress import LogProgress, Progress, Silent, Tee, TensorBoardProgress
from l2h.training.recipes import HeldOut, Trained
from l2h.training.rejector_stage import RejectorStage, RejectorStep
from l2h.training.rejectors import RejectorBatch
from l2h.training.server import train_classifier

__all__ = [
    "BatchLoss",
    "Context",
    "HeldOut",
    "Job",
    "LogProgress",
    "Objective",
    "Progress",
    "RejectorBatch",
    "RejectorStage",
    "RejectorStep",
    "SamplePool",
    "Settings",
    "Silent",
    "StageSettings",
    "Tee",
    "TensorBoardProgress",
    "Trained",
    "pick_device",
    "repeatable",
    "train_classifier",
]
