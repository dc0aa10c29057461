"""What a person sees who types the name of an object: what it is and how it stands, in a line."""

from __future__ import annotations

import numpy as np
from clouds import X_TEST, Net, X, Y, make, scores, tree
from prompts import made_up
from sklearn.frozen import FrozenEstimator
from this_platform import VERSION_0_1

import l2h

LONGEST = 250


def assert_plain(shown: object, *words: str) -> None:
    text = repr(shown)
    assert len(text) <= LONGEST
    assert "\n" not in text
    assert "array(" not in text
    assert " at 0x" not in text
    for word in words:
        assert word in text


def test_a_system_says_what_it_is_made_of_and_whether_it_is_fitted() -> None:
    system = make(tree(), given={"dataset": "clouds"})
    assert_plain(system, "SklearnClassifier(DecisionTreeClassifier)", "server='mlp'", "not fitted")
    system.fit(X, Y, progress=False)
    assert_plain(system, "fitted: inputs (4,) float32, 3 classes, calibrated on 36 samples")
    assert_plain(system.fitted, "clouds", "priced-attached", "3 classes", "calibrated on 36 samples")
    several = l2h.HelpSystem(Net(), servers={"box": Net(), "cloud": "http://host:1", "api": scores})
    assert_plain(several, "TorchClassifier(Net)", "box=Net", "cloud=RemoteServer('http://host:1')", "clouds:scores")


def test_answers_are_counted() -> None:
    system = make(scores).fit(X, Y, progress=False)
    answers = system.predict(X_TEST, l2h.Costs(c_e=0.3))
    asked = int((answers.source == "remote").sum())
    assert_plain(answers, "Answers(150 inputs: ", f"server {asked}", f"cost {0.3 * asked:g}")
    kept = l2h.Answers(np.array([1]), np.array(["local"]), np.array(["not_worth_asking"]), np.zeros(1))
    assert repr(kept) == "Answers(1 input: client 1; cost 0)"
    assert_plain(system.judge(X_TEST), "150 inputs", "probabilities of client, server")


def test_a_router_and_its_routes_are_short() -> None:
    prompts, client, server = made_up(120)
    router = l2h.HelpSystem.fit_outcomes(prompts, client, server, dataset="questions")
    assert_plain(router, "Router(questions", "texts")
    assert_plain(router.predict(prompts), "Routes(120 inputs: ")


def test_a_bundle_and_its_client_are_short() -> None:
    folder = VERSION_0_1 / "priced-bundle"
    assert_plain(l2h.bundle.Manifest.read(folder), "version ", " classes", "rejector.onnx")
    with l2h.EdgeClient(folder) as edge:
        assert_plain(edge, "EdgeClient(", "server=None", "deadline=0.2)")
    assert_plain(edge, "closed)")


def test_the_classifier_of_scikit_learn_shows_what_was_set() -> None:
    assert repr(l2h.HelpClassifier(c_e=0.2, verbose=1)) == "HelpClassifier(c_e=0.2, verbose=1)"
    assert "FrozenEstimator" in repr(l2h.HelpClassifier(FrozenEstimator(tree())))
