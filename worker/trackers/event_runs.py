"""Which run an event file belongs to, by its folder, and when its writer began."""

import os
import re
from collections.abc import Set
from pathlib import Path

from worker.trackers.event_messages import decode_event
from worker.trackers.event_records import DamagedRecordError, read_records
from worker.trackers.tracker_requests import Reporter, RunPrefixes
from worker.trackers.wire_format import MalformedMessageError

_SESSION = re.compile(r"\d{9,}(\.\d+)?")
"""The name of the folder that `add_hparams` makes for its values: a time. The values belong to the run above it."""


class EventRuns:
    """Names runs by their folders: relative to the first run's if below it, else to the folder above both."""

    def __init__(self) -> None:
        self._prefixes = RunPrefixes()
        self._first: dict[Reporter, Path] = {}

    def prefix(self, reporter: Reporter, folder: Path, written: Set[Path]) -> str:
        """Return the prefix of the metrics of a rank's run.

        Args:
            folder: The folder of the run's event file.
            written: The folders that have event files of the rank. The first values may come from a sub-folder, which
                `add_hparams` and `add_scalars` make beside the event file of the run.

        Raises:
            TrackerError: The program has too many runs.
        """
        if _SESSION.fullmatch(folder.name) and folder.parent in written:
            folder = folder.parent
        if reporter not in self._first:
            # From the root downwards, so that the outermost run is found first.
            self._first[reporter] = next((one for one in reversed(folder.parents) if one in written), folder)
        first = self._first[reporter]
        above = first if folder.is_relative_to(first) else Path(os.path.commonpath([first, folder]))
        return self._prefixes.prefix(reporter, f"{reporter.rank}:{folder}", folder.relative_to(above).as_posix())


def begun_at(path: Path, offset: int = 0) -> float:
    """Return when the writer made its first record from an offset on, in seconds since 1970; infinity if not known."""
    try:
        for record in read_records(path, offset):
            return decode_event(record.message, {}).time
    except (OSError, DamagedRecordError, MalformedMessageError):
        pass
    return float("inf")
