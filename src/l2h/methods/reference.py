"""Rules that know what no device knows: what the others are measured against, never what can be deployed."""

import numpy as np
import torch

from l2h import decision
from l2h.costs import Costs
from l2h.errors import DataError
from l2h.methods.base import Choice, Method, Rule
from l2h.methods.bench import Bench, Inputs, Outcomes
from l2h.training.targets import fit_temperature


class ReferenceRule(Rule):
    """A rule that is handed outcomes instead of inputs."""

    def decide(self, inputs: Inputs, costs: Costs) -> Choice:
        raise DataError("a reference decides on outcomes, not on inputs: call decide_knowing(outcomes, costs)")

    def decide_knowing(self, outcomes: Outcomes, costs: Costs) -> Choice:
        """Decide at these prices."""
        raise NotImplementedError


class _OracleRule(ReferenceRule):
    def decide_knowing(self, outcomes: Outcomes, costs: Costs) -> Choice:
        client, server = outcomes.client_correct, outcomes.server_correct
        return Choice(decision.oracle(client, server, costs), server.astype(float) - client.astype(float))


class Oracle(Method):
    """Sends exactly where asking costs less."""

    name, title, family = "oracle", "Oracle", "reference"
    equation = "REMOTE iff l_remote < l_local"

    def fit(self, bench: Bench) -> ReferenceRule:
        return _OracleRule()


class _LabelFreeRule(ReferenceRule):
    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def decide_knowing(self, outcomes: Outcomes, costs: Costs) -> Choice:
        log_p = torch.from_numpy(outcomes.server_log_probability).double()
        p = torch.softmax(log_p / self.temperature, dim=-1).numpy()
        q_m, q_e = p[np.arange(len(p)), outcomes.client.label], p.max(axis=1)
        # Ranked as the frontier's bound is: by the server's softmax as it is.
        raw = outcomes.server_probability
        score = raw.max(axis=1) - raw[np.arange(len(raw)), outcomes.client.label]
        right = np.stack([q_m, q_e], axis=1)
        return Choice(decision.Judgement(right, right).remote(costs), score)


class LabelFree(Method):
    """Knows the server's softmax of every input, without asking, but not the truth."""

    name, title, family = "label-free", "Label-free bound", "reference"
    equation = "REMOTE iff 1 - p_e(m(x)|x) >= c_e + c_1 (1 - max p_e(.|x)); ranked by max p_e - p_e(m(x))"
    change = (
        "the server's softmax is temperature-scaled on the calibration samples. It does not bound rules that also know "
        "what the client does"
    )

    def fit(self, bench: Bench) -> ReferenceRule:
        """Fit the temperature."""
        held = bench.calibration
        return _LabelFreeRule(fit_temperature(torch.from_numpy(held.server_log_probability), torch.from_numpy(held.y)))
