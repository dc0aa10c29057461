"""What is to be trained, and with which settings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from l2h.classifiers import Classifier, ClassifierAnswers
from l2h.decision import RejectorSpec
from l2h.models.rejectors import client_view
from l2h.settings import DEFAULT_REJECTOR, PAPER_REJECTOR, PAPER_SERVER, StageSettings
from l2h.training.loop import Context


@dataclass(frozen=True)
class Job:
    """What is to be trained."""

    X: npt.NDArray[Any]  # inputs, uint8 or float32
    y: npt.NDArray[np.int64]
    client: Classifier  # fixed
    answers: ClassifierAnswers  # the client's to X, computed once
    make_server: Callable[[], nn.Module] | None  # a fresh one, drawn from torch's generator; None where it is fixed
    fixed_server: Classifier | None  # the server that is somebody's API
    server_settings: StageSettings
    make_rejector: Callable[[], nn.Module]
    specs: Sequence[RejectorSpec]  # what each rejector of the batch is for
    held_out_rows: npt.NDArray[np.int64] | None = None  # unseen by the client; the server is to see them neither

    @property
    def embedding_size(self) -> int:
        """How many features the client exposes; 0 for none."""
        return 0 if self.answers.embedding is None else int(self.answers.embedding.shape[1])

    @property
    def num_classes(self) -> int:
        return int(self.answers.log_probability.shape[1])


def view_tensor(answers: ClassifierAnswers, device: torch.device) -> Tensor:
    """Return the client's view of its own answers, on the device."""
    embedding = None if answers.embedding is None else torch.from_numpy(answers.embedding).to(device)
    return client_view(torch.from_numpy(answers.log_probability).to(device), embedding)


def stage_settings(job: Job, context: Context) -> tuple[StageSettings, StageSettings]:
    """Return the settings of the server's and the rejector's stage, with defaults filled in."""
    settings = context.settings
    if settings.recipe == "paper":
        return settings.server or PAPER_SERVER, settings.rejector or PAPER_REJECTOR
    return settings.server or job.server_settings, settings.rejector or DEFAULT_REJECTOR
