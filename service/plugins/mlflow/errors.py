"""Errors in the form that MLflow's client reads: `{"error_code", "message"}`."""

from collections.abc import Mapping

from service.core.errors import ServiceError

PREFIX = "/mlflow/"
"""The paths of this API."""
UNKNOWN_ENDPOINT = "endpoint_not_found"
"""The code of an error about a route that this API does not have; the client then tries older routes."""

_CODES: Mapping[int, str] = {
    400: "INVALID_PARAMETER_VALUE",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "RESOURCE_DOES_NOT_EXIST",
    409: "INVALID_STATE",
    413: "BAD_REQUEST",
    429: "REQUEST_LIMIT_EXCEEDED",
    431: "BAD_REQUEST",
    503: "TEMPORARILY_UNAVAILABLE",
}


def mlflow_error(error: ServiceError) -> tuple[int, Mapping[str, str]]:
    """Return the status and the body of an error. MLflow has no 422: an invalid value is 400."""
    status = 400 if error.status == 422 else error.status
    if error.code == UNKNOWN_ENDPOINT:
        return status, {"error_code": "ENDPOINT_NOT_FOUND", "message": error.message}
    fallback = "INTERNAL_ERROR" if status >= 500 else "BAD_REQUEST"
    message = f"{error.param}: {error.message}" if error.param else error.message
    return status, {"error_code": _CODES.get(status, fallback), "message": message}
