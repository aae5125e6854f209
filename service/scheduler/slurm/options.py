"""An administrator's own sbatch options: an allow-list and a grammar. Pure."""

import re
import shlex

_ALLOWED = frozenset(
    {
        *("reservation", "licenses", "switches", "exclusive", "contiguous", "tmp", "nice", "prefer", "network"),
        *("gres-flags", "hint", "core-spec", "thread-spec", "threads-per-core", "cpu-freq", "gpu-freq", "gpu-bind"),
        *("comment", "wckey", "mcs-label", "acctg-freq", "profile", "bb", "container", "deadline", "begin"),
        *("mail-type", "mail-user", "clusters", "oversubscribe", "spread-job", "use-min-nodes", "reboot"),
    }
)
"""What neither the service nor a spec decides."""
_VALUE = re.compile(r"[A-Za-z0-9_.:,=@/%+*-]{1,128}")


def parse_options(text: str) -> dict[str, str | bool]:
    """`--reservation=ai --exclusive` as {"reservation": "ai", "exclusive": True}.

    Raises:
        ValueError: an option that the service sets itself, is not known here, or has a value that may not stand in a
            batch script.
    """
    found: dict[str, str | bool] = {}
    for word in shlex.split(text):
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in _ALLOWED:
            raise ValueError(f"`{word}` is not one of: {', '.join(f'--{one}' for one in sorted(_ALLOWED))}")
        if equals and not _VALUE.fullmatch(value):
            raise ValueError(f"`--{name}`: the value may have letters, digits and _.:,=@/%+*- only")
        found[name] = value if equals else True
    return found
