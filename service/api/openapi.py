"""The OpenAPI document: common errors, security, headers, examples, the schema of specs; and its route."""

import re
import threading
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from service.api.middleware.authentication import SIGN_IN_PATHS
from trainyard.contract.base import EXAMPLE_ATTEMPT, EXAMPLE_DIGEST, EXAMPLE_JOB, EXAMPLE_TIME, SPEC_FORMAT
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.pages import ErrorEnvelope
from trainyard.contract.wire.reports import MetricsBatch

_EXAMPLES: dict[int, tuple[str, str, str, str | None, str]] = {
    400: ("The body cannot be parsed.", "invalid_request_error", "invalid_json", None, "the body is not valid JSON"),
    401: (
        "The token is missing or invalid.",
        "authentication_error",
        "invalid_token",
        None,
        "missing, unknown, expired or revoked token",
    ),
    403: ("The token lacks the permission.", "permission_error", "forbidden", None, "a viewer can only read"),
    404: ("The resource does not exist.", "not_found_error", "job_not_found", "job_id", "there is no job 'job_x'"),
    408: (
        "The body is sent too slowly.",
        "invalid_request_error",
        "request_timeout",
        None,
        "the body is sent too slowly",
    ),
    409: (
        "The request conflicts with the current state.",
        "conflict_error",
        "job_finished",
        None,
        "the job has already succeeded",
    ),
    413: ("The body is too large.", "invalid_request_error", "body_too_large", None, "at most 1048576 bytes"),
    422: ("A value is invalid.", "invalid_request_error", "invalid_value", "limit", "must be at most 200"),
    431: (
        "The URL or the headers are too large.",
        "invalid_request_error",
        "head_too_large",
        "Cookie",
        "the Cookie header is larger than 4096 bytes",
    ),
    429: ("Too many requests.", "rate_limit_error", "rate_limited", None, "rate limit exceeded; retry after 2 s"),
    503: ("A dependency of the service is unavailable.", "server_error", "database", None, "database unavailable"),
}


def common_errors() -> dict[int | str, dict[str, Any]]:
    """Return the error responses of all routes, for `FastAPI(responses=...)`."""
    return {status: _response(*texts) for status, texts in _EXAMPLES.items()}


def _response(description: str, type_: str, code: str, param: str | None, message: str) -> dict[str, Any]:
    example = {"error": {"message": message, "type": type_, "param": param, "code": code}}
    retry = " Retry after `Retry-After` seconds." if type_ in ("server_error", "rate_limit_error") else ""
    return {
        "model": ErrorEnvelope,
        "description": description + retry,
        "content": {"application/json": {"example": example}},
    }


_MAX_SUMMARY = 72
"""Characters of an operation's summary, if its docstring can be cut there."""
_PUBLIC = frozenset({"/livez", "/readyz", "/metrics"})
"""Routes without a token."""


_RANGE = {"Content-Range": "Returned range and size of the file."}
CACHE_HEADERS = {
    "ETag": "Version of the file, for `If-Range` and `If-None-Match`.",
    "Last-Modified": "Time of the last change.",
}
_STATUS_HEADERS = {
    "206": _RANGE | CACHE_HEADERS,
    "304": CACHE_HEADERS,
    "416": _RANGE,
    "401": {"WWW-Authenticate": "`Bearer`."},
    "429": {"Retry-After": "Seconds to wait."},
    "503": {"Retry-After": "Seconds to wait."},
}
_RATE = {
    "RateLimit-Limit": "Maximum burst of requests of the token.",
    "RateLimit-Remaining": "Remaining requests.",
    "RateLimit-Reset": "Seconds until the limit is fully restored.",
}


def binary_body(kind: str) -> dict[str, Any]:
    """Return the OpenAPI description of a body of any bytes."""
    schema = {"type": "string", "format": "binary"}
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema}}}}


def described_headers(descriptions: Mapping[str, str]) -> dict[str, Any]:
    """Return the OpenAPI description of response headers."""
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in descriptions.items()}


