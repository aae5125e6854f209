"""Credentials in a spec, which every user who may read the job would see. Pure functions."""

import re
from collections.abc import Iterator
from typing import Any

from trainyard.contract.problems import Problem
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec

_NAME = re.compile(
    r"token(?!iz|s|_?(count|length|budget|limit|id|type|per|rate))|passw|passphrase|secret|credential|(api|access|private|encryption)[_-]?key|auth$",
    re.IGNORECASE,
)
_VARIABLE_NAME = re.compile(rf"{_NAME.pattern}|(^|_)key(_|$)", re.IGNORECASE)
_VALUE = re.compile(
    r"""
      ://[^/\s:@]*:[^/\s@]+@                # a URL with a password
    | -----BEGIN\ [A-Z ]{0,30}PRIVATE\ KEY
    | \b(
        hf_[A-Za-z0-9]{30,} | sk-[A-Za-z0-9_-]{20,} | gh[oprsu]_[A-Za-z0-9]{30,} | github_pat_[A-Za-z0-9_]{30,}
      | (AKIA|ASIA)[A-Z0-9]{16}\b | xox[abeoprs]-[A-Za-z0-9-]{10,} | glpat-[A-Za-z0-9_-]{20,} | AIza[A-Za-z0-9_-]{35}
      | tyw?_[0-9a-f]{12,16}_[A-Za-z0-9_-]{32,}
      )
    """,
    re.VERBOSE,
)
"""Passwords in URLs, private keys, and tokens of common services by their prefixes."""
_STORE = (
    "store it with `trainyard secrets set NAME` and list the name in `environment.secrets` "
    "(`trainyard run --secret NAME`)"
)
_MSG_VALUE = f"has a value that looks like a credential, and every user can read a spec: {_STORE}"
_MSG_VARIABLE = f"is named like a credential, and every user can read a spec: rename it if it is none, else {_STORE}"
_MSG_LABEL = (
    "is named like a credential, and every user can read the labels of a job: rename it; a credential is stored with "
    "`trainyard secrets set NAME`"
)


def credential_problems(spec: TrainingSpec) -> list[Problem]:
    """Return a problem for each text of the spec that looks like a credential; no problem contains the value."""
    # Report a single problem per field: the problem of the value is more certain.
    fields = dict(_names_like_credentials(spec)) | dict.fromkeys(_fields_with_credentials(spec), _MSG_VALUE)
    return [Problem(param=field, message=message) for field, message in fields.items()]


def _names_like_credentials(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    for field, values, pattern, message in (
        ("environment.variables", spec.environment.variables, _VARIABLE_NAME, _MSG_VARIABLE),
        ("metadata", spec.metadata, _NAME, _MSG_LABEL),
    ):
        for name in values:
            if pattern.search(name) and not _VALUE.search(name):
                yield f"{field}.{name}", message


def _fields_with_credentials(spec: TrainingSpec) -> Iterator[str]:
    for field, values in (("environment.variables", spec.environment.variables), ("metadata", spec.metadata)):
        if any(_VALUE.search(name) for name in values):
            yield field
    for path, text in _texts(dump_spec(spec)):
        if _VALUE.search(text):
            # A name may be a credential too, and an error must not quote it.
            yield path if not _VALUE.search(path) else path.partition(".")[0]


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the value of each text in JSON data."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(item, f"{path}.{key}" if path else str(key))
