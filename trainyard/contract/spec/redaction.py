"""Values that by their names are secrets, kept out of every answer. Pure."""

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "[hidden]"

_NAMES = re.compile(r"token(?!iz)|passw|secret|credential|api_?key|access_?key|private_?key|auth$", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a variable or label of this name holds what should not be shown."""
    return _NAMES.search(name) is not None


def redact_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A stored spec whose variables and metadata of such names are hidden."""
    shown = dict(spec)
    environment = spec.get("environment")
    if isinstance(environment, Mapping) and isinstance(environment.get("variables"), Mapping):
        shown["environment"] = {**environment, "variables": redact(environment["variables"])}
    if isinstance(spec.get("metadata"), Mapping):
        shown["metadata"] = redact(spec["metadata"])
    return shown


def redact(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: REDACTED if is_secret(name) else value for name, value in values.items()}
