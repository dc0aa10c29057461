"""Learning to help: the L2H of 2024 for two classes, the paper's method, and ours."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from l2h import metrics
from l2h.costs import Costs, FloatArray
from l2h.decision import STUDENT, Judgement, RejectorSpec
from l2h.methods.base import Bench, Choice, Inputs, Traits
from l2h.methods.learned import Learned, LearnedRule, Prices, bounded_exp, local_score
from l2h.models.student import FEATURES, student_logit
from l2h.training import BatchLoss, Context, Job, Objective, RejectorStage, SamplePool, StudentAnswers, Trained
from l2h.training.recipes import rejector_scores, train_paper

SEPARATE = Traits(separate=True, learns_client=True, learns_server=True, asynchronous=True)
ATTACHED = Traits(separate=False, learns_client=True, learns_server=True, asynchronous=True)
PAPER = "Wu et al. 2025"


def binary_loss(
    r: Tensor,
    server_margin: Tensor,
    client_correct: Tensor,
    prices: Prices,
    beta: Tensor,
) -> Tensor:
    """Return ``c_1 exp(beta/2 (-e y - r)) + c_e exp(-r) + 1[m y <= 0] exp(r)``; r (R, n) above 0 is LOCAL.

    It is the paper's with an alpha of 1. ``server_margin`` is ``e y`` with y in {-1, 1}; each sample has its ``beta``.
    """
    wrong = prices.remote_wrong - prices.remote_right
    return (
        wrong * bounded_exp(beta / 2 * (-server_margin - r))
        + (prices.remote_right - prices.local_right) * bounded_exp(-r)
        + (~client_correct).float() * bounded_exp(r)
    )


def calibrating_beta(server_probability: Tensor) -> Tensor:
    """Return the beta of each sample with which the loss has the Bayes rule: ``sqrt(p_min / p_max)`` of its posterior.

    For e at the loss's own minimiser the server's term is ``2 c_1 sqrt(p_min p_max) exp(-beta r / 2)``, whose slope at
    r = 0 is ``-beta c_1 sqrt(p_min p_max)``: with this beta that is ``-c_1 p_min``, what the server's error costs.
    """
    high = server_probability.amax(-1).clamp(max=1 - 1e-6)
    return torch.sqrt((1 - high) / high)


class BinaryL2H(Learned):
    """Rejector and server in one exponential loss."""

    name, title = "binary-l2h", "Binary L2H (2024)"
    reference = "Wu et al. 2024"
    equation = "c_1 exp(beta/2 (-e y - r)) + c_e exp(-r) + 1[m y <= 0] exp(alpha r), LOCAL iff r > 0"
    change = (
        "the paper trains r and e together. Here only r is trained, and e is the log-odds of the shared server divided "
        "by beta, which is where the loss has its minimum in e. alpha is 1, and beta is computed for each sample from "
        "the server's posterior. This makes the loss calibrated"
    )
    traits = Traits(separate=True, learns_client=True, learns_server=True, asynchronous=False)
    classes = 2
    reads = "the server's probabilities"
    net = "separate"

    def loss(self, scores: Tensor, pool: SamplePool, prices: Prices) -> Tensor:
        p = pool.server_probability.clamp(1e-6, 1 - 1e-6)
        log_odds = torch.log(p[:, 1]) - torch.log(p[:, 0])
        sign = 2.0 * pool.y - 1
        beta = calibrating_beta(pool.server_probability)
        return binary_loss(local_score(scores), sign * log_odds / beta, pool.client_correct, prices, beta)


class Helping(Learned):
    """L2 in one of its forms, or priced heads: what each rejector is trained by stands in its spec."""

    kind: ClassVar[str]  # the loss, as :mod:`l2h.losses` names it
    calibrated = True

    def loss_name(self) -> str:
        return self.kind

    def objective(self, specs: Sequence[RejectorSpec], device: torch.device, server_accuracy: float) -> Objective:
        return BatchLoss(specs, device).on_pool

    def learns_softly(self, specs: Sequence[RejectorSpec]) -> bool:
        return all(spec.loss == "priced" for spec in specs)

    def train(self, job: Job, context: Context) -> Trained:
        return train_paper(job, context) if context.settings.recipe == "paper" else super().train(job, context)


class PaperL2H(Helping):
    """The paper's: L2 as printed, on a separate rejector; it has no lower bound where c_e + c_1 > 1."""

    name, title = "l2h-paper", "L2H as published"
    reference = PAPER
    equation = "-(1 - c_e - c_1 + c_1 1[e = y]) ln p_remote - 1[m = y] ln p_local, LOCAL iff r_1 > r_2"
    change = (
        "it is trained on samples that the server was not fitted to, like every method here. The paper trains on the "
        "server's own samples"
    )
    traits = published_traits = SEPARATE
    net, kind = "separate", "paper"


class ShiftedSeparate(Helping):
    """L2 with weights that are never negative."""

    name, title = "shifted-separate", "L2H shifted, separate"
    ours = True
    reference = PAPER + "; bounded here"
    equation = "-(C - l_local) ln p_local - (C - l_remote) ln p_remote, C = max(1, c_e + c_1)"
    traits = SEPARATE
    net, kind = "separate", "shifted"


