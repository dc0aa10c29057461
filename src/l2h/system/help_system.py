"""``HelpSystem``: the verbs of the workflow in their order: fit, calibrate, predict, evaluate, save, export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from l2h.answers import Answers
from l2h.budgets import Budget
from l2h.bundle import Manifest
from l2h.classifiers import Classifier, as_client
from l2h.costs import Costs
from l2h.data.outcomes import check_outcomes, read_outcomes
from l2h.decision import AnyCosts, AnyLimit, Judgement, KeptDraws, KeptLimiters, RejectorSpec, continued
from l2h.errors import ClientError, NotFittedError
from l2h.export import export_system
from l2h.files import note_training
from l2h.fitted import EXAMPLES, FittedSystem
from l2h.labels import ClassNames, LabelCodec
from l2h.methods import Learned
from l2h.metrics import Report
from l2h.money import Money, plain_costs
from l2h.remote import RemoteServer
from l2h.routing import Router, fit_router
from l2h.settings import Settings
from l2h.system import steps
from l2h.system.client_features import check_wanted
from l2h.system.measuring import AskedSamples, Question
from l2h.system.servers import GivenServer, answers_folder, check_method, take_servers
from l2h.system.sizing import choose_budget
from l2h.training import Context, Job, Trained, pick_device
from l2h.training.bars import Told, count_progress
from l2h.training.loop import repeatable
from l2h.training.parallel import helps_another


class HelpSystem:
    """A fixed client, one or more servers and a rejector between them.

    Args:
        client: the classifier that cannot change: whatever :func:`l2h.as_client` takes.
        server: a model's name (``lenet5``, ``alexnet``, ``vit``, ``mlp``), a torch module, or a scikit-learn classifier
            that is not fitted, such as ``HistGradientBoostingClassifier()``, which are trained; or
            what is asked and not trained: a function, the address of an API (``https://...``), or a
            :class:`l2h.RemoteServer` with options for these; or anything else that :func:`l2h.as_client` takes.
        servers: several of these by name, instead of ``server``: ``{"box": "lenet5", "cloud": "https://..."}``. Each
            can have its own prices.
        rejector: ``attached``, ``separate``, or a torch module of two outputs per sample, 1 + S for S servers (called
            with the inputs, and with the client's view as well where it has an attribute ``uses_client = True``). Where
            None, what the method uses; ``attached`` without a method.
        method: name of a method that learns (:func:`l2h.methods.known`), or one of your own; where None, the one that
            ``settings.loss`` and ``rejector`` spell, by default ``priced-attached``.
        settings: of the training.
        class_names: one per class, in the order of integer labels from 0, or all text labels; or a name by label,
            ``{1: "one", 2: "two"}``. Where None, the labels themselves.
        dataset: a name for reports.
        image_size: what ``load_dataset(..., size=)`` or ``l2h.data.read_images`` brought the images to. It is kept, so
            that ``l2h ask`` does the same to a picture of any size.
        server_options: of the named server, such as ``{"width": 4}``; of several servers by their names,
            ``{"box": {"width": 4}}``.
        rejector_options: of the named rejector.
        second_opinion: let the rejector's student answer as well, where it is more likely right than the client.
        budget: what a named rejector may cost the device for one input: a multiple of the client's multiply-adds
            (``0.3``), multiply-adds (``"200k"``), or time on this machine with onnxruntime on one thread (``"50us"``).
            Where None, the size that ``rejector_options`` say, else 1.0: as much as the client.
        client_features: what an attached rejector reads of a client that is a torch module or an ONNX file: the name of
            a layer or tensor inside it, ``"auto"`` (the one that says most), or ``"none"``. Where None, the features
            that the client gives out by itself, if any.
        train_server: False keeps a torch module as it is; of several servers for all, or by name.

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
        server: Any = None,
        rejector: str | nn.Module | None = None,
        *,
        servers: Mapping[str, Any] | None = None,
        second_opinion: bool = False,
        method: str | Learned | None = None,
        settings: Settings | None = None,
        class_names: ClassNames | None = None,
        dataset: str = "unnamed",
        image_size: int | None = None,
        server_options: Mapping[str, Any] | None = None,
        rejector_options: Mapping[str, Any] | None = None,
        budget: Budget | float | str | None = None,
        client_features: str | None = None,
        train_server: bool | Mapping[str, bool] | None = None,
    ) -> None:
        self.client: Classifier = as_client(client)
        self.settings = settings or Settings()
        self.method, self.rejector = steps.choose_method(method, rejector, self.settings)
        self.dataset, self.image_size = dataset, image_size
        self.given_class_names = class_names
        self.rejector_options = dict(rejector_options or {})
        self.budget = choose_budget(budget, self.rejector, self.rejector_options, self.settings.recipe)
        self.client_features = check_wanted(client_features, self.rejector)
        self.device = pick_device(self.settings.device)
        #: What :meth:`fit` and :meth:`calibrate` found out; None before.
        self.fitted: FittedSystem | None = None
        self.servers: tuple[GivenServer, ...] = take_servers(server, servers, train_server, server_options)
        self.second_opinion = second_opinion
        check_method(self.method, len(self.servers), second_opinion, self.rejector, self.settings.recipe)
        for remote in self.remote_servers:
            remote.class_names = self.class_names
        self._limiters: KeptLimiters = {}
        self._draws: KeptDraws = {}

    def __repr__(self) -> str:
        state = "not fitted" if self.fitted is None else f"fitted: {self.fitted.state}"
        servers = ", ".join(map(str, self.servers))
        return f"HelpSystem(client={self.client!r}, {servers}, method={self.method.name!r}, {state})"

    @property
    def remote_servers(self) -> list[RemoteServer]:
        """The servers that are asked while training."""
        return [server.fixed for server in self.servers if isinstance(server.fixed, RemoteServer)]

    @property
    def specs(self) -> tuple[RejectorSpec, ...]:
        """What each rejector was trained for."""
        return self.require_fitted().specs

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """One name per class: those given, or the labels once the system is fitted."""
        if self.fitted is not None:
            return self.fitted.class_names
        given = self.given_class_names
        return None if given is None else LabelCodec.find([0], given).names

    @property
    def num_classes(self) -> int:
        """K, known after :meth:`fit`."""
        return self.require_fitted().num_classes

    def require_fitted(self) -> FittedSystem:
        """Return what was fitted, or raise a :class:`NotFittedError`."""
        if self.fitted is None:
            raise NotFittedError("this system is not fitted yet: call fit(X, y) first, or l2h.load(folder)")
        return self.fitted

    def fit(
        self,
        X: Any,
        y: npt.ArrayLike | None = None,
        costs: Costs | Money | Sequence[Costs] | None = None,
        *,
        specs: Sequence[RejectorSpec] | None = None,
        held_out_rows: npt.NDArray[np.int64] | None = None,
        calibration: float | None = None,
        run: Path | str | None = None,
        resume: bool = False,
        progress: Told | Sequence[Told] = None,
        context: Context | None = None,
    ) -> HelpSystem:
        """Train the server, then the rejector, and return the system itself.

        Args:
            X: (n, ...), uint8 images (n, C, H, W) or floats; or a table: a pandas or polars data frame, or a mapping of
                columns. Its columns are remembered by their names (:class:`l2h.columns.Columns`). Or alone, with its
                labels: a torch ``Dataset`` or ``DataLoader``, or a Hugging Face ``Dataset``.
            y: (n,) labels: text, integers or booleans. Answers and reports have the same labels.
            costs: the prices to train for, one rejector each; not needed by a method that answers for every price.
            specs: the rejectors one by one, instead of ``costs``: they may differ in loss, costs, seed and, under
                recipe ``paper``, in the link over which copies of the server reach them.
            held_out_rows: rows of X that the client was not trained on, where that is known. They are held out from
                the server too, so that the rejector learns from samples new to both.
            calibration: the share of the samples that nothing is trained on and that :meth:`calibrate` is called with
                in the end, such as 0.1. Where None, the samples that the rejector was stopped by serve instead, which
                is enough for prices and plain shares, but not for a guarantee (``"20%@95%"``).
            run: a folder for checkpoints and ``history.csv``.
            resume: go on from the checkpoints there.
            progress: who is told how it goes: by default bars on a terminal and in a notebook, and nobody elsewhere;
                False for nobody; True for bars or, where neither is there, lines on stderr; a
                :class:`l2h.training.Progress`, such as ``l2h.training.MLflowProgress("mlflow")``; or a list of these.
            context: instead of the last three, for callers that train more than this system in one run.

        Raises:
            DataError: samples or labels that cannot be used.
            ClientError: a client that cannot be run on X, answers twice differently, or whose classes do not fit y.
        """
        kept = None
        if calibration is not None:
            X, y, held_out_rows, kept = steps.keep_back(self, X, y, held_out_rows, calibration)
        job = self.prepare(X, y, costs, specs=specs, held_out_rows=held_out_rows)
        before = self.client.fingerprint()
        run = None if run is None or helps_another() else Path(run)
        if run is not None:
            for server in self.servers:
                if isinstance(server.fixed, RemoteServer):
                    server.fixed.cache.keep_in(answers_folder(run, server.name))
            note_training(run, steps.describe(self, job), resume=resume)
        given = nullcontext(context) if context else steps.training_context(self, job, run, resume, progress)
        with given as made, repeatable(self.settings, self.device):
            trained = self.method.train(job, made)
        if self.client.fingerprint() != before:
            raise ClientError("the client's weights changed during training: something else is training it")
        self.adopt(job, trained, made.history)
        return self if kept is None else self.calibrate(*kept)

    @classmethod
    def fit_outcomes(
        cls,
        X: Any,
        client_right: npt.ArrayLike | None = None,
        server_right: npt.ArrayLike | None = None,
        *,
        text_column: str = "prompt",
        seed: int = 0,
        dataset: str | None = None,
        progress: Callable[[int, int], None] | bool | None = None,
    ) -> Router:
        """Train a router for two answerers that are not classifiers, such as two language models.

        Args:
            X: n texts or embeddings (n, d); or alone a table with the columns ``client_right`` and ``server_right``: a
                ``.parquet`` or ``.csv`` file, or a data frame.
            client_right: (n,), 0 or 1: whether the client was right about each input.
            server_right: (n,), whether the server was right.
            text_column: the table's column of inputs.
            seed: of the cross-validation.
            dataset: a name for reports.
            progress: None, True or False as in :meth:`fit`; or a function of how many fits are done, and of how many.

        Raises:
            DataError: inputs or outcomes that cannot be used; the message names the row or the column.
        """
        known = (
            read_outcomes(X, text_column)
            if client_right is None and server_right is None
            else check_outcomes(X, client_right, server_right, "unnamed")
        )
        right, name = (known.client_right, known.server_right), dataset or known.name
        with count_progress("fit", progress) as told:
            return fit_router(known.X, *right, seed=seed, dataset=name, progress=told)

    def prepare(
        self,
        X: Any,
        y: npt.ArrayLike | None = None,
        costs: Costs | Money | Sequence[Costs] | None = None,
        *,
        specs: Sequence[RejectorSpec] | None = None,
        held_out_rows: npt.NDArray[np.int64] | None = None,
    ) -> Job:
        """Check samples and client, take its answers, and return what is to be trained: the first part of fit."""
        return steps.prepare_job(self, X, y, costs, specs, held_out_rows)

    def adopt(self, job: Job, trained: Trained, history: list[dict[str, Any]]) -> HelpSystem:
        """Take over what was trained for a job of :meth:`prepare`: the last part of fit."""
        fitted = steps.assemble(
            self,
            trained=trained.servers,
            rejectors=trained.rejectors,
            specs=tuple(job.specs),
            input_shape=tuple(job.X.shape[1:]),
            input_dtype=str(job.X.dtype),
            labels=job.labels or LabelCodec.numbered(job.num_classes),
            embedding_size=job.embedding_size,
            columns=None if job.table is None else job.table.columns,
            examples=None if job.table is None else job.table[:EXAMPLES],
            rejector_options=job.size.options,
            budget=job.size.budget,
            client_features=job.client_features,
            history=history,
        )
        self.fitted = fitted if trained.held_out is None else fitted.calibrated(trained.held_out, fresh=False)
        return self

    def calibrate(self, X: Any, y: npt.ArrayLike | None = None) -> HelpSystem:
        """Recalibrate on samples that nothing was trained on.

        Scale and shift of each priced head's logit, and the held-out outcomes that the confidence baseline takes its
        threshold from. :meth:`fit` does this already on samples it kept back; fresh ones are better, since they have
        met the final server.
        """
        fitted = self.require_fitted()
        self.fitted = fitted.calibrated(fitted.measure(*fitted.check(X, y)))
        return self

    def predict(
        self,
        X: Any,
        costs: AnyCosts | Money | None = None,
        *,
        limit: AnyLimit | None = None,
        rule: str | None = None,
        seed: int = 0,
        which: int | None = None,
    ) -> Answers:
        """Answer every input, asking a server where it pays, or as often as a limit allows.

        Args:
            X: as in :meth:`fit`.
            costs: the prices, or those of each server by its name, or :class:`l2h.Money`; those of the training, or
                c_e = 0.1 and c_1 = 1, where None. Under a limit and without prices asking is free, and a limit over
                all is used up.
            limit: a bound on asking, as an object or as text (``"20%"``), or by the name of each server that has one,
                with ``all`` for all together. A share is met by a calibrated rule; a share of a window, or a number in
                a time, by a :class:`l2h.Limiter` that the system keeps from call to call.
            rule: for a share: ``threshold`` (the default: what gains most), ``guaranteed`` (the default of a limit with
                a confidence), or ``stochastic`` (the paper's).
            seed: of what a rule draws. Each call goes on where the last one with this seed stopped.
            which: number of the rejector in ``specs``, where the prices do not tell.
        """
        fitted = self.require_fitted()
        policy = steps.make_policy(fitted, limit, rule, self._limiters)
        terms = policy.terms(costs, which)
        return steps.answer(fitted, fitted.check_inputs(X), policy, terms, continued(self._draws, seed))

    def evaluate(
        self,
        X: Any,
        y: npt.ArrayLike | None = None,
        costs: AnyCosts | Money | None = None,
        *,
        limit: AnyLimit | None = None,
        rule: str | None = None,
        seed: int = 0,
        which: int | None = None,
    ) -> Report:
        """Measure the system on a test set, beside every trivial baseline; the arguments are those of :meth:`predict`.

        The confidence baseline takes its threshold from the samples of the last calibration; where there was none
        (recipe ``paper`` without :meth:`calibrate`) a warning says so and the baseline is missing.
        """
        fitted, question = self.require_fitted(), Question(costs, limit, rule, which, seed)
        question.check(fitted)
        return AskedSamples.of(fitted, *fitted.check(X, y)).report(question)

    def judge(self, X: Any, costs: AnyCosts | Money | None = None, *, which: int | None = None) -> Judgement:
        """Return what the rejector makes of every input, without asking anyone."""
        fitted = self.require_fitted()
        X = fitted.check_inputs(X)
        which, _ = fitted.select(costs, which)
        return fitted.judge(X, fitted.client.answers(X, fitted.num_classes), which)

    def calibrated_rate(self, costs: AnyCosts | Money | None = None, *, which: int | None = None) -> float:
        """Return the reject rate ``q1`` at these prices on the samples of the last calibration (Algorithm 3)."""
        fitted = self.require_fitted()
        which, costs = fitted.select(costs, which)
        return float(fitted.held_out_judgement(which).remote(costs).mean())

    def save(self, folder: str | Path) -> Path:
        """Write config and weights into a run folder; :func:`l2h.load` reads them back. Nothing is pickled."""
        from l2h.system.saving import save_system

        return save_system(self.require_fitted(), Path(folder))

    def export(
        self,
        folder: str | Path,
        *,
        name: str | None = None,
        costs: AnyCosts | Money | None = None,
        which: int | None = None,
        int8: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        force: bool = False,
    ) -> Manifest:
        """Write a bundle for devices and servers that need no torch; see :func:`l2h.export.export_system`."""
        prices = plain_costs(costs)
        return export_system(
            self.require_fitted(), folder, name=name, costs=prices, which=which, int8=int8, force=force
        )
