"""Settings that are none: a limit whose name has a slip is not there, which nobody would notice."""

from collections.abc import Iterable
from difflib import get_close_matches

from service.settings import Settings

_LIKENESS = 0.85
_NEAR_BUT_RIGHT = {"TRAINYARD_PORTS", "TRAINYARD_TLS_PORT"}
"""Of compose.yaml."""


def misspelt(environment: Iterable[str]) -> list[str]:
    """What is wrong with the names of TRAINYARD_* variables, in words. Those that are like none of ours are others'."""
    prefix = str(Settings.model_config["env_prefix"])
    known = {f"{prefix}{field.upper()}" for field in Settings.model_fields}
    found = []
    for name in sorted(set(environment) - known - _NEAR_BUT_RIGHT):
        near = get_close_matches(name.upper(), known, 1, _LIKENESS) if name.upper().startswith(prefix) else []
        # pydantic reads names in any case.
        if near and near[0] != name.upper():
            found.append(f"{name} is no setting and is ignored; did you mean {near[0]}?")
    return found
