"""Counts the fields of records that their format does not read, and that the model therefore does not see."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from trainyard.contract.formats.records import json_list
from trainyard.contract.formats.training_marks import MARKS
from worker.data.arrow_tables import column_names
from worker.data.data_files import DataFile

_NAMED = 20
"""Fields that are named."""
_COUNTED = 1000
"""Different fields that are counted."""
_CHARACTERS = 100
_OF_TURNS = {"from", "value", *MARKS}
"""Fields that are read from the turns of format `sharegpt`, which chat templates do not get."""


class UnreadFields:
    """Counts the records in which a field that is not read has a value."""

    def __init__(self, read: frozenset[str]) -> None:
        """`read`: the names of the fields that are read."""
        self._read = read
        self.counts: Counter[str] = Counter()
        self._in_messages: Counter[tuple[str, str]] = Counter()
        """Counts by the field that holds the messages, and the field of a message."""
        self.written: set[str] = set()
        """The fields of messages that the chat template has written, in other records perhaps."""

    def add(self, record: Any, unwritten: AbstractSet[str] | None = None) -> None:
        """Count the fields of a record; only an object has fields.

        Args:
            unwritten: The fields of its messages that the chat template does not write; None if it has no messages.
        """
        if isinstance(record, Mapping):
            own = (name for name, value in record.items() if value is not None and name not in self._read)
            _count(self.counts, own)
            if unwritten is not None:
                lists = [(name, value) for name, value in record.items() if name in self._read]
                _count(self._in_messages, {pair for one in lists for pair in _in_messages(*one, unwritten)})

    def merge(self, other: "UnreadFields") -> None:
        """Add the counts of other records."""
        self.counts.update(other.counts)
        self._in_messages.update(other._in_messages)
        self.written |= other.written

    def names(self, files: Sequence[DataFile]) -> list[str]:
        """Return the names of fields that are not read, the most frequent first: of messages as `messages.name`.

        Args:
            files: Records of tables lack the columns that no format reads, which the first file names.
        """
        counts = self.counts.copy()
        counts.update({".".join(pair): n for pair, n in self._in_messages.items() if pair[1] not in self.written})
        names = [name for name, _ in counts.most_common()]
        columns = [name for name in column_names(files[0]) if name not in self._read] if files else []
        known = dict.fromkeys(name for name in (*names, *columns) if name.isprintable())
        return [name[:_CHARACTERS] for name in known][:_NAMED]


def _count(counts: Counter[Any], names: Iterable[Any]) -> None:
    counts.update(name for name in names if name in counts or len(counts) < _COUNTED)


def _in_messages(name: str, value: Any, unwritten: AbstractSet[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of messages that are not read, each with the name of the field that holds the messages."""
    if isinstance(value, Mapping):
        yield from _in_messages(f"{name}.messages", value.get("messages"), unwritten)
    for message in json_list(value) or ():
        if isinstance(message, Mapping):
            fields = message.keys() - _OF_TURNS if isinstance(message.get("from"), str) else unwritten
            yield from ((name, field) for field in message if field in fields and message[field] is not None)
