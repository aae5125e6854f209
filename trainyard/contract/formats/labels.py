"""Texts with a label: the fields of a record, and its parser. Pure functions of plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.contract.formats.records import HALF_PAIR, BadRecordError, is_encodable, misfit

LABELLED = {"labelled_text": "`text`, a string, and `label`, a string or a whole number"}
"""The fields of a record of each format, for messages."""
MAX_LABEL = 200
"""Characters of a label."""


@dataclass(frozen=True)
class LabelledText:
    """A text and the name of its class."""

    text: str
    label: str


def parse_labelled(record: Any, columns: Mapping[str, str]) -> LabelledText:
    """Return the text and the label of a record; a number is the name of its class too.

    Raises:
        BadRecordError: The record does not have the format.
    """
    if not isinstance(record, Mapping):
        raise misfit("labelled_text", LABELLED["labelled_text"])
    text, label = (record.get(columns.get(field, field)) for field in ("text", "label"))
    if not isinstance(text, str) or isinstance(label, bool) or not isinstance(label, str | int):
        raise misfit("labelled_text", LABELLED["labelled_text"])
    name = str(label)
    if not name or len(name) > MAX_LABEL:
        raise BadRecordError(f"has a label that is empty or longer than {MAX_LABEL} characters")
    if not is_encodable(text) or not is_encodable(name):
        raise BadRecordError(*HALF_PAIR)
    return LabelledText(text, name)
