"""``HelpSystem``: the verbs of the workflow in their order: fit, calibrate, predict, evaluate, save, export."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from l2h import decision, metrics
from l2h.answers import Answers
from l2h.classifiers import Classifier, ClassifierAnswers, as_client
from l2h.costs import BoolArray, Costs
from l2h.data.validate import check_arrays, check_inputs
from l2h.decision import Judgement, Policy, RejectorSpec, fitting_rejectors, select_rejector
from l2h.errors import ClientError, DataError, L2HWarning, NotFittedError, SettingsError, UnknownNameError
from l2h.files import digest
from l2h.limits import Limiter, RateLimit
from l2h.metrics import Report
from l2h.models import client_view_size, recommended
from l2h.models import multiply_adds as count_multiply_adds
from l2h.settings import Settings
from l2h.system.folder import note_training
from l2h.training import Context, Job, Progress, RejectorBatch, Silent, Trained, pick_device, train
from l2h.training.building import rejector_builder, server_builder, take_server
from l2h.training.checkpoint import Checkpoints
from l2h.training.inference import rejector_scores, server_log_probabilities
from l2h.training.loop import repeatable
from l2h.training.recipes import HeldOut

if TYPE_CHECKING:
    from l2h.bundle import Manifest

Array = npt.NDArray[Any]
log = logging.getLogger("l2h")
DEFAULT_COSTS = Costs(c_e=0.1, c_1=1.0)
PROBE = 64


class HelpSystem:
    """A fixed client, a server and a rejector between them.

    Args:
        client: the classifier that cannot change: whatever :func:`l2h.as_client` takes.
        server: a model's name (``lenet5``, ``alexnet``, ``vit``, ``mlp``) or a torch module, which are trained; or
            anything else that :func:`l2h.as_client` takes, such as a callable over somebody's API, which is not.
        rejector: ``attached``, ``separate``, or a torch module of two outputs a sample (called with the inputs, and
            with the client's view as well where it has an attribute ``uses_client = True``).
        settings: of the training.
        class_names: one a class; numbers where None.
        dataset: a name for reports.
        server_options: of the named server, such as ``{"width": 4}``.
        rejector_options: of the named rejector, such as ``{"width": 2}``.
        train_server: False keeps a torch module as it is.

    Example:
        >>> import l2h
        >>> from sklearn.datasets import make_classification
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> X, y = make_classification(600, n_informative=6, n_classes=3, random_state=0)
        >>> old = DecisionTreeClassifier(max_depth=2).fit(X[:100], y[:100])
        >>> stage = l2h.StageSettings(epochs=3)
        >>> quick = l2h.Settings(server=stage, rejector=stage, folds=2, threads=1)
        >>> system = HelpSystem(client=old, server="mlp", settings=quick).fit(X[100:400], y[100:400])
        >>> answers = system.calibrate(X[400:500], y[400:500]).predict(X[500:], costs=Costs(c_e=0.1))
        >>> sorted(set(answers.source.tolist())) in (["local"], ["remote"], ["local", "remote"])
        True
    """

    def __init__(
        self,
        client: Any,
        server: Any,
        rejector: str | nn.Module = "attached",
        *,
        settings: Settings | None = None,
        class_names: Sequence[str] | None = None,
        dataset: str = "unnamed",
        server_options: dict[str, Any] | None = None,
        rejector_options: dict[str, Any] | None = None,
        train_server: bool | None = None,
    ) -> None:
        self.client: Classifier = as_client(client)
        self.settings = settings or Settings()
        self.dataset = dataset
        self._given_names: tuple[str, ...] | None = None if class_names is None else tuple(class_names)
        self.class_names = self._given_names
        self.server_options = dict(server_options or {})
        self.rejector_options = dict(rejector_options or {})
        if rejector not in ("attached", "separate") and not isinstance(rejector, nn.Module):
            raise UnknownNameError(
                f"unknown rejector {rejector!r}; known: attached, separate, or a torch module of your own"
            )
        self.rejector = rejector
        self.device = pick_device(self.settings.device)
        #: What is trained into a server, or the server that is taken as it is.
        self._given_server, self.fixed_server = take_server(server, train_server)
        # What fitting finds out.
        self.input_shape: tuple[int, ...] | None = None
        self.input_dtype: str | None = None
        self.embedding_size = 0
        self.server: nn.Module | None = None
        self.rejectors: RejectorBatch | None = None
        self.specs: tuple[RejectorSpec, ...] = ()
        self.held_out: HeldOut | None = None
        self.platt: npt.NDArray[np.float64] | None = None
        self.history: list[dict[str, Any]] = []
        self._limiters: dict[RateLimit, Limiter] = {}

    @property
    def num_classes(self) -> int:
        """K, known after :meth:`fit`."""
        if self.class_names is None:
            raise NotFittedError("the number of classes is known after fit(X, y)")
        return len(self.class_names)

    def fit(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        costs: Costs | Sequence[Costs] | None = None,
        *,
        specs: Sequence[RejectorSpec] | None = None,
        run: Path | str | None = None,
        resume: bool = False,
        checkpoint_every: int = 1,
        progress: Progress | None = None,
        earlier: Sequence[dict[str, Any]] = (),
        held_out_rows: npt.NDArray[np.int64] | None = None,
    ) -> HelpSystem:
        """Server stage, then rejector stage.

        Args:
            X: (n, ...), uint8 images (n, C, H, W) or floats.
            y: integer labels from 0.
            costs: the prices to train for, one rejector each; not needed by the ``priced`` loss.
            specs: the rejectors one by one, instead of ``costs``: they may differ in loss, costs, seed and, under
                recipe ``paper``, in the link over which copies of the server reach them.
            run: a folder for checkpoints and ``history.csv``.
            resume: go on from the checkpoints there.
            checkpoint_every: epochs between two checkpoints.
            progress: who is told how it goes.
            earlier: rows of the history that came before, such as the training of a client.
            held_out_rows: rows of X that the client was not trained on, where that is known. They are held out from
                the server too (``honest="holdout"``), so that the rejector learns from samples new to both.

        Returns:
            The system itself.

        Raises:
            DataError: samples or labels that cannot be used.
            ClientError: a client that cannot be run on X, answers twice differently, or whose classes do not fit y.
        """
        before = self.client.fingerprint()
        job = self.prepare(X, y, costs, specs=specs, held_out_rows=held_out_rows)
        folder = None if run is None else Path(run)
        if folder is not None:
            note_training(folder, self._description(job), resume=resume)
        context = Context(
            self.settings,
            self.device,
            Checkpoints(None if folder is None else folder / "checkpoints", resume, checkpoint_every),
            progress or Silent(),
            list(earlier),
            history_file=None if folder is None else folder / "history.csv",
        )
        with repeatable(self.settings, self.device):
            trained = train(job, context)
        if self.client.fingerprint() != before:
            raise ClientError("the client's weights changed during training: something else is training it")
        return self.adopt(trained, context.history)

    def prepare(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        costs: Costs | Sequence[Costs] | None = None,
        *,
        specs: Sequence[RejectorSpec] | None = None,
        held_out_rows: npt.NDArray[np.int64] | None = None,
    ) -> Job:
        """Check the samples and the client, take its answers, and say what is to be trained: the first part of fit."""
        known = None if self._given_names is None else len(self._given_names)
        X, y = check_arrays(X, y, num_classes=known)
        self.class_names = self._given_names or tuple(str(k) for k in range(int(y.max()) + 1))
        self.input_shape, self.input_dtype = tuple(X.shape[1:]), str(X.dtype)
        self.client.check_repeatable(X[:PROBE], self.num_classes)
        answers = self.client.answers(X, self.num_classes)
        self.embedding_size = 0 if answers.embedding is None else answers.embedding.shape[1]
        if not answers.has_scores:
            log.warning("the client gives labels only: the confidence baseline has nothing to rank by")
        empty = np.setdiff1d(np.arange(self.num_classes), y)
        if len(empty):
            log.warning("no sample of class %s: labels count from 0", ", ".join(str(k) for k in empty[:5]))
        self.specs = tuple(specs) if specs is not None else self._specs(costs)
        return self._job(X, y, answers, held_out_rows)

    def adopt(self, trained: Trained, history: list[dict[str, Any]]) -> HelpSystem:
        """Take over what was trained for a job of :meth:`prepare`: the last part of fit."""
        self.server, self.rejectors, self.history = trained.server, trained.rejectors, history
        self.held_out = self.platt = None
        if trained.held_out is not None:
            self._calibrate(trained.held_out)
        return self

    def _specs(self, costs: Costs | Sequence[Costs] | None) -> tuple[RejectorSpec, ...]:
        if self.settings.loss == "priced":
            return (RejectorSpec(),)
        if costs is None:
            raise SettingsError(
                f"loss {self.settings.loss!r} trains for a price: fit(X, y, costs=l2h.Costs(...)), or use loss 'priced'"
            )
        several = [costs] if isinstance(costs, Costs) else list(costs)
        return tuple(RejectorSpec(loss=self.settings.loss, costs=c) for c in several)

    def _description(self, job: Job) -> dict[str, Any]:
        """What the checkpoints of a training depend on, to tell two trainings apart."""
        given = self._given_server
        return {
            "settings": self.settings.as_dict(),
            "rejectors": [spec.as_dict() for spec in self.specs],
            "rejector": [self.rejector if isinstance(self.rejector, str) else "given", self.rejector_options],
            "server": [given if isinstance(given, str) else "given", self.server_options],
            "data": digest(job.X, job.y),
            "client_answers": digest(job.answers.log_probability),
        }

    def _job(
        self,
        X: Array,
        y: npt.NDArray[np.int64],
        answers: ClassifierAnswers,
        held_out_rows: npt.NDArray[np.int64] | None,
    ) -> Job:
        given = self._given_server
        return Job(
            X=X,
            y=y,
            client=self.client,
            answers=answers,
            make_server=None
            if given is None
            else server_builder(given, X, self.num_classes, self.settings, self.server_options),
            fixed_server=self.fixed_server,
            server_settings=recommended(given if isinstance(given, str) else None),
            make_rejector=self._rejector_builder(X),
            specs=self.specs,
            held_out_rows=held_out_rows,
        )

    def _rejector_builder(self, X: Array | None) -> Callable[[], nn.Module]:
        """How a fresh rejector is made; without ``X`` its scaling is to be loaded."""
        assert self.input_shape is not None
        return rejector_builder(
            self.rejector,
            X,
            input_shape=self.input_shape,
            num_classes=self.num_classes,
            embedding_size=self.embedding_size,
            settings=self.settings,
            options=self.rejector_options,
        )

    def calibrate(self, X: npt.ArrayLike, y: npt.ArrayLike) -> HelpSystem:
        """Recalibrate on samples that nothing was trained on.

        Scale and shift of each priced head's logit, and the held-out outcomes that the confidence baseline takes its
        threshold from. :meth:`fit` does this already on samples it kept back; fresh ones are better, since they have
        met the final server.
        """
        X, y = self._check(X, y)
        answers = self.client.answers(X, self.num_classes)
        server_label = self._server_log_probability(X).argmax(axis=1)
        self._calibrate(
            HeldOut(
                scores=self._scores(X, answers),
                client_confidence=answers.confidence,
                client_correct=answers.label == y,
                server_correct=server_label == y,
            )
        )
        return self

    def _calibrate(self, held_out: HeldOut) -> None:
        self.held_out = held_out
        truth = (held_out.client_correct, held_out.server_correct)
        self.platt = np.array(
            [
                [metrics.fit_platt(held_out.scores[r, :, head], truth[head]) for head in (0, 1)]
                if spec.loss == "priced"
                else [(1.0, 0.0), (1.0, 0.0)]
                for r, spec in enumerate(self.specs)
            ]
        )

    def predict(
        self,
        X: npt.ArrayLike,
        costs: Costs | None = None,
        *,
        limit: RateLimit | None = None,
        rule: str | None = None,
        seed: int = 0,
        which: int | None = None,
    ) -> Answers:
        """Answer every input, asking the server where it pays, or as often as a limit allows.

        Args:
            X: as in :meth:`fit`.
            costs: the prices; those of the training, or c_e = 0.1 and c_1 = 1, where None. Under a limit and without
                prices asking is free, and the limit is used up.
            limit: a bound on asking. A share is met by a calibrated rule; a share of a window, or a number in a time,
                by a :class:`l2h.limits.Limiter` that the system keeps from call to call.
            rule: for a share: ``threshold`` (the default: what gains most), ``guaranteed`` (the default of a limit with
                a confidence), or ``stochastic`` (the paper's).
            seed: of what a rule draws.
            which: number of the rejector in ``specs``, where the prices do not tell.
        """
        X = self._check_inputs(X)
        answers = self.client.answers(X, self.num_classes)
        costs, wanted, remote = self._decide(X, answers, costs, limit, rule, seed, which, self._limiters)[:3]
        server_label = np.zeros(len(X), dtype=np.int64)
        if remote.any():
            server_label[remote] = self._server_log_probability(X[remote]).argmax(axis=1)
        return Answers.of(answers.label, server_label, remote, costs, wanted)

    def evaluate(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        costs: Costs | None = None,
        *,
        limit: RateLimit | None = None,
        rule: str | None = None,
        seed: int = 0,
        which: int | None = None,
    ) -> Report:
        """Measure the system on a test set, beside every trivial baseline; the arguments are those of :meth:`predict`.

        The confidence baseline takes its threshold from the samples of the last calibration; where there was none
        (recipe ``paper`` without :meth:`calibrate`) a warning says so and the baseline is missing.
        """
        X, y = self._check(X, y)
        answers = self.client.answers(X, self.num_classes)
        # A limiter of its own: judging neither finds a window partly spent nor spends what is to be predicted with.
        costs, _, remote, judgement = self._decide(X, answers, costs, limit, rule, seed, which, {})
        confidence_remote = None
        if self.held_out is None:
            warnings.warn(
                "no held-out samples: call calibrate(X, y) to compare with the confidence baseline",
                L2HWarning,
                stacklevel=2,
            )
        else:
            held = self.held_out
            threshold = decision.confidence_threshold(
                held.client_confidence, held.client_correct, held.server_correct, costs
            )
            confidence_remote = decision.confidence(answers.confidence, threshold)
        heads = {}
        if judgement.probability is not None:
            heads = {"client": judgement.probability[:, 0], "server": judgement.probability[:, 1]}
        return metrics.evaluate(
            y=y,
            client_label=answers.label,
            client_confidence=answers.confidence,
            server_probability=np.exp(self._server_log_probability(X)),
            remote=remote,
            score=judgement.gain,
            costs=costs,
            confidence_remote=confidence_remote,
            head_probability=heads,
            class_names=self.class_names or (),
            dataset=self.dataset,
            seed=self.settings.seed,
        )

    def judge(self, X: npt.ArrayLike, costs: Costs | None = None, *, which: int | None = None) -> Judgement:
        """What the rejector thinks of every input, without asking anyone."""
        X = self._check_inputs(X)
        which, _ = self._rejector_for(costs, which)
        return self._judge(X, self.client.answers(X, self.num_classes), which)

    def multiply_adds(self) -> dict[str, int | None]:
        """Multiply-adds of one input through ``rejector`` and ``server``; None for a server that cannot be looked into.

        What the device pays for the decision beside what it would pay for the server; the client's own are not counted.
        """
        self._fitted()
        assert self.rejectors is not None
        assert self.input_shape is not None
        x = torch.zeros(1, *self.input_shape, dtype=getattr(torch, self.input_dtype or "float32"), device=self.device)
        view = torch.zeros(1, client_view_size(self.num_classes, self.embedding_size), device=self.device)
        module = self.rejectors.module(0)
        inputs = (x, view) if getattr(module, "uses_client", False) else (x,)
        return {
            "rejector": count_multiply_adds(module, *inputs),
            "server": None if self.server is None else count_multiply_adds(self.server, x),
        }

    def save(self, folder: str | Path) -> Path:
        """Write config and weights into a run folder; :func:`load` reads them back. Nothing is pickled."""
        from l2h.system.persistence import save_system

        return save_system(self, Path(folder))

    def export(
        self,
        folder: str | Path,
        *,
        name: str | None = None,
        costs: Costs | None = None,
        which: int | None = None,
        int8: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        force: bool = False,
    ) -> Manifest:
        """Write a bundle for devices and servers that need no torch; see :func:`l2h.export.export_system`."""
        from l2h.export import export_system

        return export_system(self, folder, name=name, costs=costs, which=which, int8=int8, force=force)

    def calibrated_rate(self, costs: Costs | None = None, *, which: int | None = None) -> float:
        """The reject rate ``q1`` at these prices on the samples of the last calibration (the paper's Algorithm 3)."""
        which, costs = self._rejector_for(costs, which)
        return float(self.held_out_judgement(which).remote(costs).mean())

    # What the verbs share.

    def _decide(
        self,
        X: Array,
        answers: ClassifierAnswers,
        costs: Costs | None,
        limit: RateLimit | None,
        rule: str | None,
        seed: int,
        which: int | None,
        limiters: dict[RateLimit, Limiter],
    ) -> tuple[Costs, BoolArray, BoolArray, Judgement]:
        """The prices in use, what the rejector wants sent, what goes, and why."""
        self._fitted()
        kept = limiters.get(limit) if limit is not None else None
        policy = Policy(self._rejector_for, self._priced(), self.held_out_judgement, kept or limit, rule)
        terms = policy.terms(costs, which)
        if limit is not None and policy.limiter is not None:  # one per limit: its cap is over all requests
            limiters[limit] = policy.limiter
        judgement = self._judge(X, answers, terms.which)
        proposal = policy.propose(judgement, terms, seed)
        return terms.costs, proposal.wanted, policy.permit(proposal, len(X)), judgement

    def _priced(self) -> bool:
        self._fitted()
        return self.specs[0].costs is None

    def held_out_judgement(self, which: int) -> Judgement:
        """What the rejector makes of the samples of the last calibration.

        Raises:
            NotFittedError: there was none.
        """
        if self.held_out is None:
            raise NotFittedError("a bound on asking is met on calibration samples: call calibrate(X_cal, y_cal) first")
        return self._judgement(self.held_out.scores[which], which)

    def _rejector_for(self, costs: Costs | None, which: int | None = None) -> tuple[int, Costs]:
        """The number of the rejector that answers for these prices, and the prices in use."""
        self._fitted()
        return select_rejector(self.specs, costs, DEFAULT_COSTS, which)

    def answering(self, costs: Costs | None) -> list[int]:
        """Numbers of the rejectors that answer for these prices; a priced one answers for all.

        Raises:
            SettingsError: there is none; the message lists what there is.
        """
        self._fitted()
        return fitting_rejectors(self.specs, costs)

    def _judge(self, X: Array, answers: ClassifierAnswers, which: int) -> Judgement:
        return self._judgement(self._scores(X, answers)[which], which)

    def _judgement(self, scores: npt.NDArray[np.float32], which: int) -> Judgement:
        if self.specs[which].costs is not None:
            return Judgement(scores)
        return Judgement.from_heads(scores, None if self.platt is None else self.platt[which])

    def _scores(self, X: Array, answers: ClassifierAnswers) -> npt.NDArray[np.float32]:
        assert self.rejectors is not None
        return rejector_scores(self.rejectors, X, answers, self._context())

    def _server_log_probability(self, X: Array) -> npt.NDArray[np.float32]:
        if self.fixed_server is not None:
            return self.fixed_server.answers(X, self.num_classes).log_probability
        assert self.server is not None
        return server_log_probabilities(self.server, X, self._context())

    def _context(self) -> Context:
        return Context(self.settings, self.device)

    def _fitted(self) -> None:
        if self.rejectors is None:
            raise NotFittedError("this system is not fitted yet: call fit(X, y) first, or l2h.load(folder)")

    def _check_inputs(self, X: npt.ArrayLike) -> Array:
        self._fitted()
        X = check_inputs(X)
        if tuple(X.shape[1:]) != self.input_shape:
            raise DataError(f"inputs have shape {tuple(X.shape[1:])}, the system was fitted to {self.input_shape}")
        if str(X.dtype) != self.input_dtype:
            raise DataError(
                f"inputs are {X.dtype}, the system was fitted to {self.input_dtype}: their scales would differ"
            )
        return X

    def _check(self, X: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Array, npt.NDArray[np.int64]]:
        X = self._check_inputs(X)
        return check_arrays(X, y, num_classes=self.num_classes, allow_one_class=True)


def load(folder: str | Path, **given: Any) -> HelpSystem:
    """Read a system that was saved, or trained by ``l2h train``.

    Args:
        folder: the run folder.
        given: ``client=``, ``server=`` or ``rejector=``, where one could not be saved: a callable, or a module of the
            user's, whose code is not in the folder; ``server_run=`` the run folder of a server that was trained
            elsewhere (``l2h train --role server``).

    Raises:
        RunError: the folder holds no finished run, is damaged, or lacks a part that must be given.
    """
    from l2h.system.persistence import load_system

    return load_system(Path(folder), **given)
