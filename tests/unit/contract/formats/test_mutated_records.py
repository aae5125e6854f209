"""Records as people have them, changed at random: the error is one line that quotes nothing, and never another one."""

import json
import random
import re
from copy import deepcopy

import pytest

from trainyard.contract.formats.detection import ALL_EXPECTED, TEXTS, check_record, detect_format
from trainyard.contract.formats.records import BadRecordError

SECRET = "Zebra"
PAIRS = ("preference", "openai_preference")


def message(role, **more):
    return {"role": role, "content": f"{SECRET} {role}", **more}


CALL = {"id": SECRET, "type": "function", "function": {"name": SECRET, "arguments": json.dumps({SECRET: None})}}
NULLS = {"name": None, "tool_calls": None, "weight": None}
RECORDS = [
    (
        "sharegpt",
        TEXTS,
        {
            "id": SECRET,
            "conversations": [
                {"from": "system", "value": SECRET},
                {"from": "human", "value": SECRET},
                {"from": "gpt", "value": SECRET, "train": False, "weight": None},
                {"from": "gpt", "value": SECRET},
            ],
        },
    ),
    (
        "chat",
        TEXTS,
        {
            "messages": [
                message("system"),
                message("user"),
                message("assistant", weight=0),
                message("user"),
                message("assistant", weight=1),
            ]
        },
    ),
    (
        "chat",
        TEXTS,
        {
            "messages": [
                message("user", **NULLS),
                message("assistant", **NULLS | {"tool_calls": [CALL], "content": None}),
                message("tool", **NULLS),
                message("assistant", **NULLS),
            ],
            "tools": [{"type": "function", "function": {"name": SECRET}}],
            "parallel_tool_calls": False,
        },
    ),
    (
        "preference",
        PAIRS,
        {
            "prompt": f"{SECRET} user",
            "prompt_id": SECRET,
            "chosen": [message("user"), message("assistant")],
            "rejected": [message("user"), message("assistant", name=SECRET)],
            "messages": [message("user"), message("assistant")],
            "score_chosen": 9.0,
            "score_rejected": 4.5,
        },
    ),
    (
        "preference",
        PAIRS,
        {
            "chosen": f"\n\nHuman: {SECRET}?\n\nAssistant: Yes, {SECRET}.",
            "rejected": f"\n\nHuman: {SECRET}?\n\nAssistant: No.",
        },
    ),
    (
        "openai_preference",
        PAIRS,
        {
            "input": {"messages": [message("user")], "tools": [], "parallel_tool_calls": True},
            "preferred_output": [message("assistant")],
            "non_preferred_output": [message("assistant")],
        },
    ),
    ("alpaca", TEXTS, {"instruction": SECRET, "input": "", "output": SECRET, "text": None}),
    ("completion", TEXTS, {"prompt": [message("user")], "completion": [message("assistant")]}),
    ("completion", TEXTS, {"prompt": SECRET, "completion": SECRET, "label": None}),
    (
        "unpaired_preference",
        ("unpaired_preference",),
        {"prompt": [message("user")], "completion": [message("assistant")], "label": False},
    ),
    ("labelled_text", ("labelled_text",), {"text": SECRET, "label": 3}),
    ("text_pair", ("text_pair",), {"anchor": SECRET, "positive": SECRET, "negative": None}),
    ("text", TEXTS, {"text": SECRET, "meta": {"source": SECRET}, "messages": None}),
]
VALUES = [
    None,
    "",
    SECRET,
    0,
    1,
    2,
    -0.5,
    True,
    False,
    [],
    {},
    [SECRET],
    [[]],
    [{}],
    {"role": SECRET},
    "\ud83d",
    float("nan"),
]


def places(value):
    """Yield the containers of a record with the keys of what they hold."""
    if isinstance(value, dict | list):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from places(inner)


def mutated(rnd, record):
    record = deepcopy(record)
    for _ in range(rnd.randrange(1, 3)):
        container, key = rnd.choice([*places(record)] or [({}, "")])
        match rnd.randrange(4):
            case 0:
                container[key] = deepcopy(rnd.choice(VALUES))
            case 1 if isinstance(container, dict):
                container.pop(key, None)
            case 1:
                del container[key:]
            case 2 if isinstance(container, dict):
                container[rnd.choice(["role", "weight", "train", "text", "label", "train_detail"])] = rnd.choice(VALUES)
            case _:
                container[key] = json.dumps(container[key]) if isinstance(container, list | dict) and container else 1
    return record


@pytest.mark.parametrize(("format", "formats", "record"), RECORDS, ids=[record[0] for record in RECORDS])
def test_record_is_of_its_format_and_changes_are_reported(format, formats, record):
    assert detect_format(record, {}, formats) == format
    rnd = random.Random(format)
    refused = 0
    for _ in range(300):
        changed = mutated(rnd, record)
        for check in (
            lambda value: detect_format(value, {}, formats),
            lambda value: detect_format(value, {}, tuple(ALL_EXPECTED)),
            lambda value: check_record(value, format, {}),
        ):
            try:
                check(changed)
            except BadRecordError as error:
                refused += 1
                text = f"{error} {error.hint}"
                assert "\n" not in text
                assert SECRET not in text
                assert re.search(r"`|message \d|surrogate|empty|label|weight", text), text
    assert refused > 50


@pytest.mark.parametrize("depth", [100, 700])
def test_deep_record_is_read_or_refused_as_too_deep(depth):
    deep = json.loads("[" * depth + "]" * depth)
    problems = set()
    for format, value in (
        ("chat", {"messages": [message("user", extra=deep), message("assistant")]}),
        ("chat", {"messages": [message("user"), message("assistant")], "tools": [{"a": deep}]}),
        ("preference", {"prompt": SECRET, "chosen": SECRET, "rejected": "b", "extra": deep}),
    ):
        try:
            check_record(value, format, {})
        except BadRecordError as error:
            problems.add(str(error))
    assert problems == (set() if depth == 100 else {"is nested too deeply"})
