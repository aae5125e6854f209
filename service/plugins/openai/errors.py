"""Errors in the form that OpenAI's client reads, and with the statuses that select its exception classes."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from service.core.errors import AuthenticationError, InvalidRequestError, ServiceError
from trainyard.contract.problems import Problem

PREFIX = "/openai/v1/"
"""The paths of this API."""

_STATUSES: Mapping[int, int] = {409: 400, 422: 400}
"""Statuses that OpenAI's API does not use. Its client would repeat a request after 409."""
_INVALID_REQUESTS = frozenset({401, 403, 404, 409})
"""Statuses whose errors have a type of their own in `/v1`, and `invalid_request_error` in OpenAI's API."""
_FIELDS: Mapping[str, str] = {
    "data.id": "training_file",
    "data.digest": "training_file",
    "data.format": "training_file",
    "data.eval_id": "validation_file",
    "data.eval_digest": "validation_file",
    "batch.size": "hyperparameters.batch_size",
    "optimizer.lr": "hyperparameters.learning_rate_multiplier",
    "epochs": "hyperparameters.n_epochs",
    "preference.beta": "hyperparameters.beta",
}
"""The parameters of OpenAI's API that became fields of a spec."""
_WITHOUT_PREFIX = re.compile(
    r"(/openai|/v1)?/(fine_tuning|chat|completions|responses|embeddings|models|files|uploads)(/.*)?"
)
_TYPES = frozenset({"int", "float"})
_FILES = {"data.id: ": "training_file: ", "data.eval_id: ": "validation_file: "}
_OPTION = re.compile(r"\bdata\.[a-z_]+")


_OF_REQUESTS = frozenset({*_FIELDS, "name", "seed"})
"""Fields of a spec whose problems a request can avoid."""


class ModelConfigurationError(ServiceError):
    """The administrator's entry about a model is wrong. The client would repeat a request after 503."""

    status: ClassVar[int] = 503
    code = "model_configuration"
    headers: Mapping[str, str] = MappingProxyType({"x-should-retry": "false"})


def administrators_problems(problems: Sequence[Problem]) -> list[Problem]:
    """Return those problems of a job's spec that are of the model's entry, and not of the request."""
    return [one for one in problems if one.param not in _OF_REQUESTS and not one.param.startswith("metadata")]


def invalid_after(after: str, kind: str) -> InvalidRequestError:
    """Return the error about a position in a list; `kind`: the kind of its entries."""
    return InvalidRequestError(f"{after[:80]!r} is not the id of a {kind} of this list", param="after")


def check_after(after: str | None, kind: Literal["file", "job"]) -> None:
    """Check the position in a list whose ids sort by time: the entry with the id may have been deleted since.

    Raises:
        InvalidRequestError: It is no id of this kind.
    """
    if after is not None and not re.fullmatch(rf"{kind}_[0-9a-z]{{26}}", after, re.ASCII):
        raise invalid_after(after, kind)


def missing_prefix_hint(path: str) -> str:
    """Return a hint for an unknown path that OpenAI's client requests with another `base_url`; mostly empty."""
    if _WITHOUT_PREFIX.fullmatch(path):
        return f"; for OpenAI's client, `base_url` must end with {PREFIX.rstrip('/')}"
    return ""


def openai_error(error: ServiceError) -> tuple[int, Mapping[str, Any]]:
    """Return the status and the document of an error. The client prints the message alone, so it has the parameter."""
    param = None if error.param is None else _FIELDS.get(error.param, _without_types(error.param))
    message = error.message
    for field, name in _FIELDS.items():
        message = message.replace(f"`{field}`", f"`{name}`")
    if param and isinstance(error, InvalidRequestError) and param not in message:
        message = f"{param}: {message}"
    updated: dict[str, str | None] = {"param": param, "message": message}
    if error.status in _INVALID_REQUESTS:
        updated["type"] = InvalidRequestError.type
    if error.status == AuthenticationError.status:
        updated["code"] = "invalid_api_key"
    body = error.envelope().error.model_copy(update=updated)
    return _STATUSES.get(error.status, error.status), {"error": body.model_dump(mode="json")}


def in_openai_terms(message: str) -> str:
    """Return a worker's message with the parameters of OpenAI's API instead of fields of a spec."""
    for field, param in _FILES.items():
        message = message.replace(field, param)
    if _OPTION.search(message):
        message = f"{message.rstrip('.')}. An administrator sets fields of `data` in the model's `spec` in models.yaml."
    return message


def _without_types(param: str) -> str:
    """Return the path of a field without the names of types that pydantic adds for a field with several."""
    named = ".".join(part for part in param.split(".") if part.isidentifier() and part not in _TYPES)
    return named or param
