"""The client is given and stays as it is, whatever it is made of."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clouds import (
    CLASSES,
    X_TEST,
    Y_TEST,
    Net,
    NetWithFeatures,
    X,
    Y,
    exported_program,
    labels,
    make,
    onnx_file,
    probabilities,
    scores,
    torch_script,
    tree,
)
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.multiclass import OneVsOneClassifier
from sklearn.svm import LinearSVC

from l2h import Costs, StochasticClient, as_client
from l2h.errors import ClientError

KINDS = ("torch", "torch with features", "TorchScript", "exported program", "ONNX", "scikit-learn")


def client_of(kind: str, folder: Path) -> Any:
    makers = {
        "torch": lambda: Net().train(),
        "torch with features": lambda: NetWithFeatures().train(),
        "TorchScript": torch_script,
        "exported program": exported_program,
        "ONNX": lambda: onnx_file(folder),
        "scikit-learn": tree,
    }
    return makers[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_fit_leaves_the_client_as_it_was(kind: str, tmp_path: Path) -> None:
    """The fingerprint, and the answers themselves, before and after."""
    model = client_of(kind, tmp_path)
    client = as_client(model)
    fingerprint, answers = client.fingerprint(), client.answers(X_TEST, CLASSES)
    system = make(client).fit(X, Y)
    system.predict(X_TEST)
    assert client.fingerprint() == fingerprint
    after = client.answers(X_TEST, CLASSES)
    assert np.array_equal(answers.label, after.label)
    assert np.array_equal(answers.log_probability, after.log_probability)
    assert (answers.embedding is not None) == (kind == "torch with features")


def test_a_torch_client_in_training_mode_keeps_weights_statistics_and_mode() -> None:
    """Dropout is off and running statistics are used while it answers; its own mode comes back, layer by layer."""
    net = Net().train()
    net.body[1].eval()  # one layer frozen, as people do
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    gradients = [p.requires_grad for p in net.parameters()]
    system = make(net).fit(X, Y)
    system.evaluate(X_TEST, Y_TEST)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert net.training
    assert net.body[3].training
    assert not net.body[1].training
    assert [p.requires_grad for p in net.parameters()] == gradients
    assert all(p.grad is None for p in net.parameters())
    expected = Net().eval()(torch.from_numpy(X_TEST)).argmax(1).numpy()
    assert np.array_equal(system.client.answers(X_TEST, CLASSES).label, expected)


@pytest.mark.parametrize("part", ["parameter", "running statistics"])
def test_a_client_that_changes_during_training_is_found_out(part: str) -> None:
    net = Net()

    class Meddler:
        """Told of every epoch, it trains the client on the side."""

        def start(self, *_: Any) -> None: ...
        def step(self) -> None: ...
        def finish(self, *_: Any) -> None: ...
        def epoch(self, *_: Any) -> None:
            with torch.no_grad():
                (net.last.bias if part == "parameter" else net.body[1].running_mean).add_(1e-6)

    with pytest.raises(ClientError, match="weights changed during training"):
        make(net).fit(X, Y, progress=Meddler())


def test_fingerprints_tell_clients_apart() -> None:
    net, other = Net(), Net()
    assert as_client(net).fingerprint() == as_client(other).fingerprint()
    with torch.no_grad():
        other.body[1].running_var[0] *= 1 + 1e-6
    assert as_client(net).fingerprint() != as_client(other).fingerprint()


def test_a_client_that_answers_twice_differently_is_refused_with_the_hint() -> None:
    rng = np.random.default_rng(0)

    def noisy(inputs: np.ndarray) -> np.ndarray:
        return scores(inputs) + rng.normal(size=(len(inputs), CLASSES))

    with pytest.raises(ClientError, match=r"two answers to the same inputs.*l2h\.StochasticClient\(sample, seed\)"):
        make(noisy).fit(X, Y)


def noisy_sample(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return scores(x) + 2 * rng.normal(size=(1, CLASSES))


def test_a_stochastic_client_draws_once_for_each_input() -> None:
    """Whatever the batch and the order; another seed is another draw."""
    client = StochasticClient(noisy_sample, seed=4)
    whole = client.answers(X_TEST, CLASSES)
    order = np.random.default_rng(1).permutation(len(X_TEST))
    shuffled = client.answers(X_TEST[order], CLASSES)
    assert np.array_equal(shuffled.log_probability, whole.log_probability[order])
    small = client.answers(X_TEST, CLASSES, batch=7)
    assert np.array_equal(small.log_probability, whole.log_probability)
    single = np.concatenate([client.answers(X_TEST[i : i + 1], CLASSES).log_probability for i in range(20)])
    assert np.array_equal(single, whole.log_probability[:20])
    strided = client.answers(np.asfortranarray(X_TEST)[::2], CLASSES)
    # Close and not equal: the product in ``scores`` adds up in another order over rows that lie otherwise in memory.
    assert np.allclose(strided.log_probability, whole.log_probability[::2], atol=1e-5)
    other = StochasticClient(noisy_sample, seed=5).answers(X_TEST, CLASSES)
    assert np.mean(np.any(other.log_probability != whole.log_probability, axis=1)) == 1.0
    # The draws are draws: they differ from input to input as their distribution says. 150 x 3 normals of sd 2.
    noise = StochasticClient(lambda x, rng: rng.normal(size=(1, CLASSES)) * 2, seed=0).raw(X_TEST)[0]
    assert abs(noise.mean()) < 4 * 2 / np.sqrt(noise.size)
    assert 1.7 < noise.std() < 2.3


def test_a_stochastic_client_goes_through_every_verb() -> None:
    system = make(StochasticClient(noisy_sample, seed=4)).fit(X, Y)
    costs = Costs(c_e=0.05)
    answers = system.predict(X_TEST, costs)
    backwards = system.predict(X_TEST[::-1], costs)
    assert np.array_equal(answers.label, backwards.label[::-1])
    assert np.array_equal(answers.source, backwards.source[::-1])
    report = system.evaluate(X_TEST, Y_TEST, costs)
    drawn = StochasticClient(noisy_sample, seed=4).answers(X_TEST, CLASSES).label
    assert report.accuracy["client"] == pytest.approx(np.mean(drawn == Y_TEST))
    local = answers.source == "local"
    assert np.array_equal(answers.label[local], drawn[local])


def test_a_client_that_gives_only_labels_works() -> None:
    system = make(labels).fit(X, Y)
    answers = system.client.answers(X_TEST, CLASSES)
    assert not answers.has_scores
    assert np.array_equal(answers.label, labels(X_TEST))
    assert np.all(answers.confidence == 1)
    report = system.evaluate(X_TEST, Y_TEST, Costs(c_e=0.1))
    assert report.accuracy["client"] == pytest.approx(np.mean(labels(X_TEST) == Y_TEST))


def test_logits_and_probabilities_of_one_client_are_the_same_client() -> None:
    """To float32's roundings of a softmax, down to the floor of 1e-6 that probabilities are held at."""
    by_logits, by_probability = (as_client(f).answers(X_TEST, CLASSES) for f in (scores, probabilities))
    floored = np.maximum(by_logits.log_probability, np.log(1e-6))
    assert np.allclose(floored, by_probability.log_probability, atol=1e-4)
    assert np.array_equal(by_logits.label, by_probability.label)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_an_estimator_that_never_saw_a_class_gives_it_no_probability(missing: int) -> None:
    seen = np.not_equal(Y, missing)
    estimator = LogisticRegression().fit(X[seen], Y[seen])
    system = make(estimator).fit(X, Y)
    answers = system.client.answers(X_TEST, CLASSES)
    assert np.array_equal(answers.label, estimator.predict(X_TEST))
    assert answers.probability[:, missing].max() < 1e-5
    others = np.delete(answers.probability, missing, axis=1)
    assert np.allclose(others, estimator.predict_proba(X_TEST), atol=1e-4)
    system.predict(X_TEST)
    report = system.evaluate(X_TEST, Y_TEST)
    assert report.accuracy["client"] == pytest.approx(estimator.score(X_TEST, Y_TEST))