def _headers(status: str, *, private: bool, limited: bool) -> dict[str, Any]:
    """Return the headers of every response with this status: the request id, rate limits and the status's own headers.

    Args:
        private: the route requires a token, and its answers must not be stored.
    """
    descriptions = {
        "X-Request-ID": "Id of this request in the service's log.",
        "X-Trainyard-API": "Version of the API. An answer without it is of a proxy or of another program.",
    } | (_RATE if limited else {})
    descriptions |= {"Cache-Control": "`no-store`: the answer is private."} if private else {}
    return described_headers(descriptions | _STATUS_HEADERS.get(status, {}))


SPEC = {"$ref": "#/components/schemas/TrainingSpec"}
"""The schema of a spec, for routes that parse it themselves in order to report better errors."""
METRICS_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/MetricsBatch"}}},
    }
}
"""The body of the metrics route, which FastAPI does not parse."""


def customize_openapi(document: dict[str, Any]) -> dict[str, Any]:
    """Add the schema of specs, examples, security schemes and response headers, and correct the parameters."""
    _add_bodies(document)
    add_examples(document)
    schemes = document["components"].setdefault("securitySchemes", {})
    schemes["token"] = {"type": "http", "scheme": "bearer", "description": "An API token."}
    schemes["workerToken"] = {"type": "http", "scheme": "bearer", "description": "An attempt token."}
    for path, operations in document["paths"].items():
        scheme = "workerToken" if path.startswith("/v1/attempts/") else "token"
        for operation in operations.values():
            operation["summary"] = _summary(operation["description"])
            operation["security"] = [] if path in _PUBLIC or path in SIGN_IN_PATHS else [{scheme: []}]
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
            for status, answer in operation["responses"].items():
                common = _headers(status, private=path not in _PUBLIC, limited=path != "/livez")
                answer["headers"] = common | answer.get("headers", {})
    return document


