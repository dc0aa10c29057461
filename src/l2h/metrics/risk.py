"""Measures of decisions: the generalized 0-1 risk beside its trivial baselines, and the contrastive table.

The contrastive table splits the test set by the rejector's decision and scores both classifiers on both sides.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, Costs, FloatArray, as_bool
from l2h.decision import Allowed, Answerer, AnyCosts
from l2h.metrics.choice import AnswererChoice


@dataclass(frozen=True)
class Risks:
    """The risk of a system and of its baselines, all on the same samples at the same prices.

    Under a limit every baseline keeps to it: "always" is as often as it allows, at random, and the risk is expected.
    """

    system: float  # of the decisions taken
    all_local: float  # of never asking the server
    all_remote: float  # of always asking it; of several servers, the one for which that is lowest
    random: float  # expected, of choosing at random, each answerer as often as the system does
    confidence: float | None  # of a threshold on the client's confidence, chosen on held-out samples if there are any
    oracle: float  # of the best decisions, made with the outcomes known
    by_server: dict[str, float] | None = None  # of always asking each of several servers, by name

    @property
    def best_trivial(self) -> float:
        """The lower risk of never and always asking."""
        return min(self.all_local, self.all_remote)

    @property
    def best_server(self) -> str | None:
        """The name of the one of several servers that always asking costs least; None for a single one."""
        return None if self.by_server is None else min(self.by_server, key=self.by_server.__getitem__)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, as in ``metrics.json``."""
        values = asdict(self)
        return values if self.by_server is not None else {k: v for k, v in values.items() if k != "by_server"}


def risk(client_correct: npt.ArrayLike, server_correct: npt.ArrayLike, remote: npt.ArrayLike, costs: Costs) -> float:
    """Return the mean generalized 0-1 loss of these decisions.

    Example:
        >>> risk([True, False], [True, True], [False, True], Costs(c_e=0.1))
        0.05
    """
    return AnswererChoice.of_two(client_correct, server_correct, remote).risk(costs)


def risks(
    client_correct: npt.ArrayLike,
    server_correct: npt.ArrayLike,
    remote: npt.ArrayLike,
    costs: Costs,
    confidence_remote: npt.ArrayLike | None = None,
) -> Risks:
    """Return the risk of the system's decisions ``remote`` and of every baseline, all bool (n,)."""
    choices = [
        None if sent is None else AnswererChoice.of_two(client_correct, server_correct, sent)
        for sent in (remote, confidence_remote)
    ]
    assert choices[0] is not None
    return risks_of(choices[0], costs, choices[1])


def risks_of(
    choice: AnswererChoice, costs: AnyCosts, confidence: AnswererChoice | None = None, allowed: Allowed | None = None
) -> Risks:
    """Return the risk of a choice among any number of answerers, and of every baseline within what is allowed.

    Example:
        >>> from l2h.decision import CLIENT, Answerer
        >>> answerers = (CLIENT, Answerer("box", remote=True), Answerer("cloud", remote=True))
        >>> correct = np.array([[True, True, True], [False, True, True], [False, False, True]])
        >>> choice = AnswererChoice(answerers, correct, chosen=np.array([0, 1, 2]))
        >>> found = risks_of(choice, {"box": Costs(c_e=0.1), "cloud": Costs(c_e=0.4)})
        >>> round(found.system, 4), found.by_server
        (0.1667, {'box': 0.43333333333333335, 'cloud': 0.4000000000000001})
    """
    always = [float(choice.losses_of(one, costs).mean()) for one in choice.answerers]
    bounded = always
    if allowed is not None:
        bounded = [float(losses_of_one(choice, costs, one, allowed).mean()) for one in choice.answerers]
    by_server = {one.name: risk for one, risk in zip(choice.answerers, bounded, strict=True) if one.remote}
    shares = random_shares(choice, allowed)
    return Risks(
        system=choice.risk(costs),
        all_local=always[0],
        all_remote=min(by_server.values()),
        random=sum(share * cost for share, cost in zip(reversed(shares), reversed(always), strict=True)),
        confidence=None if confidence is None else confidence.risk(costs),
        oracle=choice.cheapest(costs, allowed).risk(costs),
        by_server=by_server if len(by_server) > 1 else None,
    )


