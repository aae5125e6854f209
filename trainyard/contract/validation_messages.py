"""Messages for pydantic's validation errors that state the valid values, and the patterns of shared fields."""

import re
from collections.abc import Mapping
from typing import Any

RANK_PATTERN = r"^(launch|[0-9]{1,6})$"
USER_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$"
FIELD_PATH_PATTERN = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"
DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"
FILE_ID_PATTERN = r"^file_[0-9a-z]{26}$"
VARIABLE_PATTERN = r"^[A-Z_][A-Z0-9_]*$"
MAX_VARIABLE_NAME = 128
SLURM_ID_PATTERN = r"^[1-9][0-9]{0,9}$"
SCHEDULER_ID_PATTERN = r"^[0-9]{1,20}$"
NODE_LIST_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._,\[\]-]{0,999}$"
EVENT_TYPE_PATTERN = r"^[a-z_]{1,48}$"
NODE_PATH_PATTERN = r"^/[^\x00-\x1f\x7f:]*$"
CONDA_PATTERN = r"^(/[^\x00-\x1f\x7f:]*|[A-Za-z0-9_][A-Za-z0-9_.+-]*)$"
MODULE_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.+/@=~-]*$"
SHELL_LINE_PATTERN = r"^[^\x00-\x08\x0a-\x1f\x7f]+$"
CREDENTIAL_PATTERN = r"^MUNGE:[A-Za-z0-9+/=]+:$"
MODEL_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
PREREQUISITE_PATTERN = r"^job_[0-9a-z]{26}(:ended)?$"
ALIAS_PATTERN = r"^[a-z][a-z0-9_-]{0,49}$"

PATTERN_MESSAGES = {
    MODEL_NAME_PATTERN: "must start with a letter or digit and contain only letters, digits and `. _ -`, at most 100",
    ALIAS_PATTERN: "must start with a lowercase letter and contain only those, digits and `_ -`, at most 50",
    CREDENTIAL_PATTERN: "must be a credential that `munge` has made: `MUNGE:...:`",
    RANK_PATTERN: "must be a rank, such as 0, or `launch` for the launcher",
    USER_NAME_PATTERN: "must start with a letter or digit and contain only letters, digits and `. _ @ + -`",
    FIELD_PATH_PATTERN: "must be the path of a field, such as `optimizer.lr`",
    FILE_ID_PATTERN: "must be the id of an uploaded file, `file_...`",
    DIGEST_PATTERN: "must be `sha256:` and 64 hexadecimal digits",
    VARIABLE_PATTERN: "must be an uppercase name, such as `HF_TOKEN` or `APP_NAME`",
    SLURM_ID_PATTERN: "must be a Slurm job id",
    SCHEDULER_ID_PATTERN: "must be a job id of the scheduler",
    NODE_LIST_PATTERN: "must be a Slurm node list, such as `node[01-04],gpu7`",
    NODE_PATH_PATTERN: "must be an absolute path on the nodes, without colons and control characters",
    CONDA_PATTERN: "must be the name of a conda environment, or the absolute path of its folder",
    MODULE_PATTERN: "must be the name of an environment module, such as `cuda/12.4`",
    SHELL_LINE_PATTERN: "must be one line of bash; make each line an item of the list",
    PREREQUISITE_PATTERN: "must be the id of a job, `job_...`, or `job_...:ended` for any end",
    EVENT_TYPE_PATTERN: "must contain only lowercase letters and underscores, at most 48",
}
"""Messages for strings that do not match a pattern. Patterns that only restrict characters need no message."""

_TIME = "must be a time with a time zone, such as 2026-01-01T00:00:00Z"
_LIST = 'must be a list, such as `["a", "b"]`'
_TYPE_MESSAGES = {
    "missing": "is required",
    "model_type": "must be a section of fields",
    "model_attributes_type": "must be a section of fields",
    "dataclass_type": "must be a section of fields",
    "tuple_type": _LIST,
    "list_type": _LIST,
    "dict_type": "must be a mapping of fields",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "string_type": "must be a string; write it in quotes",
    **dict.fromkeys(("timezone_aware", "datetime_parsing", "datetime_from_date_parsing", "datetime_type"), _TIME),
}
"""Messages by type of error, where pydantic's own message does not state the valid values."""

_MESSAGE_PREFIX = re.compile(r"^(Value error, |(Input|String|List|Tuple|Dictionary|Value) should )")


def describe_error(finding: Mapping[str, Any]) -> str:
    """Return the message for an item of `ValidationError.errors()`."""
    kind = finding["type"]
    if kind == "string_pattern_mismatch":
        pattern = finding["ctx"]["pattern"]
        return PATTERN_MESSAGES.get(pattern) or _describe_mismatch(pattern, finding.get("input"))
    if kind in _TYPE_MESSAGES:
        return _TYPE_MESSAGES[kind]
    message = _MESSAGE_PREFIX.sub(lambda match: "must " if match[2] else "", finding["msg"])
    return (message[:1].lower() + message[1:]).replace(" after validation", "")


_CHARACTERS = re.compile(r"\^\[(\^?)((?:\\.|[^\]])+)\](?:\{(\d+),(\d+)\}|[+*])\$")
"""A pattern of a single class of characters, maybe with limits of the length."""


def _describe_mismatch(pattern: str, text: object) -> str:
    """Describe how a text violates a pattern: the invalid character or length, and the allowed values."""
    message = "contains a character that is not allowed"
    parts = _CHARACTERS.fullmatch(pattern)
    if parts is None or not isinstance(text, str):
        return message
    excludes, characters, low, high = parts.groups()
    wrong = next((each for each in text if not re.fullmatch(f"[{excludes}{characters}]", each)), None)
    if wrong is None:
        return "must not be empty" if not text else f"must have {low} to {high} characters, not {len(text)}"
    shown = f"`{wrong}`" if wrong.isprintable() else f"U+{ord(wrong):04X}"
    allowed = " ".join(part.removeprefix("\\") for part in re.findall(r"\\.|.-.|.", characters))
    return f"{message}: {shown}" + ("" if excludes else f"; allowed are {allowed}")
