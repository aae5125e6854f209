"""Request bodies that hold a spec, as JSON or YAML."""

import json
from collections.abc import Mapping
from typing import Any

from service.api.openapi import SPEC
from service.core.errors import MalformedRequestError
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
        MalformedRequestError: It is neither.
    """
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    try:
        text = body.decode()
        if kind in _YAML_TYPES:
            return load_yaml(text)
        return json.loads(text, object_pairs_hook=_reject_duplicate_keys)
    except SpecError as error:
        raise MalformedRequestError(str(error), code="invalid_yaml") from None
    except UnicodeDecodeError:
        raise MalformedRequestError("the body is not UTF-8 text", code="invalid_encoding") from None
    except (ValueError, RecursionError) as error:
        raise MalformedRequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("duplicate key in an object")
    return document
