"""Request bodies that hold a spec, as JSON or YAML."""

from collections.abc import Mapping
from typing import Any

from service.api.json_body import parse_body
from service.api.openapi import SPEC
from service.core.errors import MalformedRequestError
from trainyard.contract.bounds import MAX_SPEC_VALUES
from trainyard.contract.problems import SpecError
from trainyard.contract.spec.yaml_loader import load_yaml

_YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
SPEC_BODY = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": SPEC} for kind in ("application/json", "application/yaml")},
    },
}
"""The OpenAPI description of such a body."""


def read_document(body: bytes, headers: Mapping[str, str]) -> Any:
    """Return the document in a body: YAML if the content type is YAML, else JSON.

    Raises:
        MalformedRequestError: It is neither, or exceeds a bound.
    """
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind not in _YAML_TYPES:
        return parse_body(body, max_values=MAX_SPEC_VALUES, unique_keys=True)
    try:
        return load_yaml(body.decode(), max_values=MAX_SPEC_VALUES)
    except UnicodeDecodeError:
        raise MalformedRequestError("the body is not UTF-8 text", code="invalid_encoding") from None
    except SpecError as error:
        raise MalformedRequestError(str(error), code="invalid_yaml") from None
