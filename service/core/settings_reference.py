"""Generate the Markdown reference of the settings: `python -m service.core.settings_reference`."""

import re
import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from service.core.settings import Settings

_HEAD = """# Settings of the service

`make docs` generates this page from `service/core/settings.py`; do not edit it. Each setting is an environment
variable of `trainyard serve`, and an invalid value ends the start with a message. `trainyard doctor` checks what the
values refer to.

| variable | default | description |
|---|---|---|"""
_OF_MACHINE = frozenset({"local_slots"})
"""Settings whose defaults depend on the machine; their descriptions state them."""


def reference() -> str:
    """Return the whole page."""
    prefix = str(Settings.model_config["env_prefix"])
    rows = [_row(f"{prefix}{name}".upper(), name, field) for name, field in _fields()]
    return "\n".join([_HEAD, *rows]) + "\n"


def _fields() -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields of the class itself before the fields of its bases."""
    own = Settings.__annotations__.keys()
    yield from sorted(Settings.model_fields.items(), key=lambda item: item[0] not in own)


def _row(variable: str, name: str, field: FieldInfo) -> str:
    text = " ".join((field.description or "").split())
    if choices := _choices(field.annotation):
        listed = " or ".join(f"`{choice}`" for choice in choices if choice)
        text = f"{text} One of {listed}.".strip()
    return f"| `{variable}` | {_default(name, field)} | {_escape(text)} |"


def _choices(annotation: Any) -> tuple[str, ...]:
    """Return the values of a setting that has a list of them, none for others."""
    values = annotation.__value__ if hasattr(annotation, "__value__") else annotation
    return get_args(values) if get_origin(values) is Literal else ()


def _default(name: str, field: FieldInfo) -> str:
    value = field.default
    if name in _OF_MACHINE or field.default_factory is not None or value in (None, "", ()):
        return ""
    if isinstance(value, tuple):
        value = ",".join(value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _escape(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


if __name__ == "__main__":
    sys.stdout.write(reference())
