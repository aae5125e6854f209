"""Stored forms of the names that `trainyard.script.report` gets. Needs only the standard library, like that module."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

MAX_NAME = 250
_SYSTEM_PREFIXES = ("system/node-", "system/rank-")


class ReportedNames:
    """Gives each name a stored name, which no other name of the program has, also in later executions."""

    def __init__(self, attempt: str | None) -> None:
        """
        Args:
            attempt: The folder of the attempt; None: no job.
        """
        self._path = Path(attempt).parent.parent / "reported_names.jsonl" if attempt else None
        """The file of the job that keeps the names which have or could have the prefix `train/`."""
        self._stored: dict[str, str] = {}
        if self._path is not None:
            with contextlib.suppress(OSError):
                for line in self._path.read_bytes().splitlines():
                    with contextlib.suppress(ValueError):  # a line that was not written to its end
                        name, stored = json.loads(line)
                        self._stored.setdefault(name, stored)
        self._taken = set(self._stored.values())

    def stored(self, name: str) -> tuple[str, bool]:
        """Return the stored name, and whether it differs from the name that the program expects."""
        full = full_name(name)
        if name not in self._stored:
            stored = stored_name(full)
            if stored in self._taken:
                # The program has both `loss` and `train/loss`. Only then a name without a slash is stored.
                stored = stored_name(name) if name != full else _with_digest(full, full)
            self._stored[name] = stored
            self._taken.add(stored)
            if self._path is not None and full.startswith("train/"):
                # If the write fails, a later execution confuses the two names only if it begins with the other name.
                with contextlib.suppress(OSError), self._path.open("a") as file:
                    file.write(json.dumps([name, stored]) + "\n")
        return self._stored[name], self._stored[name] != full


def full_name(name: str) -> str:
    return name if "/" in name else f"train/{name}"


def stored_name(name: str) -> str:
    """Return the name, changed if it cannot be stored: `trainyard.contract.stored_name` defines how."""
    is_system = name.startswith(_SYSTEM_PREFIXES)
    if name.isprintable() and len(name) <= MAX_NAME and not is_system:
        return name
    return _with_digest(f"program/{name}" if is_system else name, name)


def _with_digest(text: str, source: str) -> str:
    room = MAX_NAME - 17
    escaped = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text[:room])
    return f"{escaped[:room]}~{hashlib.sha256(source.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
