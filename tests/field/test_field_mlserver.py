"""The edge client against somebody else's server: MLServer, hosting the ONNX file of our bundle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from mlserver_process import mlserver

from l2h import Costs, EdgeClient
from l2h.bundle import DeviceBundle, ServerBundle
from l2h.edge import EdgeError


@pytest.fixture(scope="module")
def address(field_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    bundle = ServerBundle(field_bundle)
    folder = tmp_path_factory.mktemp("mlserver")
    model = field_bundle / "server.onnx"
    with mlserver(folder, model, bundle.name, bundle.input_shape, "UINT8", len(bundle.classes)) as found:
        yield found


def inputs(bundle: DeviceBundle, n: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 17, (n, *bundle.input_shape)).astype(bundle.input_dtype)


@pytest.mark.long
def test_mlserver_gives_the_edge_client_the_answers_of_the_model(field_bundle: Path, address: str) -> None:
    device, model = DeviceBundle(field_bundle), ServerBundle(field_bundle)
    X = inputs(device, 150)
    labels, judgement = device.judge(X)
    helped = model.run(X).argmax(axis=1)
    with EdgeClient(device, address, deadline=5.0, binary=False, max_batch=40) as edge:
        edge.check()
        for costs in (Costs(c_e=0.0, c_1=0.0), Costs(c_e=0.05), Costs(c_e=0.3)):
            remote = judgement.remote(costs)
            answers = edge.predict(X, costs=costs)
            assert set(answers.reason) <= {"worth_asking", "not_worth_asking"}
            assert np.array_equal(answers.source == "remote", remote)
            assert np.array_equal(answers.label, np.where(remote, helped, labels))
        assert edge.predict(X[0], costs=Costs(c_e=0.0, c_1=0.0)).label[0] == helped[0]
        assert edge.stats().reasons.get("bad_answer") is None


@pytest.mark.long
def test_names_and_shapes_that_mlserver_does_not_have_are_told(field_bundle: Path, address: str) -> None:
    with (
        EdgeClient(field_bundle, address, model="nothing", binary=False) as edge,
        pytest.raises(EdgeError, match="nothing"),
    ):
        edge.check()
    with EdgeClient(field_bundle, address, model="nothing", binary=False, deadline=5.0) as edge:
        answers = edge.predict(inputs(edge.bundle, 3), costs=Costs(c_e=0.0, c_1=0.0))
        assert set(answers.reason) == {"refused"}
        assert set(answers.source) == {"local"}