class SwappedSeparate(Helping):
    """Cost-weighted cross-entropy: each side is pushed by what the other costs."""

    name, title = "swapped-separate", "L2H swapped, separate"
    ours = True
    reference = PAPER + "; bounded here"
    equation = "-l_remote ln p_local - l_local ln p_remote"
    traits = SEPARATE
    net, kind = "separate", "swapped"


class _Attached(Helping):
    traits = ATTACHED
    net = "attached"
    student = True


class PaperAttached(_Attached):
    """The paper's L2 with a rejector that sees the client's scores; not among the methods that are compared."""

    name, title = "paper-attached", "L2H's published loss, attached"
    equation = PaperL2H.equation
    kind = "paper"


class ReleasedSeparate(Helping):
    """What the authors' released code computes; not among the methods that are compared."""

    name, title = "l2h-released", "L2H as released"
    reference = PAPER + ", released code"
    equation = "-(1 - c_e + c_1 1[e != y]) ln p_remote - 1[m = y] ln p_local, LOCAL iff r_1 > r_2"
    traits = SEPARATE
    net, kind = "separate", "released"


class ReleasedAttached(_Attached, ReleasedSeparate):
    """The same with a rejector that sees the client's scores."""

    name, title = "released-attached", "L2H's released loss, attached"


class ShiftedAttached(_Attached, ShiftedSeparate):
    """Shifted L2 with a rejector that sees the client's scores and has a student of the server."""

    name, title = "shifted-attached", "L2H shifted, attached"


class SwappedAttached(_Attached, SwappedSeparate):
    """Swapped L2 with a rejector that sees the client's scores and has a student of the server."""

    name, title = "swapped-attached", "L2H swapped, attached"


class PricedRule(LearnedRule):
    """Two calibrated probabilities and the price: what ``HelpSystem.predict`` does."""

    def __init__(self, method: Learned, bench: Bench, stage: RejectorStage, first: int = 0) -> None:
        super().__init__(method, bench, stage, first)
        held, (spec,) = bench.calibration, self.specs
        right = np.column_stack([held.client_correct, held.server_correct])
        self.platt = method.fit_platt(spec, self.scores(held.inputs, 0), right)

    def judgement(self, inputs: Inputs, costs: Costs) -> Judgement:
        scores = self.scores(inputs, self.which(costs))
        return self.method.judgement(
            self.specs[0], scores, inputs.client.log_probability, self.platt, self.bench.answerers
        )

    def second_opinion(self, inputs: Inputs) -> tuple[Judgement, npt.NDArray[np.int64]]:
        """Return the judgement where the student may answer too, and what it answers; there must be a student."""
        held = self.bench.calibration
        label, known = self._student(held.inputs)
        weights = metrics.fit_logistic(known, label == held.y)
        label, known = self._student(inputs)
        logits = known[:, FEATURES:]
        student = student_logit(known[:, :FEATURES], logits, weights)
        client, *servers = self.bench.answerers
        return Judgement.from_heads(np.insert(logits, 1, student, axis=1), None, (client, STUDENT, *servers)), label

    def _student(self, inputs: Inputs) -> tuple[npt.NDArray[np.int64], FloatArray]:
        """Return what the student answers, and what tells how likely it is right: its features, calibrated logits."""
        outputs = rejector_scores(self.rejectors, inputs.X, inputs.client, self.bench.context, student=True)
        heads = self.rejectors.heads
        student = StudentAnswers.of(torch.from_numpy(outputs[..., heads:]), inputs.client.label)
        pairs = np.asarray(self.platt)
        logits = outputs[0, :, :heads].astype(np.float64) * pairs[:, 0] + pairs[:, 1]
        return student.label[0], np.concatenate([student.features[0], logits], axis=1)

    def decide(self, inputs: Inputs, costs: Costs) -> Choice:
        judgement = self.judgement(inputs, costs)
        return Choice(judgement.remote(costs), judgement.gain)


class PricedSeparate(Helping):
    """Two probabilities from the input alone; one training answers for every price."""

    name, title = "priced-separate", "L2H priced, separate"
    ours = True
    reference = "L2H, after the plug-in rules of Raghu et al. 2019, Narasimhan et al. 2022 and Jitkrittum et al. 2023"
    equation = "binary cross-entropy of q_m and q_e, REMOTE iff 1 - q_m >= c_e + c_1 (1 - q_e)"
    traits = SEPARATE
    net, kind = "separate", "priced"
    soft = any_price = several_servers = True
    rule = PricedRule


class PricedAttached(_Attached, PricedSeparate):
    """What ``l2h train`` trains by default."""

    name, title = "priced-attached", "L2H priced, attached (default)"


_FORMS = (PaperL2H, ShiftedSeparate, SwappedSeparate, PricedSeparate, ShiftedAttached, SwappedAttached, PricedAttached)
#: In the order of tables.
HELPING = (BinaryL2H, *_FORMS)
#: The method that a loss and a kind of rejector spell.
SPELLED = {(method.kind, method.net): method for method in (*_FORMS, PaperAttached, ReleasedSeparate, ReleasedAttached)}
