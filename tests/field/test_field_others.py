"""The edge client against servers of others, which host the server of a bundle by the files of deploy/."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from mlserver_process import mlserver
from ray_process import ray_serve

from l2h import Costs, EdgeClient
from l2h.bundle import DeviceBundle, ServerBundle
from l2h.edge import EdgeError
from l2h.protocol import Tensor, encode_request

pytestmark = pytest.mark.long
#: Whether each takes binary tensors; MLServer answers them with 500.
BINARY = {"mlserver": False, "ray": True}


@pytest.fixture(scope="module", params=BINARY)
def host(request: pytest.FixtureRequest) -> str:
    """Whose server it is."""
    return str(request.param)


@pytest.fixture(scope="module")
def address(host: str, field_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, name = tmp_path_factory.mktemp(host), ServerBundle(field_bundle).name
    with mlserver(folder, field_bundle, name) if host == "mlserver" else ray_serve(folder, field_bundle) as found:
        yield found


def inputs(bundle: DeviceBundle, n: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 17, (n, *bundle.input_shape)).astype(bundle.input_dtype)


def test_the_edge_client_gets_the_answers_of_the_model(field_bundle: Path, host: str, address: str) -> None:
    device, model = DeviceBundle(field_bundle), ServerBundle(field_bundle)
    X = inputs(device, 150)
    labels, judgement = device.judge(X)
    helped = model.run(X).argmax(axis=1)
    for binary in {False, BINARY[host]}:
        with EdgeClient(device, address, deadline=5.0, binary=binary, max_batch=40) as edge:
            edge.check()
            for costs in (Costs(c_e=0.0, c_1=0.0), Costs(c_e=0.05), Costs(c_e=0.3)):
                remote = judgement.remote(costs)
                answers = edge.predict(X, costs=costs)
                assert set(answers.reason) <= {"worth_asking", "not_worth_asking"}
                assert np.array_equal(answers.source == "remote", remote)
                assert np.array_equal(answers.label, np.where(remote, helped, labels))
            assert edge.predict(X[0], costs=Costs(c_e=0.0, c_1=0.0)).label[0] == helped[0]
            assert edge.stats().reasons.get("bad_answer") is None


def test_a_model_that_is_not_there_is_told(field_bundle: Path, address: str) -> None:
    with (
        EdgeClient(field_bundle, address, model="nothing", binary=False) as edge,
        pytest.raises(EdgeError, match="nothing"),
    ):
        edge.check()
    with EdgeClient(field_bundle, address, model="nothing", binary=False, deadline=5.0) as edge:
        answers = edge.predict(inputs(edge.bundle, 3), costs=Costs(c_e=0.0, c_1=0.0))
        assert set(answers.reason) == {"refused"}
        assert set(answers.source) == {"local"}


def test_inputs_that_do_not_fit_are_refused_with_a_sentence(field_bundle: Path, address: str) -> None:
    bundle = ServerBundle(field_bundle)
    for x, said in (
        (np.zeros((2, *bundle.input_shape), np.float32), "UINT8"),
        (np.zeros((2, 3), np.uint8), "has the shape"),
    ):
        body, headers = encode_request([Tensor("x", x)], binary=False)
        answer = httpx.post(f"{address}/v2/models/{bundle.name}/infer", content=body, headers=headers)
        assert answer.status_code == 400
        assert said in answer.json()["error"]


def test_mlserver_does_not_serve_a_damaged_file(field_bundle: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(field_bundle, tmp_path / "bundle")
    content = bytearray((bundle / "server.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (bundle / "server.onnx").write_bytes(content)
    with (
        pytest.raises(AssertionError, match="is not the file that the manifest describes"),
        mlserver(tmp_path / "mlserver", bundle, ServerBundle(field_bundle).name),
    ):
        pass
