"""The description of the server for programs: OpenAPI 3.1, exact for the model in use."""

from typing import Any

import l2h
from l2h import protocol
from l2h.fleet import HEADER, PATH
from l2h.serving.model.model import INPUT, LABEL, OUTPUT, ServedModel

Schema = dict[str, Any]

_TEXT, _OBJECT, _TRUE = {"type": "string"}, {"type": "object"}, {"const": True}
_ID = {"type": "string", "pattern": "^[\\x21-\\x7e]{1,128}$"}
_REQUEST_ID = {"description": "Of the request.", "required": True, "schema": _ID}
_RETRY_AFTER = {"description": "Seconds.", "required": True, "schema": {"type": "string", "pattern": "^[1-9][0-9]*$"}}
_REASON = {"description": "Why, in one word.", "required": True, "schema": {"type": "string", "pattern": "^[a-z_]+$"}}
_LIMITS = {
    "RateLimit": {"description": "What the key has left of its quota and its rate.", "schema": _TEXT},
    "RateLimit-Policy": {"description": "The key's quota and rate.", "schema": _TEXT},
}
_DEVICE = "What a device tells of itself, as l2h.EdgeClient(report=True) sends it: JSON of at most 512 bytes."
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


def document(model: ServedModel, max_body: int, keys: bool) -> Schema:
    """Return the description; ``max_body`` is in bytes, ``keys`` says whether requests need one."""
    paths: Schema = {
        "/v2": {"get": _operation("The server.", _ref("Server"))},
        "/v2/health/live": {"get": _operation("Whether the server runs.", _object({"live": _TRUE}))},
        "/v2/health/ready": {"get": _operation("Whether it can answer requests.", _ref("Ready"), 503)},
        "/v2/repository/index": {"post": _operation("The models.", _array(_ref("Entry")))},
        "/metrics": {"get": _metrics(keys)},
        "/openapi.json": {"get": _operation("This description.", _OBJECT)},
        PATH: {"post": _hear(keys)},
    }
    for version in (False, True):
        base = "/v2/models/{name}" + ("/versions/{version}" if version else "")
        where = [_path("name", model.name)] + ([_path("version", model.version)] if version else [])
        actions = {
            "": {"get": _operation("What the model takes and gives.", _ref("Model"), 404)},
            "/ready": {"get": _operation("Whether the model can answer.", _ref("ModelReady"), 404, 503)},
            "/config": {"get": _operation("The model's settings, in Triton's words.", _OBJECT, 404)},
            "/infer": {"post": _infer(max_body, keys)},
        }
        paths |= {base + end: {"parameters": where, **action} for end, action in actions.items()}
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


def _operation(summary: str, schema: Schema, *errors: int) -> Schema:
    return {"summary": summary, "responses": _responses(summary, {"application/json": {"schema": schema}}, *errors)}


def _metrics(keys: bool) -> Schema:
    text = {"text/plain": {"schema": _TEXT}}
    responses = _responses("Prometheus's text format.", text, *((401, 403) if keys else ()))
    return {"summary": "Numbers for Prometheus.", "responses": responses, **_security(keys)}


def _hear(keys: bool) -> Schema:
    errors = (400, 503, *((401, 403) if keys else ()))
    operation = _operation(
        "News of a device that has nothing to ask.", _object({"taken": {"type": "boolean"}}), *errors
    )
    told = {"description": "Where a later start of the device is known: that one.", "schema": _TEXT}
    operation["responses"]["200"]["headers"][HEADER] = told
    return {**operation, "parameters": [_header(HEADER, _DEVICE, _TEXT) | {"required": True}], **_security(keys)}


def _infer(max_body: int, keys: bool) -> Schema:
    codes = [code for code in _ERRORS if keys or code not in (401, 403, 429)]
    answer = {protocol.JSON: {"schema": _ref("Response")}, protocol.BINARY: {}}
    responses = _responses("The scores, one row per input.", answer, *codes)
    responses["200"]["headers"]["L2H-Charged"] = {
        "description": "1 where the request was charged, 0 for a repeat.",
        "schema": {"enum": ["0", "1"]},
    }
    if keys:
        for code in ("200", "429"):
            responses[code]["headers"] |= _LIMITS
    length = {"type": "string", "pattern": "^[0-9]{1,12}$"}
    return {
        "summary": "Scores for inputs.",
        "description": f"At most {max_body} bytes; `Content-Encoding` gzip or deflate is read. A binary body is the "
        f"JSON part, `{protocol.LENGTH_HEADER}` bytes long, with `parameters.binary_data_size` in the place of `data`, "
        "then the values.",
        "parameters": [
            _header("X-Request-Id", "Echoed; one is made where it is missing.", _TEXT),
            _header("Idempotency-Key", "The same for the repeats of one request: they are charged once.", _ID),
            _header("traceparent", "The trace that the request is a part of, by W3C Trace Context.", _TEXT),
            _header(protocol.LENGTH_HEADER, "Bytes of the JSON part of a binary body.", length),
            _header(HEADER, _DEVICE, _TEXT),
        ],
        "requestBody": {"required": True, "content": {protocol.JSON: {"schema": _ref("Request")}, protocol.BINARY: {}}},
        "responses": responses,
        **_security(keys),
    }


