"""The protocol's bytes: what is written is read back, and nothing that is not a message is taken for one."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from l2h import protocol
from l2h.protocol import MessageLimits, Request, Response, Tensor, WireError

TYPES = {name: protocol.numpy_type(name) for name in protocol.DATATYPES}
names = st.text(min_size=1, max_size=12)


def arrays(finite: bool = False) -> st.SearchStrategy[np.ndarray]:
    def of(dtype: np.dtype[Any]) -> st.SearchStrategy[np.ndarray]:
        shapes = stn.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
        elements = {"allow_nan": False, "allow_infinity": False} if finite and dtype.kind == "f" else None
        return stn.arrays(dtype, shapes, elements=elements)  # type: ignore[arg-type]

    return st.sampled_from(sorted(TYPES)).flatmap(lambda name: of(TYPES[name]))


def tensors(finite: bool = False) -> st.SearchStrategy[list[Tensor]]:
    one = st.builds(Tensor, names, arrays(finite))
    return st.lists(one, min_size=1, max_size=4, unique_by=lambda tensor: tensor.name)


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert [tensor.name for tensor in found] == [tensor.name for tensor in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.data.dtype == other.data.dtype
        assert one.data.shape == other.data.shape
        assert one.data.tobytes() == other.data.tobytes() or np.array_equal(one.data, other.data)


def length(headers: dict[str, str]) -> int | None:
    return protocol.header_length(headers.get(protocol.LENGTH_HEADER))


@given(tensors(), st.none() | st.text(max_size=8))
def test_a_binary_request_is_read_back_to_the_bit(inputs: list[Tensor], id: str | None) -> None:
    body, headers = protocol.encode_request(inputs, binary=True, id=id)
    found = protocol.decode_request(body, length(headers))
    assert_same(found.inputs, inputs)
    assert (found.id, found.all_binary) == (id, True)
    assert headers["Content-Type"] == "application/octet-stream"


@given(tensors(finite=True), st.none() | st.text(max_size=8))
def test_a_request_in_json_is_read_back_to_the_bit(inputs: list[Tensor], id: str | None) -> None:
    body, headers = protocol.encode_request(inputs, binary=False, id=id)
    assert protocol.LENGTH_HEADER not in headers
    found = protocol.decode_request(body, None)
    assert_same(found.inputs, inputs)
    assert (found.id, found.all_binary) == (id, False)


@given(tensors(finite=True), st.data())
def test_an_answer_is_read_back_whatever_part_of_it_is_binary(outputs: list[Tensor], data: st.DataObject) -> None:
    binary = {tensor.name: data.draw(st.booleans()) for tensor in outputs}
    body, headers = protocol.encode_response(Response(outputs, "m", "1", "id"), binary)
    found = protocol.decode_response(body, length(headers))
    assert_same(found.outputs, outputs)
    assert (found.model, found.version, found.id) == ("m", "1", "id")


@pytest.mark.parametrize("shape", [[2, 3], [3, 2], [6], [1, 6]])
def test_nested_data_and_flat_data_are_the_same(shape: list[int]) -> None:
    values = np.arange(6, dtype=np.float32).reshape(shape)
    for data in (values.tolist(), values.reshape(-1).tolist()):
        body = json.dumps({"inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "data": data}]}).encode()
        assert_same(protocol.decode_request(body).inputs, [Tensor("x", values)])


def test_outputs_can_be_asked_for_one_by_one() -> None:
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    outputs = [{"name": "a", "parameters": {"binary_data": True}}, {"name": "b", "parameters": {"binary_data": False}}]
    body = {"inputs": [tensor], "outputs": [*outputs, {"name": "c"}], "parameters": {"binary_data_output": True}}
    found = protocol.decode_request(json.dumps(body).encode())
    assert found.wanted == ("a", "b", "c")
    assert [found.wants_binary(name) for name in "abc"] == [True, False, True]


X = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}
BAD: dict[str, Any] = {
    "no JSON": b"{",
    "no text": b"\xff\xfe",
    "no object": b"[]",
    "no inputs": {},
    "inputs that are no list": {"inputs": {}},
    "nothing in inputs": {"inputs": []},
    "a tensor that is no object": {"inputs": [1]},
    "a tensor without a name": {"inputs": [{k: v for k, v in X.items() if k != "name"}]},
    "a name that is no text": {"inputs": [X | {"name": 1}]},
    "the same name twice": {"inputs": [X, X]},
    "an unknown datatype": {"inputs": [X | {"datatype": "FP8"}]},
    "a datatype that is no text": {"inputs": [X | {"datatype": [1]}]},
    "text": {"inputs": [X | {"datatype": "BYTES", "data": ["a", "b"]}]},
    "no shape": {"inputs": [{k: v for k, v in X.items() if k != "shape"}]},
    "a negative side": {"inputs": [X | {"shape": [-2]}]},
    "a side that is no whole number": {"inputs": [X | {"shape": [2.0]}]},
    "a side that is true": {"inputs": [X | {"shape": [True]}]},
    "too many axes": {"inputs": [X | {"shape": [1] * 9}]},
    "a shape beyond every memory": {"inputs": [X | {"shape": [2**40, 2**40]}]},
    "no data": {"inputs": [{k: v for k, v in X.items() if k != "data"}]},
    "too few numbers": {"inputs": [X | {"data": [1]}]},
    "too many numbers": {"inputs": [X | {"data": [1, 2, 3]}]},
    "data of another shape": {"inputs": [X | {"shape": [2, 3], "data": [[1, 2], [3, 4], [5, 6]]}]},
    "rows of unequal length": {"inputs": [X | {"data": [[1], [2, 3]]}]},
    "words for numbers": {"inputs": [X | {"data": ["1", "2"]}]},
    "null for a number": {"inputs": [X | {"data": [1, None]}]},
    "a number beyond the datatype": {"inputs": [X | {"datatype": "UINT8", "data": [1, 256]}]},
    "a negative number without a sign": {"inputs": [X | {"datatype": "UINT8", "data": [1, -1]}]},
    "a fraction as a whole number": {"inputs": [X | {"datatype": "INT32", "data": [1, 1.5]}]},
    "true as a number": {"inputs": [X | {"data": [True, False]}]},
    "a number beyond every type": {"inputs": [X | {"data": [1, 10**400]}]},
    "a number beyond float32": {"inputs": [X | {"data": [1, 1e300]}]},
    "not a number": b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [NaN]}]}',
    "infinity": b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [Infinity]}]}',
    "deep nesting": b'{"inputs": ' + b"[" * 100_000,
    "bytes that do not follow": {"inputs": [X | {"data": None, "parameters": {"binary_data_size": 8}}]},
    "parameters that are no object": {"inputs": [X | {"parameters": []}]},
    "an id that is no text": {"inputs": [X], "id": 7},
    "outputs that are no list": {"inputs": [X], "outputs": {}},
    "an output without a name": {"inputs": [X], "outputs": [{}]},
    "a flag that is no flag": {"inputs": [X], "parameters": {"binary_data_output": "yes"}},
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_request_is_refused_with_a_sentence(what: str) -> None:
    body = BAD[what] if isinstance(BAD[what], bytes) else json.dumps(BAD[what]).encode()
    with pytest.raises(WireError) as error:
        protocol.decode_request(body)
    assert 10 < len(str(error.value)) < 400


def binary(size: Any, raw: bytes, **others: Any) -> tuple[bytes, int]:
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": size}, **others}
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + raw, len(head)


@pytest.mark.parametrize(
    ("size", "raw", "others"),
    [
        (8, b"1234567", {}),
        (8, b"123456789", {}),
        (4, b"1234", {}),
        (-8, b"", {}),
        ("8", b"12345678", {}),
        (True, b"1", {}),
        (2**50, b"", {"shape": [2**48]}),
        (8, b"12345678", {"data": [1, 2]}),
        (2, b"\x01\x02", {"datatype": "BOOL"}),
    ],
)
def test_binary_tensors_of_other_sizes_are_refused(size: Any, raw: bytes, others: dict[str, Any]) -> None:
    body, head = binary(size, raw, **others)
    with pytest.raises(WireError):
        protocol.decode_request(body, head)


@pytest.mark.parametrize("value", ["", "-1", "1e3", "\u0661", "0x10", " 5", "9" * 13, "5 "])
def test_a_length_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(WireError):
        protocol.header_length(value)


def test_a_length_beyond_the_body_is_refused() -> None:
    body, head = binary(8, b"12345678")
    with pytest.raises(WireError, match="body has"):
        protocol.decode_request(body, head + 100)


def test_limits_are_kept() -> None:
    body, _ = protocol.encode_request([Tensor("x", np.zeros((4, 4), np.float32))], binary=False)
    assert protocol.decode_request(body, limits=MessageLimits(elements=16)).inputs
    for limits in (
        MessageLimits(elements=15),
        MessageLimits(axes=1),
        MessageLimits(json_bytes=20),
        MessageLimits(tensors=0),
    ):
        with pytest.raises(WireError):
            protocol.decode_request(body, limits=limits)


@given(st.binary(max_size=200), st.none() | st.integers(0, 300))
def test_any_bytes_are_a_message_or_a_wire_error(body: bytes, head: int | None) -> None:
    for read in (protocol.decode_request, protocol.decode_response):
        with contextlib.suppress(WireError):
            assert isinstance(read(body, head), Request | Response)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["name", "shape", "datatype", "data", "parameters"]),
        json_values | st.sampled_from(["FP32", "UINT8", "BOOL", [1], [2, 2], [0], "x"]),
    ),
    st.dictionaries(st.sampled_from(["id", "outputs", "parameters"]), json_values),
)
def test_any_json_is_a_message_or_a_wire_error(tensor: dict[str, Any], head: dict[str, Any]) -> None:
    body = json.dumps({"inputs": [tensor], **head}).encode()
    try:
        found = protocol.decode_request(body)
    except WireError:
        return
    for one in found.inputs:
        assert list(one.data.shape) == tensor["shape"]


def test_types_that_the_protocol_has_not_are_refused() -> None:
    with pytest.raises(WireError, match="complex"):
        protocol.datatype(np.complex64)
    with pytest.raises(WireError, match="not finite"):
        protocol.encode_response(Response([Tensor("y", np.array([np.nan]))], "m"))


def test_big_endian_arrays_travel_as_little_endian() -> None:
    body, headers = protocol.encode_request([Tensor("x", np.arange(3, dtype=">i4"))], binary=True)
    assert protocol.decode_request(body, length(headers)).inputs[0].data.tolist() == [0, 1, 2]
