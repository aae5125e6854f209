"""Data files are checked line by line, whatever the chunks are in which they arrive."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import InvalidRequestError
from service.files.line_checks import BadLineError, LineChecker
from trainyard.contract.spec.text_data import TextFiles
from trainyard.contract.spec.text_sources import FileSource
from worker.core.errors import RefusedError
from worker.data.preference_rows import load_answers
from worker.data.text_examples import load_examples
from worker.data.tokenizers import ByteTokenizer

CHAT = {"messages": [{"role": "user", "content": "two and two?"}, {"role": "assistant", "content": "four"}]}
PREFERENCE = {
    "input": {"messages": [{"role": "user", "content": "two and two?"}]},
    "preferred_output": [{"role": "assistant", "content": "four"}],
    "non_preferred_output": [{"role": "assistant", "content": "five"}],
}


def line(value: Any) -> bytes:
    return json.dumps(value).encode()


def check(content: bytes, *, size: int = 2**20, **options: Any) -> LineChecker:
    checker = LineChecker(**options)
    for start in range(0, len(content), size):
        checker.feed(content[start : start + size])
    checker.finish()
    return checker


@pytest.mark.parametrize(
    ("value", "format"),
    [
        (CHAT, "chat"),
        ({"messages": [{"role": "assistant", "content": [{"type": "text", "text": "yes"}], "weight": 1}]}, "chat"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}], "tools": [{}]}, "chat"),
        (PREFERENCE, "openai_preference"),
        ({"conversations": [{"from": "human", "value": "1"}, {"from": "gpt", "value": "2"}]}, "sharegpt"),
        ({"instruction": "1", "input": "", "output": "2"}, "alpaca"),
        ({"prompt": "1", "completion": "2", "label": True}, "unpaired_preference"),
        ({"prompt": "1", "chosen": "2", "rejected": "3"}, "preference"),
        ({"prompt": "1", "completion": "2"}, "completion"),
        ({"text": "some words"}, "text"),
    ],
)
def test_format_is_that_of_the_first_line(value: dict[str, Any], format: str) -> None:
    checker = check(line(value) + b"\n\r\n \n" + line(value))
    assert (checker.format, checker.examples) == (format, 2)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_bad_line_is_named_by_its_number_in_chunks_of_any_size(size: int) -> None:
    content = b"\n".join([line(CHAT)] * 3 + [b"", b"{broken", line(CHAT)])
    with pytest.raises(BadLineError, match="line 5 is not JSON"):
        check(content, size=size)


BAD_LINES = {
    b'{"messages": [': "is not JSON",
    line(CHAT) + b" x": "is not JSON: Extra data",
    b"[1]": "is not a JSON object",
    b"null": "is not a JSON object",
    b'{"messages": []}': "`messages` is missing",
    b'{"text": "of another format"}': "does not have format `chat`",
    b'{"messages": [{"role": "user", "content": "x"}]}': "no message of the assistant",
    b'{"messages": [{"role": "robot", "content": "x"}]}': "`messages.0` has no `role`",
    b'{"messages": [{"role": "assistant"}]}': "`messages.0` has no `content`",
    b'{"messages": [{"role": "assistant", "content": 7}]}': "neither a string nor a list",
    b'{"messages": [{"role": "assistant", "content": [{"type": "image_url"}]}]}': "a part of message 1 that is no",
    b'{"messages": [{"role": "assistant", "content": "x", "weight": 2}]}': "that is not 0 or 1",
    b'{"messages": [{"role": "assistant", "content": "\\ud83d"}]}': "half of a surrogate pair",
    b'{"messages": [{"role": "assistant", "content": "\xff"}]}': "is not UTF-8 text",
    b'{"messages": [{"role": "assistant", "content": NaN}]}': "is not JSON",
    b"\xef\xbb\xbf" + line(CHAT): "begins with a byte order mark",
    "{}".encode("utf-16"): "perhaps UTF-16",
    b'{"a":' * 40 + b"1" + b"}" * 40: "is nested deeper than 32 levels",
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000: "is nested deeper than 32 levels",
    line(CHAT)[:-1] + b', "n": ' + b"9" * 5000 + b"}": "a number that is too large",
    b'{"messages": "' + b"x" * 5_000_000 + b'"}': "is longer than 4194304 bytes",
}


@pytest.mark.parametrize(("bad", "reason"), BAD_LINES.items(), ids=[*BAD_LINES.values()])
def test_each_kind_of_bad_line_is_named_with_its_number(bad: bytes, reason: str) -> None:
    content = b"\n".join([line(CHAT)] * 99 + [bad, line(CHAT)])
    with pytest.raises(BadLineError) as caught:
        check(content, size=4096)
    assert caught.value.line == 100
    assert caught.value.message.startswith("line 100 ")
    assert reason in caught.value.message
    assert len(caught.value.message) < 500, "the message must not quote the line"


def test_bad_line_is_named_by_its_number_among_100_000() -> None:
    content = b"\n".join([line({"text": "a"})] * 99_999 + [b"{", line({"text": "a"})])
    with pytest.raises(BadLineError, match="line 100000 is not JSON"):
        check(content)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"preferred_output": None}, "`preferred_output` is missing"),
        ({"non_preferred_output": [{"role": "user", "content": "x"}]}, "a message of the role `user`"),
        ({"input": "text"}, "`input` is missing"),
    ],
)
def test_bad_preference_is_named(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadLineError, match=reason):
        check(line(PREFERENCE) + b"\n" + line({**PREFERENCE, **changes}))


@pytest.mark.parametrize("content", [b"", b"\n\n \n"])
def test_file_without_examples_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="no example"):
        check(content)


@pytest.mark.parametrize("blank", [b"\n", b" \r\n"])
def test_blank_lines_in_a_row_are_limited_as_workers_limit_them(blank: bytes, tmp_path: Path) -> None:
    some, many = (line({"text": "a"}) + b"\n" + blank * count + line({"text": "b"}) for count in (1000, 1001))
    assert check(some, size=7).examples == 2
    with pytest.raises(BadLineError, match="line 1002 is one of more than 1000 blank lines"):
        check(many, size=7)
    for content, is_accepted in ((some, True), (many, False)):
        (tmp_path / "data").write_bytes(content)
        files = TextFiles(path=str(tmp_path / "data"), packing=False)
        if is_accepted:
            load_examples(files, ByteTokenizer(), 64)
        else:
            with pytest.raises(RefusedError, match="more than 1000 blank lines"):
                load_examples(files, ByteTokenizer(), 64)


def test_requested_format_is_the_one_that_is_checked() -> None:
    with pytest.raises(BadLineError, match="does not have format `text`"):
        check(line(CHAT), format="text")


def test_line_without_an_end_is_refused_before_it_is_whole() -> None:
    checker = LineChecker(max_line_bytes=1000)
    checker.feed(b"x" * 1000)
    with pytest.raises(BadLineError, match="line 1 is longer"):
        checker.feed(b"x")


RECORDS: list[Any] = [
    {"text": "a"},
    {"text": 1},
    {"text": "a", "label": True},
    {"prompt": "a", "completion": "b"},
    {"prompt": "a", "completion": None},
    {"instruction": "a", "output": "b"},
    {"instruction": "a", "input": 1, "output": "b"},
    {"instruction": "a", "input": "b"},
    {"text": None, "prompt": "a", "completion": "b"},
    {"prompt": "a"},
    {},
]
PREFERENCES: list[Any] = [
    {"prompt": "a", "chosen": "b", "rejected": "c"},
    {"prompt": "a", "chosen": "b"},
    {"chosen": "b", "rejected": "c"},
    {"prompt": "a", "chosen": "b", "rejected": [{"role": "assistant", "content": "c"}]},
    {"prompt": "a", "chosen": 1, "rejected": "c"},
]


@pytest.mark.parametrize("record", RECORDS + PREFERENCES)
def test_uploads_take_what_workers_take(record: Any, tmp_path: Path) -> None:
    """Both read the same line without being told its format."""
    (tmp_path / "data").write_bytes(line(record))
    source = FileSource(path=str(tmp_path / "data"))
    expected: Any = None
    try:
        if record in PREFERENCES:
            load_answers("data.path", source, ["preference", "openai_preference"], ByteTokenizer(), 64)
        else:
            load_examples(TextFiles(path=source.path, packing=False), ByteTokenizer(), 64)
    except RefusedError as error:
        expected = str(error)
    if expected is None:
        assert check(line(record)).examples == 1
    else:
        with pytest.raises(BadLineError) as caught:
            check(line(record))
        assert ("has none of the known formats" in expected) == ("has none of" in caught.value.message)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, "format `chat`.*there is no message of the assistant"),
        ({"messages": [{"role": "function", "content": "x"}]}, "`messages.0` has no `role` of system, user, assistant"),
        ({"conversations": [{"from": "gpt"}]}, "`conversations.0` has no `from` and `value`"),
        ({"prompt": "a", "label": 1, "chosen": "c"}, "format `preference`.*`rejected` is missing"),
    ],
)
def test_first_line_of_a_recognised_format_has_its_problem_in_the_message(record: Any, reason: str) -> None:
    with pytest.raises(BadLineError, match=reason):
        check(line(record))
