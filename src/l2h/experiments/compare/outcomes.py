"""Methods side by side where only outcomes are known: inputs, and whether client and server were right about each."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from l2h.classifiers import Classifier, ClassifierAnswers
from l2h.costs import BoolArray
from l2h.data import split
from l2h.data.outcomes import OutcomeTable
from l2h.data.reading import need
from l2h.decision import SERVER, RejectorSpec
from l2h.errors import DataError
from l2h.experiments.plan import Plan
from l2h.methods import Bench, Outcomes
from l2h.settings import StageSettings
from l2h.training import Context, Job, SamplePool
from l2h.training.job import ServerJob, view_tensor
from l2h.training.loop import derive
from l2h.training.targets import STOPPING_SHARE, RejectorPools, ServerOutcome

FEATURES = 128  # numbers that stand for a text
CLASSES = 2
#: An answer that is right is 0, one that is wrong 1, and the truth is always 0.
_RIGHT, _WRONG = 0, 1


class _Absent(Classifier):
    """Stands for an answerer that is not here; its answers are known."""

    def raw(self, X: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
        raise DataError("only outcomes are known: there is nobody to ask")

    def weights(self) -> list[bytes]:
        return []


def outcome_bench(plan: Plan, table: OutcomeTable, context: Context) -> tuple[Bench, Outcomes]:
    """Return a bench on four fifths of the rows, with nothing to train but the methods, and the others as a test.

    Texts are made numbers by the words of the training rows: 128 components of their weighted counts.
    """
    seed = context.settings.seed
    train, test = outcome_parts(table, seed)
    X, X_test = _numbers(train, test, seed)
    pair = 2 * train.client_right.astype(np.int64) + train.server_right
    rest, held = split(pair, (1 - plan.calibration, plan.calibration), derive(seed, "parts"))
    learned, stopping = split(pair[rest], (1 - STOPPING_SHARE, STOPPING_SHARE), derive(seed, "pool"))
    known = _outcomes(X, train.client_right, train.server_right)
    server = ServerJob(SERVER.name, StageSettings(), fixed=_Absent())
    job = Job(
        X=X[rest],
        y=known.y[rest],
        client=_Absent(),
        answers=known.client.at(rest),
        servers=(server,),
        make_rejector=nn.Identity,
        specs=[RejectorSpec()],
    )
    pools = RejectorPools(_pool(known, rest[learned], context), None, _pool(known, rest[stopping], context), stopping)
    nobody = ServerOutcome([None], [], None)
    bench = Bench(job, context, plan.costs, _rows(known, held), plan.rejector_options, nobody, pools)
    return bench, _outcomes(X_test, test.client_right, test.server_right)


def without_answerers(bench: Bench) -> Bench:
    """Return the bench to be sent elsewhere: with all that client and servers answered, and without them."""
    sent = copy.copy(bench)
    sent.soft, sent.unseen = bench.soft, bench.unseen  # made while they can be asked
    servers = tuple(replace(server, make=None, estimator=None, fixed=_Absent()) for server in bench.job.servers)
    sent.job = replace(bench.job, client=_Absent(), servers=servers, make_rejector=nn.Identity)
    sent.outcome = ServerOutcome([None] * len(servers), [], None)
    sent.context = replace(bench.context, readers={})  # which are kept by numbers of this process
    return sent


def _numbers(train: OutcomeTable, test: OutcomeTable, seed: int) -> tuple[npt.NDArray[np.float32], ...]:
    if not isinstance(train.X, list):
        return np.asarray(train.X, dtype=np.float32), np.asarray(test.X, dtype=np.float32)
    text = need("sklearn.feature_extraction.text", "scikit-learn", "comparing methods on texts")
    linear = need("sklearn.decomposition", "scikit-learn", "comparing methods on texts")
    words = text.TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    counts = words.fit_transform(train.X)
    found = linear.TruncatedSVD(min(FEATURES, counts.shape[1] - 1), random_state=seed)
    X = found.fit_transform(counts)
    return X.astype(np.float32), found.transform(words.transform(test.X)).astype(np.float32)


def _outcomes(X: npt.NDArray[np.float32], client_right: BoolArray, server_right: BoolArray) -> Outcomes:
    client, server = (np.where(right, _RIGHT, _WRONG) for right in (client_right, server_right))
    sure = np.log(np.clip(np.eye(2, dtype=np.float32), 1e-6, 1.0))
    answers = ClassifierAnswers(client.astype(np.int64), sure[client], None, has_scores=False)
    return Outcomes(X, np.full(len(X), _RIGHT, dtype=np.int64), answers, sure[server])


def _rows(known: Outcomes, rows: npt.NDArray[np.int64]) -> Outcomes:
    return Outcomes(known.X[rows], known.y[rows], known.client.at(rows), known.server_log_probability[rows])


def _pool(known: Outcomes, rows: npt.NDArray[np.int64], context: Context) -> SamplePool:
    some, device = _rows(known, rows), context.device
    probability = torch.from_numpy(some.server_probability).float().to(device)
    client, server = (torch.from_numpy(right).to(device) for right in (some.client_correct, some.server_correct))
    return SamplePool(
        x=torch.from_numpy(some.X).to(device),
        view=view_tensor(some.client, device),
        y=torch.from_numpy(some.y).to(device),
        client_correct=client,
        server_correct=server,
        server_probability=probability,
        client_target=client.float(),
        server_target=server.float(),
        teacher=probability,
    )


def outcome_parts(table: OutcomeTable, seed: int) -> tuple[OutcomeTable, OutcomeTable]:
    """Return the rows to train on, and the fifth to test on that the seed draws."""
    order = np.random.default_rng(seed).permutation(len(table))
    tested = max(1, len(table) // 5)
    return table.part(np.sort(order[tested:])), table.part(np.sort(order[:tested]))
