"""What the server answers, said for programs: OpenAPI 3.1, exact for the model at hand."""

from __future__ import annotations

from typing import Any

import l2h
from l2h import protocol
from l2h.serving.model.model import INPUT, OUTPUT, ServedModel

_ID = {"type": "string", "pattern": "^[\\x21-\\x7e]{1,128}$"}
_ERRORS = {
    400: "The request does not fit the protocol or the model; the sentence says why.",
    401: "No key, or none of this server's.",
    403: "The key was revoked, or may not do this.",
    404: "No such path, model or version.",
    405: "The path takes another method, named in Allow.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "An unknown Content-Encoding.",
    422: "The Idempotency-Key was used for another request.",
    429: "The key's rate or quota is used up.",
    500: "The model failed; nothing was charged.",
    503: "Busy, stopping, or the ledger cannot be written; nothing was charged.",
}
_LIMITED = (429, 503)


def document(model: ServedModel, max_body: int, keys: bool) -> dict[str, Any]:
    """The description.

    Args:
        model: in use.
        max_body: bytes of a request's body.
        keys: whether requests need one.
    """
    paths: dict[str, Any] = {
        "/v2": {"get": _get("The server.", _ref("Server"))},
        "/v2/health/live": {"get": _get("Whether the server runs.", _flag("live"))},
        "/v2/health/ready": {"get": _get("Whether it can answer requests.", _flag("ready"), 503)},
        "/v2/repository/index": {"post": _get("The models.", {"type": "array", "items": _ref("Entry")})},
        "/metrics": {"get": _metrics(keys)},
        "/openapi.json": {"get": _get("This description.", {"type": "object"})},
    }
    for version in (False, True):
        path = "/v2/models/{name}" + ("/versions/{version}" if version else "")
        where = [_path("name", model.name)] + ([_path("version", model.version)] if version else [])
        for end, one in (
            ("", {"get": _get("What the model takes and gives.", _ref("Model"), 404)}),
            ("/ready", {"get": _get("Whether the model can answer.", _ref("ModelReady"), 404, 503)}),
            ("/config", {"get": _get("The model's settings, in Triton's words.", {"type": "object"}, 404)}),
            ("/infer", {"post": _infer(max_body, keys)}),
        ):
            paths[path + end] = {"parameters": where, **one}
    for path in paths.values():
        for method, operation in path.items():
            if method != "parameters":
                operation["responses"].setdefault("405", _error(405))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "L2H server",
            "version": l2h.__version__,
            "description": "The Open Inference Protocol (V2), with keys, quotas and charges.",
        },
        "paths": paths,
        "components": {"schemas": _schemas(model), "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _get(summary: str, schema: dict[str, Any], *errors: int) -> dict[str, Any]:
    good = {"description": summary, "headers": _headers(), "content": {"application/json": {"schema": schema}}}
    return {"summary": summary, "responses": {"200": good, **{str(code): _error(code) for code in errors}}}


def _metrics(keys: bool) -> dict[str, Any]:
    text = {"text/plain": {"schema": {"type": "string"}}}
    errors = {str(code): _error(code) for code in ((401, 403) if keys else ())}
    good = {"description": "Prometheus's text format.", "headers": _headers(), "content": text}
    out: dict[str, Any] = {"summary": "Numbers for Prometheus.", "responses": {"200": good, **errors}}
    if keys:
        out["security"] = [{"key": []}]
    return out


def _infer(max_body: int, keys: bool) -> dict[str, Any]:
    codes = [code for code in _ERRORS if keys or code not in (401, 403, 429)]
    charged = {"description": "1 where the request was charged, 0 for a repeat.", "schema": {"enum": ["0", "1"]}}
    good = {
        "description": "The scores, one row an input.",
        "headers": {**_headers(), "L2H-Charged": charged},
        "content": {protocol.JSON: {"schema": _ref("Response")}, protocol.BINARY: {}},
    }
    out: dict[str, Any] = {
        "summary": "Scores for inputs.",
        "description": f"At most {max_body} bytes; `Content-Encoding` gzip or deflate is read. A binary body is the "
        f"JSON part, `{protocol.LENGTH_HEADER}` bytes long, with `parameters.binary_data_size` in the place of `data`, "
        "then the values.",
        "parameters": [
            _header("X-Request-Id", "Echoed; one is made where it is missing.", {"type": "string"}),
            _header("Idempotency-Key", "The same for the repeats of one request: they are charged once.", _ID),
            _header(
                protocol.LENGTH_HEADER,
                "Bytes of the JSON part of a binary body.",
                {"type": "string", "pattern": "^[0-9]{1,12}$"},
            ),
        ],
        "requestBody": {
            "required": True,
            "content": {protocol.JSON: {"schema": _ref("Request")}, protocol.BINARY: {}},
        },
        "responses": {"200": good, **{str(code): _error(code) for code in codes}},
    }
    if keys:
        out["security"] = [{"key": []}]
    return out


def _schemas(model: ServedModel) -> dict[str, Any]:
    numbers: dict[str, Any] = {"type": "number"} if model.dtype.kind == "f" else {"type": "integer"}
    if model.datatype == "UINT8":
        numbers |= {"minimum": 0, "maximum": 255}
    largest = {"type": "integer", "minimum": 1, "maximum": model.most}
    shape = [largest, *({"const": edge} for edge in model.shape)]
    tensor = {"type": "object", "required": ["name", "datatype", "shape"]}
    text, texts = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
    described = {**tensor, "properties": {"name": text, "datatype": text, "shape": {"type": "array"}}}
    data = {"type": "array", "minItems": model.elements, "maxItems": model.most * model.elements, "items": numbers}
    scores = {"type": "array", "items": {"type": "number"}}
    return {
        "Error": _object({"error": text}),
        "Server": _object({"name": text, "version": text, "extensions": texts}),
        "Entry": _object({"name": text, "version": text, "state": {"enum": ["READY", "UNAVAILABLE"]}, "reason": text}),
        "ModelReady": _object({"name": {"const": model.name}, "ready": {"const": True}}),
        "Model": _object(
            {
                "name": {"const": model.name},
                "versions": texts,
                "platform": text,
                "inputs": {"type": "array", "items": described},
                "outputs": {"type": "array", "items": described},
                "parameters": {"type": "object"},
            }
        ),
        "Request": {
            "type": "object",
            "required": ["inputs"],
            "properties": {
                "id": text,
                "parameters": {"type": "object", "properties": {"binary_data_output": {"type": "boolean"}}},
                "inputs": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 1,
                    "items": {
                        **tensor,
                        "required": ["name", "datatype", "shape", "data"],
                        "properties": {
                            "name": {"const": INPUT},
                            "datatype": {"const": model.datatype},
                            "shape": {
                                "type": "array",
                                "prefixItems": shape,
                                "minItems": len(shape),
                                "maxItems": len(shape),
                            },
                            "parameters": {"type": "object"},
                            "data": data,
                        },
                    },
                },
                "outputs": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"const": OUTPUT},
                            "parameters": {"type": "object", "properties": {"binary_data": {"type": "boolean"}}},
                        },
                    },
                },
            },
        },
        "Response": {
            "type": "object",
            "required": ["model_name", "model_version", "outputs"],
            "properties": {
                "model_name": {"const": model.name},
                "model_version": text,
                "id": text,
                "outputs": {
                    "type": "array",
                    "items": {
                        **tensor,
                        "properties": {
                            "name": {"const": OUTPUT},
                            "datatype": {"const": "FP32"},
                            "shape": {"type": "array", "items": {"type": "integer"}},
                            "data": scores,
                        },
                    },
                },
            },
        },
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _flag(name: str) -> dict[str, Any]:
    return _object({name: {"const": True}})


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _headers(status: int = 200) -> dict[str, Any]:
    out = {"X-Request-Id": {"description": "Of the request.", "required": True, "schema": _ID}}
    if status in _LIMITED:
        whole = {"type": "string", "pattern": "^[1-9][0-9]*$"}
        out["Retry-After"] = {"description": "Seconds.", "required": True, "schema": whole}
    return out


def _error(code: int) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref("Error")}}
    return {"description": _ERRORS[code], "headers": _headers(code), "content": content}


def _path(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "example": value}


def _header(name: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
