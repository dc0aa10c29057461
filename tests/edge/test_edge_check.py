"""The server is compared with the bundle, and servers of others can be asked."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace

import pytest
from clouds import CLASSES, FEATURES
from edge_maker import ALL, KEY, X_TEST
from fault_proxy import Fault
from waiting import free_port

from l2h import AsyncEdgeClient
from l2h.edge import EdgeError


def refusal(edge):
    with pytest.raises(EdgeError) as refused:
        edge.check(timeout=2.0)
    return str(refused.value)


def test_a_server_that_fits_passes(connect, server, bundle):
    edge = connect(server.url, key=KEY)
    assert edge.check() is None
    assert edge.stats().answers == 0

    async def ask():
        async with AsyncEdgeClient(bundle, server.url) as edge:
            await edge.check()

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "another"}, ["another", "clouds"]),
        ({"inputs": [{"name": "x", "datatype": "UINT8", "shape": [-1, FEATURES]}]}, ["UINT8", "FP32"]),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 7]}]}, ["[-1, 7]", f"[-1, {FEATURES}]"]),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]}, ["[-1, 1, 8, 8]"]),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": "wide"}]}, ["wide"]),
        ({"outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 10]}]}, ["[-1, 10]", f"{CLASSES} classes"]),
        ({"outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1]}]}, ["[-1]"]),
        ({"inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, FEATURES]}]}, ["'image'", "input_name"]),
        ({"outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, CLASSES]}]}, ["'y'", "output_name"]),
        ({"outputs": "none"}, ["no list"]),
        ({"name": None}, ["no metadata"]),
    ],
)
def test_what_differs_is_named(connect, server, change, words):
    server.metadata |= change
    said = refusal(connect(server.url))
    for word in [server.url, *words]:
        assert word in said


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["0", "dog", "2"], ["1 of 3", "class 1", "'dog'", "'1'"]),
        (["0", "2", "1"], ["another order", "class 1"]),
        (["0", "1", "2", "3"], ["4 classes", "bundle has 3"]),
        (["x" * 500, "1", "2"], ["class 0", "..."]),
    ],
)
def test_classes_that_differ_are_named(connect, server, names, words):
    server.metadata["outputs"] = [{"name": "scores", "datatype": "FP32", "shape": [-1, -1]}]
    server.metadata["parameters"] = {"classes": names}
    said = refusal(connect(server.url))
    for word in [server.url, *words]:
        assert word in said
    edge = connect(server.url, deadline=2.0, costs=ALL, input_name=None)
    assert edge.predict(X_TEST[0])[0].reason == "bad_answer"
    assert not server.asked


def test_classes_are_compared_where_the_server_gives_their_names(connect, server, bundle):
    edge = connect(server.url)
    server.metadata["parameters"] = {"classes": list(bundle.classes)}
    edge.check()
    assert edge.classes_compared
    for given in ({}, None, [], {"classes": {"string_value": "a,b,c"}}, {"classes": []}, {"classes": "a"}):
        server.metadata["parameters"] = given
        edge.check()
        assert not edge.classes_compared


def test_a_key_that_is_not_taken_is_told_and_nothing_is_asked(connect, server):
    server.key = "l2h_right"
    connect(server.url, key="l2h_right").check()
    assert "does not take the key" in refusal(connect(server.url, key="l2h_wrong"))
    assert "wants a key" in refusal(connect(server.url))
    assert not server.asked


def test_so_many_classes_that_their_names_are_long(connect, server, bundle):
    many = copy.copy(bundle)
    names = tuple(f"class number {i} \N{SNOWMAN}" for i in range(20_000))
    many.manifest = replace(bundle.manifest, classes=names)
    server.metadata["outputs"] = [{"name": "scores", "datatype": "FP32", "shape": [-1, 20_000]}]
    server.metadata["parameters"] = {"classes": list(names)}
    edge = connect(server.url, bundle=many)
    edge.check()
    assert edge.classes_compared
    server.metadata["parameters"] = {"classes": [*names[:-1], "last"]}
    assert "class 19999" in refusal(edge)


def test_a_server_that_is_none_is_named(connect, server, proxy):
    assert "'digits'" in refusal(connect(server.url, model="digits"))
    assert "no server of the Open Inference Protocol" in refusal(connect(f"{server.url}/elsewhere"))
    server.health = 503
    assert "not ready" in refusal(connect(server.url))
    proxy.use(Fault("half_open"))
    with pytest.raises(EdgeError, match="in time"):
        connect(proxy.url).check(timeout=0.2)
    nobody = f"http://127.0.0.1:{free_port()}"
    assert nobody in refusal(connect(nobody))


def test_labels_in_the_metadata_are_fine(connect, server):
    server.metadata["outputs"] = [{"name": "scores", "datatype": "INT64", "shape": [-1]}]
    server.mode = "labels"
    edge = connect(server.url, deadline=5.0, costs=ALL)
    edge.check()
    assert edge.predict(X_TEST).label.tolist() == server.scores(X_TEST).argmax(axis=1).tolist()


@pytest.mark.parametrize("binary", [True, False])
def test_a_server_of_others_with_names_of_its_own(connect, server, binary):
    server.name, server.input_name, server.output_name = "theirs", "input-0", "probabilities"
    server.metadata |= {
        "name": "theirs",
        "inputs": [{"name": "input-0", "datatype": "FP32", "shape": [-1, -1]}],
        "outputs": [{"name": "probabilities", "datatype": "FP32", "shape": [-1, CLASSES]}],
    }
    expected = server.scores(X_TEST).argmax(axis=1).tolist()
    told = {"input_name": "input-0", "output_name": "probabilities"}
    for names in (told, dict.fromkeys(told)):
        edge = connect(server.url, deadline=5.0, costs=ALL, model="theirs", binary=binary, **names)
        answers = edge.predict(X_TEST)
        assert set(answers.source) == {"remote"}
        assert answers.label.tolist() == expected
        edge.check()
    kind = "application/octet-stream" if binary else "application/json"
    assert {asked.headers["content-type"] for asked in server.asked} == {kind}
    assert {asked.headers["accept-encoding"] for asked in server.asked} == {"identity"}


def test_names_that_cannot_be_learned_leave_the_answer_to_the_device(connect, server):
    edge = connect(server.url, deadline=2.0, costs=ALL, input_name=None)
    inputs = server.metadata["inputs"]
    server.metadata["inputs"] = inputs * 2
    assert edge.predict(X_TEST[0])[0].reason == "bad_answer"
    assert "input_name" in str(edge.stats().error)
    server.metadata["inputs"] = inputs
    assert edge.predict(X_TEST[0])[0].reason == "worth_asking"


def test_a_large_batch_travels_as_json_too(connect, server):
    answers = connect(server.url, deadline=10.0, costs=ALL, binary=False, max_batch=10**6).predict(
        X_TEST.repeat(200, axis=0)
    )
    assert set(answers.source) == {"remote"}
    assert len(server.asked) == 1
