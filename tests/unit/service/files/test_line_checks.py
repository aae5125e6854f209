"""Data files are checked line by line, whatever the chunks are in which they arrive."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import InvalidRequestError
from service.files import line_checks
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


def refusal(content: bytes, **options: Any) -> BadLineError:
    with pytest.raises(BadLineError) as caught:
        check(content, **options)
    return caught.value


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_all_bad_lines_are_counted_and_the_first_ten_named(size: int) -> None:
    content = (line(CHAT) + b"\n") * 3 + (b'{"messages": []}\n' + line(CHAT) + b"\n") * 12
    error = refusal(content, size=size)
    assert error.line == 4
    assert error.message.startswith("12 of 27 lines are bad: line 4 does not have format `chat`: expected")
    assert error.message.endswith("; line 20: the same; line 22: the same")
    assert error.message.count("; line ") == 9


def test_counting_ends_after_many_bad_lines_or_much_content(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = line(CHAT) + b"\n", b'{"messages": []}\n'
    assert refusal(good + bad * 2000).message.startswith("more than 1000 of the first 1002 lines are bad: line 2 ")
    monkeypatch.setattr(line_checks, "_READ_ON_BYTES", 10 * len(good + bad) - 1)
    error = refusal((good + bad) * 100, size=len(good + bad))
    assert error.message.startswith("at least 10 of the first 20 lines are bad: line 2 does not have format `chat`")


@pytest.mark.parametrize("size", [1, 3, 50, 2**20])
@pytest.mark.parametrize("indent", [None, 2])
def test_items_of_an_array_are_checked_as_lines_are(size: int, indent: int | None) -> None:
    text = json.dumps([CHAT] * 5, indent=indent).replace("\n", "\r\n")
    checker = check(b"\xef\xbb\xbf" + text.encode() + b"\r\n\r\n", size=size)
    assert (checker.format, checker.examples) == ("chat", 5)
    bad = text.replace('"assistant"', '"robot"', 1).encode()
    error = refusal(bad, size=size)
    assert (error.line, error.message[:38]) == (1, "item 1 does not have format `chat`: ex")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" + line(CHAT) + b",\n" + line(CHAT), "item 2 is the end of the file, and the array has no `]`"),
        (b"[" + line(CHAT) + b",\n]", "item 2 is missing: the array has a comma without an item"),
        (b"[" + line(CHAT) + b"\n]\n[" + line(CHAT) + b"]", "item 2 comes after the `]` that ends the array"),
        (b"[" + line(CHAT) + b"]\n[" + line(CHAT) + b"]", "2 of 2 lines are bad: line 1 is not a JSON object"),
        (b"[1,2]\n" + line(CHAT), "line 1 is not a JSON object"),
        (b"[1,2]", "2 of 2 items are bad: item 1 is not a JSON object; item 2: the same"),
        (b"[" + line(CHAT) + b",\n" + b" " * 5_000_000 + line(CHAT) + b"]", "item 2 is longer than 4194304 bytes"),
        (b"[" + line(CHAT) + b"]" + b"\n" * 5_000_000, "item 2 is longer than 4194304 bytes"),
        (line({"data": [CHAT]}), "it holds a list of objects; write each record on one line"),
        (
            b'{\n"data": [\n' + line(CHAT) + b"\n]\n}",
            "enclosed in double quotes at character 2 (write each record on one line",
        ),
        (b'{"data": [' + b" " * 5_000_000, "line 1 is longer than 4194304 bytes (write each record on one line"),
    ],
)
def test_what_is_no_array_and_no_lines_is_refused(content: bytes, reason: str) -> None:
    assert reason in refusal(content, size=65536).message


@pytest.mark.parametrize("content", [b"[]", b" [ ]\n"])
def test_array_without_items_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="no example: the array is empty"):
        check(content)


def test_file_may_begin_with_a_byte_order_mark() -> None:
    assert check(b"\xef\xbb\xbf" + line(CHAT), size=2).examples == 1


def test_check_of_an_array_goes_on_where_it_was_cut() -> None:
    checker, content, position = LineChecker(), b"[\n" + b" ,\n".join([line(CHAT)] * 9) + b"]\n", 0
    while position < len(content):
        part = content[position : position + 200]
        checker.feed(part)
        position += len(part)
        position -= checker.drop_rest() if position < len(content) else 0
    assert checker.finish() == "chat"
    assert checker.examples == 9


def test_lines_of_two_formats_are_refused_unless_one_is_stated() -> None:
    both = {**CHAT, "text": "a"}
    setting = "set the `format` of the upload to `text` or `chat`"
    for content, number in ((line(both), 1), (line(CHAT) + b"\n" + line(both), 2)):
        assert refusal(content).message == f"line {number} has the fields of `text` and of `chat`; {setting}"
        assert check(content, format="chat").examples == number


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
    {"text": "a", "prompt": "b", "completion": "c"},
    {"instruction": "a", "output": "b", "text": "c"},
    {},
]
PREFERENCES: list[Any] = [
    {"prompt": "a", "chosen": "b", "rejected": "c"},
    {"prompt": "a", "chosen": "b"},
    {"chosen": "b", "rejected": "c"},
    {"prompt": "a", "chosen": "b", "rejected": [{"role": "assistant", "content": "c"}]},
    {"prompt": "a", "chosen": 1, "rejected": "c"},
    {"chosen": "two and two? four", "rejected": "two and two? five"},
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
