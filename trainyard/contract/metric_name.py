"""The names that metrics can have, and what becomes of others. Pure functions."""

import re

MAX_METRIC_NAME = 250
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_.\-/ ]")


def allowed_name(name: str) -> str:
    """Return the name under which a metric is stored: characters that it cannot have become `_`."""
    return _NOT_ALLOWED.sub("_", name)[:MAX_METRIC_NAME] or "_"


def requested_keys(names: str) -> str:
    """Return the stored name of a metric, or of several with commas between them, as the program may have called it."""
    return ",".join(allowed_name(name) if name else "" for name in names.split(","))
