"""Learning to help: the paper's method, and ours."""

from collections.abc import Sequence
from typing import ClassVar

import torch

from l2h.costs import Costs
from l2h.decision import Judgement, RejectorSpec
from l2h.methods.base import Choice, Traits
from l2h.methods.bench import Bench, Inputs
from l2h.methods.learned import Learned, LearnedRule
from l2h.training import BatchLoss, Context, Job, Objective, Trained
from l2h.training.recipes import train_paper

SEPARATE = Traits(separate=True, learns_client=True, learns_server=True, asynchronous=True)
ATTACHED = Traits(separate=False, learns_client=True, learns_server=True, asynchronous=True)
PAPER = "Wu et al. 2025"


class Helping(Learned):
    """L2 in one of its forms, or priced heads: what each rejector is trained by stands in its spec.

    Attributes:
        kind: the loss, as :mod:`l2h.losses` names it.
    """

    kind: ClassVar[str]
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


class PaperAttached(Helping):
    """The paper's L2 with a rejector that sees the client's scores; not among the methods that are compared."""

    name, title = "paper-attached", "L2H's published loss, attached"
    equation = PaperL2H.equation
    traits = ATTACHED
    net, kind = "attached", "paper"
    student = True


class ShiftedAttached(ShiftedSeparate):
    """Shifted L2 with a rejector that sees the client's scores and has a student of the server."""

    name, title = "shifted-attached", "L2H shifted, attached"
    traits = ATTACHED
    net = "attached"
    student = True


class SwappedAttached(SwappedSeparate):
    """Swapped L2 with a rejector that sees the client's scores and has a student of the server."""

    name, title = "swapped-attached", "L2H swapped, attached"
    traits = ATTACHED
    net = "attached"
    student = True


class PricedRule(LearnedRule):
    """Two calibrated probabilities and the price: what ``HelpSystem.predict`` does."""

    def __init__(self, method: Learned, bench: Bench) -> None:
        super().__init__(method, bench)
        held, (spec,) = bench.calibration, self.specs
        self.platt = method.fit_platt(spec, self.scores(held.inputs, 0), held.client_correct, held.server_correct)

    def judgement(self, inputs: Inputs, costs: Costs) -> Judgement:
        scores = self.scores(inputs, self.which(costs))
        return self.method.judgement(self.specs[0], scores, inputs.client.log_probability, self.platt)

    def decide(self, inputs: Inputs, costs: Costs) -> Choice:
        judgement = self.judgement(inputs, costs)
        return Choice(judgement.remote(costs), judgement.gain)


class PricedSeparate(Helping):
    """Two probabilities from the input alone; one training answers for every price."""

    name, title = "priced-separate", "L2H priced, separate"
    ours = True
    reference = "L2H"
    equation = "binary cross-entropy of q_m and q_e, REMOTE iff 1 - q_m >= c_e + c_1 (1 - q_e)"
    traits = SEPARATE
    net, kind = "separate", "priced"
    soft = any_price = True
    rule = PricedRule


class PricedAttached(PricedSeparate):
    """What ``l2h train`` trains by default."""

    name, title = "priced-attached", "L2H priced, attached (default)"
    traits = ATTACHED
    net = "attached"
    student = True


#: The method that a loss and a kind of rejector spell.
SPELLED: dict[tuple[str, str], type[Helping]] = {
    (method.kind, method.net): method
    for method in (
        PaperL2H,
        PaperAttached,
        ShiftedSeparate,
        ShiftedAttached,
        SwappedSeparate,
        SwappedAttached,
        PricedSeparate,
        PricedAttached,
    )
}
