"""Fields that records have and their format does not read, so that a user sees what the model is not shown."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from worker.data.arrow_tables import column_names
from worker.data.data_files import DataFile

_NAMED = 20
"""Fields that are named."""
_COUNTED = 1000
"""Different fields that are counted."""
_CHARACTERS = 100


class UnreadFields:
    """Counts the records in which a field that is not read has a value."""

    def __init__(self, read: frozenset[str]) -> None:
        """`read`: the names of the fields that are read."""
        self._read = read
        self.counts: Counter[str] = Counter()

    def add(self, record: Any) -> None:
        """Count the fields of a record; what is no object has none."""
        if isinstance(record, Mapping):
            for name, value in record.items():
                is_counted = name in self.counts or len(self.counts) < _COUNTED
                if value is not None and name not in self._read and is_counted:
                    self.counts[name] += 1


def unread_names(counts: Counter[str], files: Sequence[DataFile], read: frozenset[str]) -> list[str]:
    """Return the names of fields that are not read, the most frequent first.

    Args:
        counts: Of `UnreadFields`. Records of tables lack the columns that no format reads, which the first file names.
        read: The names of the fields that are read.
    """
    names = [name for name, _ in counts.most_common()]
    columns = column_names(files[0]) if files else []
    known = dict.fromkeys(name for name in (*names, *columns) if name not in read and name.isprintable())
    return [name[:_CHARACTERS] for name in known][:_NAMED]
