"""Detects the format of a record."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainyard.contract.formats.examples import EXPECTED, parse_example
from trainyard.contract.formats.labels import LABELLED, parse_labelled
from trainyard.contract.formats.preferences import FORMATS, parse_preference
from trainyard.contract.formats.records import BadRecordError, json_list, list_inside
from trainyard.contract.formats.text_pairs import TEXT_PAIRS, parse_pair
from trainyard.contract.spec.text_sources import FORMAT_FIELDS

ALL_EXPECTED = {**FORMATS, **LABELLED, **TEXT_PAIRS, **EXPECTED}
"""The fields of a record of each format, for messages."""
TEXTS = tuple(EXPECTED)
"""The formats without preferences."""


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_content(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(value))


def _is_list(value: Any) -> bool:
    # Most texts are not JSON, as their first character shows.
    is_text = isinstance(value, str) and not value.lstrip().startswith("[")
    return not is_text and bool(json_list(value))


_REQUIRED: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "openai_preference": {
        "input": lambda value: isinstance(value, Mapping),
        "preferred_output": _is_list,
        "non_preferred_output": _is_list,
    },
    "preference": {"chosen": _is_content, "rejected": _is_content},
    "unpaired_preference": {
        "completion": _is_content,
        "prompt": _is_content,
        "label": lambda value: isinstance(value, bool),
    },
    "labelled_text": {
        "text": _is_string,
        "label": lambda value: isinstance(value, str | int) and not isinstance(value, bool),
    },
    "text_pair": {"positive": _is_string, "anchor": _is_string},
    "text": {"text": _is_string},
    "completion": {"completion": _is_content, "prompt": _is_content},
    "chat": {"messages": _is_list},
    "sharegpt": {"conversations": _is_list},
    "alpaca": {"output": _is_string, "instruction": _is_string},
}
"""The fields without which no record has a format, and whether a value is of their kind; first a field that is learned.
Null is the same as absent: tables have it for every field of any row."""
_READ_BY = {
    "preference": "objective: dpo, orpo or simpo",
    "openai_preference": "objective: dpo, orpo or simpo",
    "unpaired_preference": "objective: kto",
    "labelled_text": "task: sequence_classification",
    "text_pair": "task: text_embedding",
    **dict.fromkeys(EXPECTED, "objective: sft"),
}
"""The field of the spec with which each format is read."""
_TELLING = {
    "openai_preference": "preferred_output",
    "preference": "chosen",
    "unpaired_preference": "label",
    "chat": "messages",
    "sharegpt": "conversations",
}
"""The field that only records of a format have."""


class AmbiguousRecordError(BadRecordError):
    """A record has the fields of several formats, and nothing selects one of them."""

    def __init__(self, formats: Sequence[str], setting: str) -> None:
        names = [f"`{name}`" for name in formats]
        fields = " and of ".join(names)
        choice = f"{', '.join(names[:-1])} or {names[-1]}"
        super().__init__(f"has the fields of {fields}; set {setting} to {choice}", f"Set {setting} to {choice}.")


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


def detect_format(
    record: Any, columns: Mapping[str, str], formats: Sequence[str] = TEXTS, *, setting: str = "data.format"
) -> str:
    """Return the format of a record.

    Args:
        formats: Candidates.
        setting: Name of the setting that states the format, for messages.

    Raises:
        BadRecordError: It has none of them, or several.
    """
    present = _present(record, columns, formats)
    chosen = _most_specific(_with_content(record, columns, present))
    if len(chosen) > 1:
        raise AmbiguousRecordError(present, setting)
    if chosen:
        check_record(record, chosen[0], columns)
        return chosen[0]
    for name in formats:
        if problem := _problem_of(record, name, columns):
            raise problem
    expected = "; or ".join(ALL_EXPECTED[name] for name in formats)
    for name in _most_specific(_present(record, columns, [name for name in _READ_BY if name not in formats])):
        detail = f"it has the fields of `{name}`, for {_READ_BY[name]}"
        raise BadRecordError(
            "has none of the known formats", f"Set {_READ_BY[name]}.", expected=expected, detail=detail
        )
    raise BadRecordError("has none of the known formats", expected=expected, detail=list_inside(record))


def check_unambiguous(
    record: Any,
    format: str,
    columns: Mapping[str, str],
    formats: Sequence[str] = TEXTS,
    *,
    setting: str = "data.format",
) -> None:
    """Raise AmbiguousRecordError if a record has the fields of a second format, where an earlier record of the source
    decided the format. Arguments: see `detect_format`."""
    present = _present(record, columns, formats)
    others = [name for name in _most_specific(_with_content(record, columns, present)) if name != format]
    if format in present and others:
        raise AmbiguousRecordError(present, setting)


def _present(record: Any, columns: Mapping[str, str], formats: Sequence[str]) -> list[str]:
    """Return the formats whose fields the record has."""
    if not isinstance(record, Mapping):
        return []
    return [
        name
        for name in formats
        if all(is_kind(record.get(columns.get(field, field))) for field, is_kind in _REQUIRED[name].items())
    ]


def _with_content(record: Any, columns: Mapping[str, str], present: Sequence[str]) -> list[str]:
    """Return the formats whose learned field has content, or all formats if there are none: some writers of tables
    write an empty text instead of null."""
    learned = {name: next(iter(_REQUIRED[name])) for name in present}
    return [name for name in present if record[columns.get(learned[name], learned[name])]] or list(present)


def _most_specific(present: Sequence[str]) -> list[str]:
    """Leave out formats whose fields are a proper subset of another format's: `completion` beside
    `unpaired_preference`."""
    return [name for name in present if not any(_REQUIRED[name].keys() < _REQUIRED[one].keys() for one in present)]


def _problem_of(record: Any, format: str, columns: Mapping[str, str]) -> BadRecordError | None:
    """Return the error of a record that is recognised as this format; None for other records and valid ones."""
    try:
        check_record(record, format, columns)
    except BadRecordError as error:
        field = _TELLING.get(format, "") if error.is_misfit else FORMAT_FIELDS[format][0]
        is_recognised = isinstance(record, dict) and record.get(columns.get(field, field)) is not None
        return error if is_recognised else None
    return None
