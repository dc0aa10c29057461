"""The Open Inference Protocol (V2), as its clients expect it."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import zlib
from contextlib import closing

import numpy as np
import pytest
import tritonclient.http as triton
from serving_maker import linear, write_bundle
from serving_process import Client, Server
from waiting import until

from l2h import protocol
from l2h.bundle import ServerBundle


def test_metadata_says_what_the_model_takes_and_gives(server):
    status, body = server.get("/v2")
    assert status == 200
    assert json.loads(body)["extensions"][0] == "binary_tensor_data"
    for path in ("/v2/models/digits", f"/v2/models/digits/versions/{server.version}"):
        told = json.loads(server.get(path)[1])
        assert told["name"] == "digits"
        assert told["versions"] == [server.version]
        assert told["inputs"] == [{"name": "x", "datatype": "UINT8", "shape": [-1, 1, 4, 4]}]
        assert told["outputs"] == [{"name": "scores", "datatype": "FP32", "shape": [-1, 5]}]


@pytest.mark.parametrize(
    "path", ["/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready", "/v2/models/digits/versions/{}/ready"]
)
def test_a_running_server_is_live_and_ready(server, path):
    assert server.get(path.format(server.version))[0] == 200


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("path", ["/v2/models/digits/infer", "/v2/models/digits/versions/{}/infer"])
def test_answers_are_those_of_the_bundle(server, bundle, x, binary, path):
    body, headers = protocol.encode_request([protocol.Tensor("x", x)], binary=binary, id="mine")
    reply = Client(server).post(body, headers, path.format(server.version))
    assert reply.status == 200, reply.body
    length = protocol.header_length(reply.headers.get(protocol.LENGTH_HEADER.lower()))
    assert (length is not None) == binary
    found = protocol.decode_response(reply.body, length)
    assert (found.model, found.version, found.id) == ("digits", server.version, "mine")
    np.testing.assert_allclose(found.outputs[0].data, ServerBundle(bundle).run(x), rtol=1e-5, atol=1e-5)


def test_json_and_binary_give_the_same_numbers(server, x):
    client = Client(server)
    np.testing.assert_array_equal(client.ask(x, binary=True).scores, client.ask(x, binary=False).scores)


def test_float_inputs(tmp_path):
    write_bundle(tmp_path / "b", linear(dtype="float32"), dtype="float32")
    x = np.random.default_rng(1).normal(size=(2, 1, 4, 4)).astype(np.float32)
    with Server(tmp_path / "b", tmp_path / "s") as server:
        client = Client(server)
        wanted = ServerBundle(tmp_path / "b").run(x)
        for binary in (True, False):
            np.testing.assert_allclose(client.ask(x, binary=binary).scores, wanted, rtol=1e-5, atol=1e-6)
        bad = client.ask(np.full_like(x, np.nan))
        assert (bad.status, "not finite" in bad.error) == (400, True)
        huge = client.ask(np.full_like(x, 3e38))
        assert (huge.status, "no finite scores" in huge.error) == (400, True)
        assert len(server.rows()) == 2


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_packed_bodies_are_read(server, x, name, pack):
    body, headers = protocol.encode_request([protocol.Tensor("x", x)], binary=True)
    reply = Client(server).post(pack(body), {**headers, "Content-Encoding": name})
    np.testing.assert_array_equal(reply.scores, Client(server).ask(x).scores)


def test_a_stranger_s_client(server, bundle, x):
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.is_model_ready("digits", server.version)
    assert not client.is_model_ready("other")
    assert client.get_server_metadata()["name"] == "l2h"
    assert client.get_model_metadata("digits")["inputs"][0]["shape"] == [-1, 1, 4, 4]
    assert client.get_model_config("digits")["max_batch_size"] == 64
    assert client.get_model_repository_index()[0]["state"] == "READY"
    wanted = ServerBundle(bundle).run(x)
    for binary in (True, False):
        given = triton.InferInput("x", list(x.shape), "UINT8")
        given.set_data_from_numpy(x, binary_data=binary)
        asked = [triton.InferRequestedOutput("scores", binary_data=binary)]
        for packing in (None, "gzip", "deflate"):
            for outputs in (asked, None):
                got = client.infer(
                    "digits",
                    [given],
                    outputs=outputs,
                    request_id="7",
                    request_compression_algorithm=packing,
                    response_compression_algorithm=packing,
                )
                np.testing.assert_allclose(got.as_numpy("scores"), wanted, rtol=1e-5, atol=1e-5)
                assert got.get_response()["id"] == "7"
    # What it could ask for beside that is refused, and not passed over in silence.
    with pytest.raises(triton.InferenceServerException, match="'classification' is not known here"):
        client.infer("digits", [given], outputs=[triton.InferRequestedOutput("scores", class_count=2)])
    for hint in ({"priority": 1}, {"timeout": 1000}, {"sequence_id": 5}):
        with pytest.raises(triton.InferenceServerException, match=f"'{next(iter(hint))}' is not known here"):
            client.infer("digits", [given], **hint)
    with pytest.raises(triton.InferenceServerException, match="no model"):
        client.get_model_metadata("other")
    wrong = triton.InferInput("x", [1, 2], "UINT8")
    wrong.set_data_from_numpy(np.zeros((1, 2), np.uint8))
    with pytest.raises(triton.InferenceServerException, match="has the shape"):
        client.infer("digits", [wrong])


def test_a_request_id_is_echoed_if_it_is_sane(server, x):
    client = Client(server)
    assert client.ask(x, X_Request_Id="abc-123").headers["x-request-id"] == "abc-123"
    for odd in ("a b", "x" * 129, "caf\xe9"):
        made = client.ask(x, X_Request_Id=odd).headers["x-request-id"]
        assert made != odd
        assert 1 <= len(made) <= 128
    assert client.ask(x).headers["x-request-id"] != client.ask(x).headers["x-request-id"]


def test_what_does_not_fit_is_refused_with_a_sentence(server, x):
    client = Client(server)

    def refused(tensors, **more):
        body, headers = protocol.encode_request(tensors, binary=True, **more)
        reply = client.post(body, headers)
        assert reply.status == 400
        return reply.error

    assert "one input, 'x'" in refused([protocol.Tensor("y", x)])
    assert "one input, 'x'" in refused([protocol.Tensor("x", x), protocol.Tensor("y", x)])
    assert "UINT8; got FP32" in refused([protocol.Tensor("x", x.astype(np.float32))])
    assert "got [3, 4, 4]" in refused([protocol.Tensor("x", x[:, 0])])
    assert "1 to 64 inputs; got 0" in refused([protocol.Tensor("x", x[:0])])
    assert "at most 1024" in refused([protocol.Tensor("x", np.zeros((65, 1, 4, 4), np.uint8))])
    assert "one output, 'scores'" in refused([protocol.Tensor("x", x)], outputs=["labels"])
    reply = client.post(b"{", {})
    assert (reply.status, "no JSON" in reply.error) == (400, True)


def test_paths_and_methods_that_are_not_there(server, x):
    client = Client(server)
    assert "this server has 'digits'" in client.post(b"{}", {}, "/v2/models/other/infer").error
    assert client.post(b"{}", {}, "/v2/models/digits/versions/1/infer").status == 404
    assert client.post(b"{}", {}, "/v2/models/digits/explain").status == 404
    reply = client.post(b"{}", {}, "/v2/health/live")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
    assert server.get("/v2/models/digits/infer")[0] == 405
    assert server.get("/")[0] == 404


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_an_answer_without_a_body_and_a_word_before_it_are_sent(server, connection):
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as asked:
        asked.request("HEAD", "/v2/health/live", headers={"Connection": connection})
        reply = asked.getresponse()
        assert (reply.status, reply.getheader("content-length"), reply.read()) == (200, "14", b"")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
        raw.sendall(
            b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\nExpect: 100-continue\r\n"
            b"Connection: %b\r\n\r\n" % connection.encode()
        )
        assert raw.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(b"{")
        assert raw.recv(100).startswith(b"HTTP/1.1 400 ")


def test_metrics_add_up_over_the_workers(server, x):
    for _ in range(10):  # each over a connection of its own, so that both workers get some
        assert Client(server).ask(x).status == 200
    charged = [inputs for (inputs,) in server.rows("inputs")]
    until(lambda: server.metric('l2h_requests_total{status="200"}') == len(charged))
    until(lambda: server.metric("l2h_inputs_total") == server.metric("l2h_charged_units_total") == sum(charged))
    assert server.metric(f'l2h_model_info{{name="digits",version="{server.version}"}}') == 2
    assert server.metric("l2h_ledger_up") == 1
