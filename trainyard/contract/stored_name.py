"""The names under which metrics, parameters and tags of programs are stored. Pure functions.

`trainyard.reported_names`, which imports nothing of ours, has the same rule.
"""

import hashlib

MAX_STORED_NAME = 250
_DIGEST = 16
"""Characters of a digest; enough that two names of a job do not collide by chance."""

NODE_PREFIX, RANK_PREFIX = SYSTEM_PREFIXES = ("system/node-", "system/rank-")
"""The launcher's metrics of its node, ranks and GPUs. While training makes no step, their steps count readings."""


def stored_name(name: str) -> str:
    """Return the name unchanged if it is printable and not too long, else a form that is unique to the name.

    The stored name of a stored name is itself.
    """
    return name if name.isprintable() and 0 < len(name) <= MAX_STORED_NAME else with_digest(name, name)


def metric_name(name: str) -> str:
    """Return the stored name of a program's metric, which never equals the name of a launcher's metric."""
    stored = stored_name(name)
    return with_digest(f"program/{name}", name) if stored.startswith(SYSTEM_PREFIXES) else stored


def with_digest(text: str, source: str) -> str:
    """Return a text with a digest of its source behind it; characters that are not printable are written as escapes."""
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    room = MAX_STORED_NAME - _DIGEST - 1
    escaped = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text[:room])
    return f"{escaped[:room]}~{digest}"
