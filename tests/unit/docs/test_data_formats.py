"""The table of formats in docs/data.md is true to the code: each row is tried."""

import re
from pathlib import Path
from typing import Any

import pytest

from trainyard.contract.formats.detection import ALL_EXPECTED, check_record, detect_format
from trainyard.contract.formats.records import BadRecordError
from trainyard.contract.spec.text_sources import FORMAT_FIELDS

PAGE = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
ROW = re.compile(r"^\| (?P<names>`[a-z_]+`) \| (?P<fields>[^|]*\*\*[^|]*) \| (?P<learned>[^|]+) \|", re.MULTILINE)
ROWS = {row["names"].strip("`"): row["fields"] for row in ROW.finditer(PAGE)}
USER = {"role": "user", "content": "Hi"}
ANSWERS = [[{"role": "assistant", "content": text}] for text in ("Hello", "Bye")]
VALUES: dict[str, Any] = {
    "messages": [USER, *ANSWERS[0]],
    "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}],
    "input": {"messages": [USER]},
    "preferred_output": ANSWERS[0],
    "non_preferred_output": ANSWERS[1],
    "chosen": "Q: 2? A: two",
    "rejected": "Q: 2? A: 3",
    "label": True,
}
"""What fields hold that are no texts, or depend on each other."""


def record_of(name: str) -> dict[str, Any]:
    """Return a record with the fields in bold alone."""
    fields = re.findall(r"\*\*`([a-z_]+)`\*\*", ROWS[name])
    values = VALUES | ({"label": "x"} if name == "labelled_text" else {})
    return {field: values.get(field, "some text") for field in fields}


def test_table_has_every_format() -> None:
    assert ROWS.keys() == ALL_EXPECTED.keys()


@pytest.mark.parametrize("name", ALL_EXPECTED)
def test_fields_in_bold_make_a_record_and_each_is_needed(name: str) -> None:
    record = record_of(name)
    assert detect_format(record, {}, tuple(ALL_EXPECTED)) == name
    for field in record:
        with pytest.raises(BadRecordError, match=f"does not have format `{name}`"):
            check_record({**record, field: None}, name, {})


@pytest.mark.parametrize("name", ALL_EXPECTED)
def test_row_names_the_fields_that_are_read(name: str) -> None:
    named = re.findall(r"`([a-z_]+)`", ROWS[name])
    assert {*FORMAT_FIELDS[name]} <= {*named}