def _schemas(model: ServedModel) -> Schema:
    numbers: Schema = {"type": "number"} if model.dtype.kind == "f" else {"type": "integer"}
    if model.datatype == "UINT8":
        numbers |= {"minimum": 0, "maximum": 255}
    largest = {"type": "integer", "minimum": 1, "maximum": model.most}
    shape = [largest, *({"const": edge} for edge in model.shape)]
    described = _tensor({"name": _TEXT, "datatype": _TEXT, "shape": {"type": "array"}})
    given = {
        "name": {"const": INPUT},
        "datatype": {"const": model.datatype},
        "shape": {"type": "array", "prefixItems": shape, "minItems": len(shape), "maxItems": len(shape)},
        "parameters": {**_OBJECT, "properties": {"binary_data_size": {"type": "integer"}}},
        "data": _array(numbers, minItems=model.elements, maxItems=model.most * model.elements),
    }
    outputs = [_output(OUTPUT, "FP32", {"type": "number"})]
    if model.labels.values is not None:
        outputs.append(_output(LABEL, model.label_type, {"enum": list(model.labels.values)}))
    wanted = _object(
        {
            "name": {"const": OUTPUT} if len(model.outputs) == 1 else {"enum": model.outputs},
            "parameters": _options("binary_data"),
        },
        "name",
    )
    return {
        "Error": _object({"error": _TEXT}),
        "Server": _object({"name": _TEXT, "version": _TEXT, "extensions": _array(_TEXT)}),
        "Entry": _object(
            {"name": _TEXT, "version": _TEXT, "state": {"enum": ["READY", "UNAVAILABLE"]}, "reason": _TEXT}
        ),
        "Ready": _object({"ready": _TRUE, "degraded": _TEXT}, "ready"),
        "ModelReady": _object({"name": {"const": model.name}, "ready": _TRUE, "degraded": _TEXT}, "name", "ready"),
        "Model": _object(
            {
                "name": {"const": model.name},
                "versions": _array(_TEXT),
                "platform": _TEXT,
                "inputs": _array(described),
                "outputs": _array(described),
                "parameters": _OBJECT,
            }
        ),
        "Request": _object(
            {
                "id": _TEXT,
                "parameters": _options("binary_data_output"),
                "inputs": _array(_tensor(given, "data"), minItems=1, maxItems=1),
                "outputs": _array(wanted),
            },
            "inputs",
        ),
        "Response": _object(
            {
                "model_name": {"const": model.name},
                "model_version": _TEXT,
                "id": _TEXT,
                "outputs": _array(outputs[0] if len(outputs) == 1 else {"anyOf": outputs}),
            },
            *("model_name", "model_version", "outputs"),
        ),
    }


def _object(properties: Schema, *required: str) -> Schema:
    """An object; without names, all of its properties are required."""
    return {"type": "object", "required": list(required or properties), "properties": properties}


def _tensor(properties: Schema, *more: str) -> Schema:
    return _object(properties, "name", "datatype", "shape", *more)


def _output(name: str, datatype: str, values: Schema) -> Schema:
    shape = _array({"type": "integer"})
    return _tensor({"name": {"const": name}, "datatype": {"const": datatype}, "shape": shape, "data": _array(values)})


def _array(items: Schema, **bounds: int) -> Schema:
    return {"type": "array", **bounds, "items": items}


def _options(name: str) -> Schema:
    return {"type": "object", "properties": {name: {"type": "boolean"}}, "additionalProperties": False}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _security(keys: bool) -> Schema:
    return {"security": [{"key": []}]} if keys else {}


def _responses(description: str, content: Schema, *errors: int) -> Schema:
    good = {"description": description, "headers": {"X-Request-Id": _REQUEST_ID}, "content": content}
    return {"200": good, **{str(code): _error(code) for code in errors}}


def _error(code: int) -> Schema:
    limited = {"Retry-After": _RETRY_AFTER} if code in (429, 503) else {}
    content = {"application/json": {"schema": _ref("Error")}}
    return {
        "description": _ERRORS[code],
        "headers": {"X-Request-Id": _REQUEST_ID, "L2H-Reason": _REASON, **limited},
        "content": content,
    }


def _path(name: str, value: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": _TEXT, "example": value}


def _header(name: str, text: str, schema: Schema) -> Schema:
    return {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