def _add_bodies(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for model in (TrainingSpec, MetricsBatch):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs"))
        schemas[model.__name__] = schema
    for fields in [schema.get("properties", {}) for schema in schemas.values()]:
        for name, field in fields.items():
            if field.get("format") == SPEC_FORMAT:
                fields[name] = {"description": field["description"], **SPEC}


def _summary(description: str) -> str:
    """Return the first clause of a route's docstring, without the parts after a comma that would make it long."""
    clause = re.split(r"[.;:](?:\s|$)", " ".join(description.split()), maxsplit=1)[0]
    while len(clause) > _MAX_SUMMARY and ", " in clause:
        clause = clause.rpartition(", ")[0]
    return clause


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from an optional parameter's schema: a query parameter or header cannot be null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    kind: dict[str, Any] = kinds[0]
    return kind | {key: value for key, value in schema.items() if key != "anyOf"}


def methods_of(document: Mapping[str, Any], path: str) -> list[str]:
    """Return the methods of all routes that match a path."""
    paths = document["paths"]
    matches = (
        [paths[path]] if path in paths else [verbs for name, verbs in paths.items() if _pattern(name).fullmatch(path)]
    )
    return sorted({verb.upper() for verbs in matches for verb in verbs})


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """Return a pattern for a path template. Only the parameter `path` may contain slashes."""
    parts = re.split(r"(\{\w+\})", template)
    patterns = {"{path}": ".+"}
    return re.compile("".join(patterns.get(p, "[^/]+") if p.startswith("{") else re.escape(p) for p in parts))


def add_openapi_route(app: FastAPI) -> None:
    """Add the route. FastAPI's own renders the document, of almost a megabyte, on the event loop for each request."""
    app.state.openapi_document = RenderedDocument(lambda: app.openapi())
    app.add_api_route("/openapi.json", get_document, name="openapi", include_in_schema=False)


def get_document(request: Request) -> Response:
    """Return the document. A function of the module, since FastAPI caches each route's function for good."""
    document: RenderedDocument = request.app.state.openapi_document
    return Response(document.get(), media_type="application/json")


class RenderedDocument:
    """A JSON document that is rendered once; concurrent callers wait for it."""

    def __init__(self, make: Callable[[], dict[str, Any]]):
        self._make = make
        self._lock = threading.Lock()
        self._body: bytes | None = None

    def get(self) -> bytes:
        with self._lock:
            if self._body is None:
                self._body = bytes(JSONResponse(self._make()).body)
            return self._body


_BY_NAME: Mapping[str, Any] = MappingProxyType(
    {
        "created_by": "anna",
        "digest": EXAMPLE_DIGEST,
        "id": EXAMPLE_ATTEMPT,
        "job_id": EXAMPLE_JOB,
        "key": "train/loss",
        "message": "warmed up",
        "name": "anna",
        "scheduler": "slurm",
        "size_bytes": 481_000,
        "step": 200,
        "value": 0.5,
        "world_size": 2,
    }
)
"""Values of required fields."""

Schema = dict[str, Any]


def add_examples(document: Schema) -> None:
    """Complete the examples of models, and add an example to each JSON body, in its schema or else beside it."""
    schemas: Schema = document["components"]["schemas"]
    described = {name for name, schema in schemas.items() if _given(schema)}
    for operation in (one for verbs in document["paths"].values() for one in verbs.values()):
        answers = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
        for body in (operation.get("requestBody", {}), *answers):
            content = body.get("content", {}).get("application/json", {"schema": {}})
            if "properties" in content["schema"]:
                content["example"] = example_of(content["schema"], schemas)
            described |= _names([content["schema"], *content["schema"].get("anyOf", ())])
    for name in described:
        schemas[name]["example"] = example_of(schemas[name], schemas)


def _names(schemas: list[Schema]) -> set[str]:
    return {schema["$ref"].rpartition("/")[2] for schema in schemas if "$ref" in schema}


def example_of(schema: Schema, schemas: Schema, name: str = "") -> Any:
    """Return a value of the schema, or None if it cannot be derived.

    Args:
        name: The field that has the value.
    """
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].rpartition("/")[2]], schemas, name)
    if "properties" in schema:
        return _object(schema, schemas)
    if "examples" in schema:
        return schema["examples"][0]
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0], schemas, name)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    match schema.get("type"):
        case "array":
            item = example_of(schema.get("items", {}), schemas, name)
            return [] if item is None else [item]
        case "object":
            return example_of(schemas["TrainingSpec"], schemas) if name == "spec" else {}
        case "string" if name == "time" or name.endswith("_at"):
            return EXAMPLE_TIME
        case "boolean":
            return True
        case "integer" | "number":
            return _BY_NAME.get(name, 1)
    return _BY_NAME.get(name)


def _object(schema: Schema, schemas: Schema) -> Schema:
    """Return an object with its required fields and all that have an example; a page has the id of its item."""
    given = _given(schema)
    required = {name for name, field in schema["properties"].items() if "const" in field}
    made = {
        name: _complete(given[name], field, schemas) if name in given else example_of(field, schemas, name)
        for name, field in schema["properties"].items()
        if name in {*required, *schema.get("required", ()), *given}
    }
    if {"first_id", "last_id"} <= schema["properties"].keys() and made["data"]:
        end = made["data"][0].get("id")
        made |= {"first_id": end, "last_id": end, "has_more": False}
    return made


def _given(schema: Schema) -> Schema:
    """Return the values that the schema itself has: of its own example, or of a field."""
    fields = {name: field["examples"][0] for name, field in schema.get("properties", {}).items() if "examples" in field}
    own: Schema = schema.get("example", {})
    return fields | own


def _complete(value: Any, schema: Schema, schemas: Schema) -> Any:
    """Return a value of an own example, in which each object has the rest of the example of its schema."""
    alternatives = [schema, *schema.get("anyOf", ())]
    alternatives += [schemas[name] for name in _names(alternatives)]
    if isinstance(value, list):
        items: Schema = next((one["items"] for one in alternatives if "items" in one), {})
        return [_complete(item, items, schemas) for item in value]
    named = next((one for one in alternatives if "properties" in one), None)
    if not isinstance(value, dict) or named is None:
        return value
    return _object({**named, "example": {**named.get("example", {}), **value}}, schemas)
