"""What every route can answer besides its own answer, said once for all of them, with an example of each."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from service.api.openapi_descriptions import PARAMETERS, headers
from service.api.openapi_examples import ANSWERS, BODIES, EXAMPLES
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.pages import ErrorEnvelope

_EXAMPLES: dict[int, tuple[str, str, str, str | None, str]] = {
    400: ("The body cannot be read.", "invalid_request_error", "invalid_json", None, "the body is not valid JSON"),
    401: ("No token, or none that is good.", "authentication_error", "invalid_token", None, "a valid token is needed"),
    403: ("A good token, for other things.", "permission_error", "forbidden", None, "a viewer's token can only read"),
    404: ("There is no such thing.", "not_found_error", "job_not_found", "job_id", "there is no job 'job_x'"),
    408: ("The body comes too slowly.", "invalid_request_error", "request_timeout", None, "the body comes too slowly"),
    409: ("Not now.", "conflict_error", "job_finished", None, "the job has succeeded already"),
    413: ("More bytes than the route takes.", "invalid_request_error", "body_too_large", None, "at most 1048576 bytes"),
    422: ("A value that cannot be.", "invalid_request_error", "invalid_value", "limit", "must be at most 200"),
    429: ("More than the service takes at once.", "rate_limit_error", "rate_limited", None, "come again in 2 s"),
    503: ("Something behind the service does not answer.", "server_error", "database", None, "try again"),
}


def common_errors() -> dict[int | str, dict[str, Any]]:
    """For `FastAPI(responses=...)`."""
    return {status: _response(*words) for status, words in _EXAMPLES.items()}


def _response(description: str, type_: str, code: str, param: str | None, message: str) -> dict[str, Any]:
    example = {"error": {"message": message, "type": type_, "param": param, "code": code}}
    again = " Send it again after `Retry-After` seconds." if type_ in ("server_error", "rate_limit_error") else ""
    return {
        "model": ErrorEnvelope,
        "description": description + again,
        "content": {"application/json": {"example": example}},
    }


_OPEN = frozenset({"/livez", "/readyz", "/metrics"})
"""Routes without a token."""


SPEC = {"$ref": "#/components/schemas/TrainingSpec"}
"""The schema of a spec, for the routes that read it themselves: their errors say more than a framework's."""


def finish(document: dict[str, Any]) -> dict[str, Any]:
    """The framework's document with the schema of a spec, with examples, with how to sign requests, and with
    parameters as they can be sent."""
    _add_spec(document)
    _add_examples(document)
    schemes = document["components"].setdefault("securitySchemes", {})
    schemes["token"] = {"type": "http", "scheme": "bearer", "description": "A person's or program's token."}
    schemes["workerToken"] = {"type": "http", "scheme": "bearer", "description": "The token of one attempt."}
    for path, operations in document["paths"].items():
        scheme = "workerToken" if path.startswith("/v1/attempts/") else "token"
        for operation in operations.values():
            operation["security"] = [] if path in _OPEN else [{scheme: []}]
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
                parameter.setdefault("description", PARAMETERS.get(parameter["name"], ""))
            for status, answer in operation["responses"].items():
                answer["headers"] = headers(operation["operationId"], status, limited=path not in _OPEN)
    return document


def _add_spec(document: dict[str, Any]) -> None:
    schema = TrainingSpec.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = document["components"]["schemas"]
    schemas.update(schema.pop("$defs"))
    schemas["TrainingSpec"] = schema
    spec = schemas["SweepRequest"]["properties"]["spec"]
    schemas["SweepRequest"]["properties"]["spec"] = {"description": spec["description"], **SPEC}


def _add_examples(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for name, example in EXAMPLES.items():
        schemas[name]["example"] = example
    for name, schema in schemas.items():
        if name.startswith("Page_"):
            item = schemas[schema["properties"]["data"]["items"]["$ref"].rpartition("/")[2]]["example"]
            ends = {"first_id": item.get("id"), "last_id": item.get("id")}
            schema["example"] = {"object": "list", "data": [item], **ends, "has_more": False}
    for operation in (one for verbs in document["paths"].values() for one in verbs.values()):
        name = operation["operationId"]
        if name in BODIES:
            operation["requestBody"]["content"]["application/json"]["example"] = BODIES[name]
        for status, answer in operation["responses"].items():
            if name in ANSWERS and status.startswith("2"):
                answer["content"]["application/json"]["example"] = ANSWERS[name]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query or a header cannot be null: what may be left out is of its other type."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    kind: dict[str, Any] = kinds[0]
    return kind | {key: value for key, value in schema.items() if key != "anyOf"}


def methods_of(document: Mapping[str, Any], path: str) -> list[str]:
    """The methods that a path takes."""
    paths = document["paths"]
    found = [paths[path]] if path in paths else [verbs for name, verbs in paths.items() if _form(name).fullmatch(path)]
    return sorted({verb.upper() for verbs in found for verb in verbs})


@cache
def _form(template: str) -> re.Pattern[str]:
    """A path with parameters as an expression. Only `path` holds slashes."""
    parts = re.split(r"(\{\w+\})", template)
    words = {"{path}": ".+"}
    return re.compile("".join(words.get(p, "[^/]+") if p.startswith("{") else re.escape(p) for p in parts))
