"""The names under which a node's launcher stores a program's metrics, parameters, tags and media."""

import contextlib
import json
from pathlib import Path
from typing import Literal

from trainyard.contract.stored_name import metric_name, stored_name, with_digest

Kind = Literal["Metric", "Parameter", "Tag", "Medium"]
_AXIS = "Axis"
"""Replaces the kind in the entry of a metric that has the steps of another metric."""
_MAX_OWNERS = 50_000
"""Maximum names that are told apart from later names."""


class StoredNames:
    """Tells names apart that would be stored alike: `inner/loss`, and `loss` of the run `inner`.

    The name that is logged first is stored unchanged in this and all later attempts. Other names get a digest.
    """

    def __init__(self, path: Path) -> None:
        """
        Args:
            path: The file with the names of earlier attempts, to which new names are appended.
        """
        self._path = path
        self._owners: dict[tuple[str, str, str], tuple[str, ...]] = {}
        """The prefix and the keys that were logged first, by kind, tracker and stored name."""
        with contextlib.suppress(OSError):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(ValueError, TypeError):  # a line that was not written to its end
                    kind, tracker, stored, *first = json.loads(line)
                    self._owners.setdefault((kind, tracker, stored), tuple(first))

    def stored(self, kind: Kind, prefix: str, *keys: str, tracker: str = "") -> str:
        """Return the stored name of a metric, parameter, tag or medium.

        Args:
            prefix: The prefix of its run.
            keys: The name, or the keys that lead to a nested parameter.
            tracker: The tracker that reports a metric. If two trackers report the same name, it is the same metric.
        """
        name, logged = prefix + ".".join(keys), (prefix, *keys)
        stored = metric_name(name) if kind == "Metric" else stored_name(name)
        if kind != "Metric" and "/" not in name and len(keys) == 1 and "." not in name:
            return stored  # It has no prefix, and no other name has its text.
        first = self._owners.get((kind, tracker, stored))
        if first is None and len(self._owners) < _MAX_OWNERS:
            first = logged
            # Without this line, a later attempt confuses the two names only if it logs them in another order.
            self._add((kind, tracker, stored), logged)
        return stored if first in (logged, None) else with_digest(stored, json.dumps(logged if prefix else keys))

    def note_axis(self, tracker: str, stored: str) -> None:
        """Note that a metric has the steps of another metric."""
        if (key := (_AXIS, tracker, stored)) not in self._owners and len(self._owners) < _MAX_OWNERS:
            self._add(key, ())

    def metrics(self, tracker: str) -> set[str]:
        """Return the stored names of the metrics that a tracker reported, in this or an earlier attempt.

        Metrics with the steps of another metric are left out if the tracker has others.
        """
        metrics = {stored for kind, by, stored in self._owners if (kind, by) == ("Metric", tracker)}
        return {stored for stored in metrics if (_AXIS, tracker, stored) not in self._owners} or metrics

    def _add(self, key: tuple[str, str, str], logged: tuple[str, ...]) -> None:
        self._owners[key] = logged
        with contextlib.suppress(OSError), self._path.open("a") as file:
            file.write(json.dumps([*key, *logged]) + "\n")