class Rule(ClassifierMixin, BaseEstimator):
    """An estimator that can only ``predict``."""

    def fit(self, inputs: np.ndarray, y: np.ndarray) -> Rule:
        self.classes_ = np.unique(y)
        return self

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        return self.classes_[labels(inputs)]


@pytest.mark.parametrize(
    "estimator",
    [LinearSVC(random_state=0), RidgeClassifier(), Rule(), OneVsOneClassifier(LinearSVC(random_state=0))],
    ids=lambda e: type(e).__name__,
)
def test_estimators_without_probabilities_work(estimator: Any) -> None:
    """``decision_function``, or ``predict`` alone; the label is always the estimator's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(X, Y)
    system = make(estimator).fit(X, Y)
    assert np.array_equal(system.client.answers(X_TEST, CLASSES).label, estimator.predict(X_TEST))
    report = system.evaluate(X_TEST, Y_TEST)
    assert report.accuracy["client"] == pytest.approx(estimator.score(X_TEST, Y_TEST))


def test_a_two_class_decision_function_keeps_its_sign() -> None:
    two = Y < 2
    estimator = LinearSVC(random_state=0).fit(X[two], Y[two])
    system = make(estimator).fit(X[two], Y[two])
    answers = system.client.answers(X_TEST, 2)
    assert np.array_equal(answers.label, estimator.predict(X_TEST))
    # The margin z as two scores -z/2, z/2: the probability of class 1 is its sigmoid.
    expected = 1 / (1 + np.exp(-estimator.decision_function(X_TEST)))
    assert np.allclose(answers.probability[:, 1], expected, atol=1e-5)


def test_answers_do_not_depend_on_the_batch() -> None:
    """One at a time, in odd batches, or all at once: to the roundings of matrix products of different sizes."""
    for model in (Net(), tree(), scores, labels, probabilities, torch_script(), exported_program()):
        client = as_client(model)
        whole = client.answers(X_TEST, CLASSES)
        for batch in (1, 7):
            parts = client.answers(X_TEST, CLASSES, batch=batch)
            assert np.array_equal(parts.label, whole.label)
            assert np.allclose(parts.log_probability, whole.log_probability, atol=1e-5)


def test_features_of_a_named_layer_are_that_layer_s_output() -> None:
    net = Net()
    client = as_client(net, feature_layer="body")
    embedding = client.answers(X_TEST, CLASSES).embedding
    with torch.no_grad():
        expected = Net().eval().body(torch.from_numpy(X_TEST)).numpy()
    assert np.allclose(embedding, expected, atol=1e-6)
    with pytest.raises(ClientError, match=r"no layer 'nose'; known: body, body\.0"):
        as_client(net, feature_layer="nose")


@pytest.mark.parametrize("suffix", [".pt", ".pt2"])
def test_program_files_load_as_clients(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"client{suffix}"
    if suffix == ".pt":
        torch.jit.save(torch_script(), str(path))
    else:
        torch.export.save(exported_program(), path)
    answers = as_client(path).answers(X_TEST, CLASSES)
    expected = as_client(Net()).answers(X_TEST, CLASSES)
    assert np.allclose(answers.log_probability, expected.log_probability, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (object(), "object cannot be a client"),
        ("missing.onnx", "no ONNX file at"),
        ("missing.pt", "no client at"),
        (LogisticRegression(), "not fitted"),
    ],
    ids=["object", "onnx", "pt", "unfitted"],
)
def test_what_cannot_be_a_client_is_refused_with_the_reason(model: Any, message: str) -> None:
    with pytest.raises(ClientError, match=message):
        as_client(model)


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "client.pkl"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ClientError, match="Pickled models are not loaded"):
        as_client(path)
    damaged = tmp_path / "client.onnx"
    damaged.write_bytes(b"nonsense")
    with pytest.raises(ClientError, match="cannot load"):
        as_client(damaged)