def losses_of_one(
    choice: AnswererChoice, costs: AnyCosts, answerer: Answerer, allowed: Allowed | None = None
) -> FloatArray:
    """Return (n,), what each answer costs if one answerer gives all of them.

    If that is a server and there is a limit, it is expected: as many inputs as are allowed, chosen at random, go to the
    server and the client answers the others.
    """
    losses = choice.losses_of(answerer, costs)
    if allowed is None or not answerer.remote:
        return losses
    share = allowed.share_of(answerer.name)
    return share * losses + (1 - share) * choice.losses_of(choice.answerers[0], costs)


def random_shares(choice: AnswererChoice, allowed: Allowed | None = None) -> list[float]:
    """Return the share of the inputs of every answerer where they are drawn as often as the choice takes them.

    Those of servers are cut down to what is allowed, and the client answers the rest.
    """
    shares = [figures.share for figures in choice.figures().values()]
    if allowed is not None:
        shares = _within(shares, choice.answerers, allowed)
    shares[0] = 1 - sum(shares[1:])
    return shares


def _within(shares: list[float], answerers: tuple[Answerer, ...], allowed: Allowed) -> list[float]:
    """Return the shares of the answerers, those of servers cut down to what is allowed."""
    shares = [
        min(share, allowed.share_of(one.name)) if one.remote else share
        for share, one in zip(shares, answerers, strict=True)
    ]
    asked = sum(share for share, one in zip(shares, answerers, strict=True) if one.remote)
    factor = allowed.share / asked if asked > allowed.share else 1.0
    return [share * factor if one.remote else share for share, one in zip(shares, answerers, strict=True)]


@dataclass(frozen=True)
class Side:
    """The share of the samples on one side and both accuracies there, which are ``None`` for an empty side."""

    ratio: float
    client: float | None
    server: float | None

    @property
    def difference(self) -> float | None:
        """Server accuracy minus client accuracy: what asking the server gains on this side."""
        if self.client is None or self.server is None:
            return None
        return self.server - self.client

    def as_dict(self) -> dict[str, float | None]:
        return asdict(self)


@dataclass(frozen=True)
class Contrastive:
    """Both sides, and the joint accuracy of client and server under these decisions."""

    local: Side
    remote: Side
    joint: float

    def as_dict(self) -> dict[str, dict[str, float | None]]:
        """Return plain values for JSON, as in ``metrics.json``."""
        return {"local": self.local.as_dict(), "remote": self.remote.as_dict()}


def contrastive(client_correct: npt.ArrayLike, server_correct: npt.ArrayLike, remote: npt.ArrayLike) -> Contrastive:
    """Split the samples by decision and score both classifiers on both sides.

    Example:
        >>> table = contrastive([True, False, True, False], [True, True, True, False], [False, True, False, False])
        >>> table.remote
        Side(ratio=0.25, client=0.0, server=1.0)
        >>> table.joint
        0.75
    """
    return contrastive_of(AnswererChoice.of_two(client_correct, server_correct, remote))


def contrastive_of(choice: AnswererChoice) -> Contrastive:
    """Return the table of a choice; of several servers, of the one that is right most often."""
    client, server = choice.correct[:, 0], choice.correct_of(choice.best_server)
    return Contrastive(
        local=_side(client, server, ~choice.remote),
        remote=_side(client, server, choice.remote),
        joint=choice.accuracy,
    )


def reject_rate_per_class(remote: npt.ArrayLike, y: npt.NDArray[Any], num_classes: int) -> npt.NDArray[np.float64]:
    """Return the share of each class for which the server is asked, (K,); NaN for a class that does not occur."""
    sent = as_bool("remote", remote)
    count = np.bincount(y, minlength=num_classes).astype(np.float64)
    sent_count = np.bincount(y, weights=sent, minlength=num_classes)
    return np.asarray(np.divide(sent_count, count, out=np.full(num_classes, np.nan), where=count > 0))


def _side(client: BoolArray, server: BoolArray, chosen: BoolArray) -> Side:
    if not chosen.any():
        return Side(ratio=0.0, client=None, server=None)
    return Side(ratio=float(chosen.mean()), client=float(client[chosen].mean()), server=float(server[chosen].mean()))
