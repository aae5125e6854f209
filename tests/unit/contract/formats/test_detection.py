"""The format of a record is that of its fields, and a record with the fields of two formats is refused."""

import json
from itertools import combinations

import pytest

from trainyard.contract.formats.detection import (
    ALL_EXPECTED,
    TEXTS,
    AmbiguousRecordError,
    check_unambiguous,
    detect_format,
)
from trainyard.contract.formats.records import BadRecordError

ALL = tuple(ALL_EXPECTED)
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}
OTHER = {"role": "assistant", "content": "Bye"}
RECORDS = {
    "text": {"text": "a"},
    "completion": {"prompt": "a", "completion": "b"},
    "chat": {"messages": [USER, ANSWER]},
    "sharegpt": {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    "alpaca": {"instruction": "a", "input": "", "output": "b"},
    "preference": {"prompt": "a", "chosen": "b", "rejected": "c"},
    "openai_preference": {
        "input": {"messages": [USER]},
        "preferred_output": [ANSWER],
        "non_preferred_output": [OTHER],
    },
    "unpaired_preference": {"prompt": "a", "completion": "b", "label": True},
    "labelled_text": {"text": "a", "label": "x"},
    "text_pair": {"anchor": "a", "positive": "b"},
}
PARTS = {("text", "labelled_text"), ("completion", "unpaired_preference")}
"""Formats that have all fields of another one."""


def problem(record, formats=TEXTS, columns=None):
    with pytest.raises(BadRecordError) as caught:
        detect_format(record, columns or {}, formats)
    return str(caught.value)


@pytest.mark.parametrize("name", RECORDS)
def test_each_format_is_detected_among_all(name):
    assert detect_format(RECORDS[name], {}, ALL) == name
    nulls = dict.fromkeys(field for record in RECORDS.values() for field in record)
    assert detect_format(nulls | RECORDS[name], {}, ALL) == name, "a table has null in the columns of the others"


SAME_FIELD = {("alpaca", "openai_preference"), ("unpaired_preference", "labelled_text")}
"""Formats that have a field of the same name with another kind of value, which no record can have both."""


@pytest.mark.parametrize(("one", "other"), sorted({*combinations(RECORDS, 2)} - SAME_FIELD))
def test_fields_of_two_formats_are_refused(one, other):
    record = RECORDS[one] | RECORDS[other]
    specific = next((pair[1] for pair in PARTS if set(pair) == {one, other}), None)
    if specific is not None:
        assert detect_format(record, {}, ALL) == specific
        return
    with pytest.raises(AmbiguousRecordError, match="has the fields of") as caught:
        detect_format(record, {}, ALL)
    assert f"`{one}`" in str(caught.value)
    assert f"`{other}`" in str(caught.value)
    assert detect_format(record, {}, [one]) == one, "only formats that the task reads count"
    for stated in (one, other):
        with pytest.raises(AmbiguousRecordError):
            check_unambiguous(record, stated, {}, ALL)
        check_unambiguous(RECORDS[stated], stated, {}, ALL)


def test_message_offers_the_formats_that_can_be_meant():
    record = RECORDS["chat"] | RECORDS["text"] | RECORDS["preference"]
    assert problem(record) == "has the fields of `text` and of `chat`; set data.format to `text` or `chat`"


@pytest.mark.parametrize(
    ("more", "format"),
    [
        ({"text": ""}, "chat"),
        ({"text": None}, "chat"),
        ({"text": 7}, "chat"),
        ({"prompt": "a", "prompt_id": "b"}, "chat"),
        ({"prompt": "a", "completion": ""}, "chat"),
        ({"conversations": []}, "chat"),
        ({"conversations": 3}, "chat"),
        ({"conversations": "[INST] a"}, "chat"),
        ({"messages": [], "text": "a"}, "text"),
        ({"messages": "[]", "text": "a"}, "text"),
        ({"messages": None, "text": ""}, "text"),
    ],
)
def test_values_that_hold_nothing_are_no_fields(more, format):
    assert detect_format(RECORDS["chat"] | more, {}) == format


def test_empty_text_with_messages_is_ambiguous_in_a_file_of_texts():
    check_unambiguous({"text": "a", "messages": None}, "text", {})
    with pytest.raises(AmbiguousRecordError):
        check_unambiguous({"text": "", **RECORDS["chat"]}, "text", {})


def test_later_record_with_a_label_is_not_taken_for_a_completion():
    with pytest.raises(AmbiguousRecordError):
        check_unambiguous(RECORDS["unpaired_preference"], "completion", {}, ALL)
    check_unambiguous(RECORDS["unpaired_preference"], "completion", {})


def test_lists_as_json_text_count():
    record = {"messages": json.dumps([USER, ANSWER])}
    assert detect_format(record, {}) == "chat"
    assert "`text` and of `chat`" in problem(record | {"text": "a"})


def test_names_of_columns_count():
    record = {"body": "a", "dialog": [USER, ANSWER]}
    assert detect_format(record, {"messages": "dialog"}) == "chat"
    assert "`text` and of `chat`" in problem(record, columns={"messages": "dialog", "text": "body"})


def test_fault_of_the_one_format_is_stated():
    assert "`messages.0` has no `role`" in problem({"messages": [{"role": "robot", "content": "a"}]})
    assert "format `alpaca`" in problem({"instruction": "a", "input": 1, "output": "b"})


@pytest.mark.parametrize("record", [{"data": [{"text": "a"}]}, {"version": "1.0", "rows": [RECORDS["chat"]]}])
def test_object_that_holds_the_records_has_its_remedy(record):
    remedy = "it holds a list of objects; write each record on one line, or all of them as one JSON array"
    assert problem(record).endswith(remedy)
    assert remedy not in problem({"dialog": [USER, ANSWER]}), "a conversation is not such a list"


def test_list_of_a_field_that_formats_have_holds_no_records():
    assert "it holds a list" not in problem({"conversations": [{"user": "a", "assistant": "b"}]})
    assert "it holds a list" not in problem({"chosen": [{"speaker": "a"}], "text": 1})


@pytest.mark.parametrize(
    ("name", "formats", "setting"),
    [
        ("preference", TEXTS, "objective: dpo, orpo or simpo"),
        ("openai_preference", TEXTS, "objective: dpo, orpo or simpo"),
        ("text_pair", TEXTS, "task: text_embedding"),
        ("unpaired_preference", ("preference", "openai_preference"), "objective: kto"),
        ("preference", ("unpaired_preference",), "objective: dpo, orpo or simpo"),
        ("chat", ("preference", "openai_preference"), "objective: sft"),
    ],
)
def test_format_that_another_objective_reads_has_its_remedy(name, formats, setting):
    with pytest.raises(BadRecordError, match=f"it has the fields of `{name}`, for {setting}$") as caught:
        detect_format(RECORDS[name], {}, formats)
    assert caught.value.hint == f"Set {setting}."
