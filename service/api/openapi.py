"""The OpenAPI document: common errors, security, headers, examples, the schema of specs; and its route."""

import re
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from service.api.middleware.authentication import SIGN_IN_PATHS
from service.api.openapi_examples import add_examples
from trainyard.contract.base import SPEC_FORMAT
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
