"""Which format a record has."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.contract.formats.examples import EXPECTED, parse_example
from trainyard.contract.formats.labels import LABELLED, parse_labelled
from trainyard.contract.formats.preferences import FORMATS, parse_preference
from trainyard.contract.formats.records import BadRecordError
from trainyard.contract.formats.text_pairs import TEXT_PAIRS, parse_pair
from trainyard.contract.spec.text_sources import FORMAT_FIELDS

ALL_EXPECTED = {**FORMATS, **LABELLED, **TEXT_PAIRS, **EXPECTED}
"""What a record of each format has, for messages; in the order in which they are tried."""
_TELLING = {
    "openai_preference": "preferred_output",
    "preference": "chosen",
    "unpaired_preference": "label",
    "chat": "messages",
    "sharegpt": "conversations",
}
"""The field that only records of a format have."""
TEXTS = tuple(EXPECTED)
"""The formats without preferences."""


def check_record(record: Any, format: str, columns: Mapping[str, str]) -> None:
    """Raise BadRecordError unless the record has the format."""
    if format in LABELLED:
        parse_labelled(record, columns)
    elif format in TEXT_PAIRS:
        parse_pair(record, columns)
    elif format in FORMATS:
        parse_preference(format, record, columns)
    else:
        parse_example(record, format, columns)


def detect_format(record: Any, columns: Mapping[str, str], formats: Sequence[str] = TEXTS) -> str:
    """Return the first of the formats that a record has.

    Raises:
        BadRecordError: It has none of them.
    """
    problems: list[tuple[str, BadRecordError]] = []
    for name in formats:
        try:
            check_record(record, name, columns)
        except BadRecordError as error:
            problems.append((name, error))
        else:
            return name
    for name, problem in problems:
        # It is of this format, with something wrong in it.
        field = _TELLING.get(name, "") if problem.is_misfit else FORMAT_FIELDS[name][0]
        if isinstance(record, dict) and record.get(columns.get(field, field)) is not None:
            raise problem
    raise BadRecordError("has none of the known formats", expected="; or ".join(ALL_EXPECTED[name] for name in formats))
