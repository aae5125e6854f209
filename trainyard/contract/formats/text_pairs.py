"""Pairs of texts that belong together: the fields of a record, and its parser. Pure functions of plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.contract.formats.records import HALF_PAIR, BadRecordError, is_encodable, misfit

TEXT_PAIRS = {
    "text_pair": "`anchor` and `positive`, strings that are not empty, and optionally `negative`, another one"
}
"""The fields of a record of each format, for messages."""


@dataclass(frozen=True)
class TextPair:
    """Two texts that belong together, and a text that does not belong to the first."""

    anchor: str
    positive: str
    negative: str | None = None


def parse_pair(record: Any, columns: Mapping[str, str]) -> TextPair:
    """Return the texts of a record. Raises BadRecordError: the record does not have the format."""
    if not isinstance(record, Mapping):
        raise misfit("text_pair", TEXT_PAIRS["text_pair"])
    anchor, positive, negative = (record.get(columns.get(name, name)) for name in ("anchor", "positive", "negative"))
    if not isinstance(anchor, str) or not isinstance(positive, str) or not isinstance(negative, str | None):
        raise misfit("text_pair", TEXT_PAIRS["text_pair"])
    texts = [text for text in (anchor, positive, negative) if text is not None]
    if not all(text.strip() for text in texts):
        raise BadRecordError("has an empty text")
    if not all(is_encodable(text) for text in texts):
        raise BadRecordError(*HALF_PAIR)
    return TextPair(anchor, positive, negative)
