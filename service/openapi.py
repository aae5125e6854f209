"""What every route can answer besides its own answer, said once for all of them, with an example of each."""

from typing import Any

from trainyard.contract.resources import ErrorEnvelope

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
