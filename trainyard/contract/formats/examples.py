"""The formats of examples: from the fields of a record to a text, a prompt with its completion, or a conversation."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.contract.formats.messages import InvalidMessageError, parse_messages, parse_tools
from trainyard.contract.formats.prompts import answered
from trainyard.contract.formats.records import (
    HALF_PAIR,
    BadRecordError,
    is_encodable,
    json_list,
    misfit,
    parsing,
    strings_in,
)
from trainyard.contract.formats.training_marks import REMEDY, left_out_text, training_mark
from trainyard.contract.spec.text_sources import FORMAT_FIELDS

CODE_VERSION = 6
"""Changes when the same record becomes another example, or none; tokens that were cached with another version are not
used."""

_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
EXPECTED = {
    "text": "`text`, a string",
    "completion": "`prompt` and `completion`, two strings or two lists of messages with `role` and `content`",
    "chat": "`messages`, a list of objects with `role` and `content`, one `role` being `assistant`",
    "sharegpt": "`conversations`, a list of objects with `from` and `value`, both strings, one `from` being `gpt`",
    "alpaca": "`instruction` and `output`, two strings, and `input`, a string or absent",
}
"""The required fields of a record of each format, for messages."""


@dataclass(frozen=True)
class Completion:
    """A prompt, and the answer to it that is learned."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class Chat:
    """A conversation, as chat templates take it."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    trained: tuple[bool, ...]
    """Whether each message is learned; shape (messages,)."""


@dataclass(frozen=True)
class Instruction:
    """An instruction with an optional input, and the answer to it that is learned."""

    instruction: str
    input: str
    output: str

    @property
    def as_chat(self) -> Chat:
        """The same as a conversation of two messages."""
        text = "\n\n".join(part for part in (self.instruction, self.input) if part)
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": self.output}]
        return Chat(messages, None, (False, True))

    @property
    def as_completion(self) -> Completion:
        """The same with headings, for tokenizers without a chat template."""
        parts = [("Instruction", self.instruction), ("Input", self.input)]
        prompt = "".join(f"### {heading}:\n{text}\n\n" for heading, text in parts if text)
        return Completion(f"{prompt}### Response:\n", self.output)


Example = str | Completion | Chat | Instruction


def columns_of(format: str, columns: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the columns that a format reads; for `auto`, the columns of all formats."""
    formats = list(EXPECTED) if format == "auto" else [format]
    return frozenset(columns.get(field, field) for name in formats for field in FORMAT_FIELDS[name])


def parse_example(record: Any, format: str, columns: Mapping[str, str]) -> Example:
    """Return the example of a record.

    Args:
        columns: Maps fields of the format to fields of the record, where the names differ.

    Raises:
        BadRecordError: The record does not have the format.
    """
    if not isinstance(record, dict):
        raise _misfit(format)
    with parsing(record):
        example = _PARSERS[format](lambda field: record.get(columns.get(field, field)))
        if not all(map(is_encodable, _strings(example))):
            raise BadRecordError(*HALF_PAIR)
        return example


Fields = Callable[[str], Any]


def _text(read: Fields) -> str:
    text = read("text")
    if not isinstance(text, str):
        raise _misfit("text")
    return text


def _completion(read: Fields) -> Completion | Chat:
    prompt, completion = read("prompt"), read("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        return Completion(prompt, completion)
    for field, value in (("prompt", prompt), ("completion", completion)):
        if value is None or value == [] or not isinstance(value, str | list):
            wrong = "missing" if value is None or value == [] else "neither a string nor a list of messages"
            raise _misfit("completion", f"`{field}` is {wrong}")
    if isinstance(completion, str):
        raise _misfit("completion", "`prompt` is a list, but `completion` is a string")
    question, (answer,) = answered("completion", prompt, {"completion": completion}, EXPECTED["completion"])
    for number, (message, mark) in enumerate(zip(question.messages, question.marks, strict=True), 1):
        if mark and message["role"] == "assistant":
            raise BadRecordError(
                f"asks to learn message {number} of the prompt; only the completion is learned", REMEDY
            )
    trained = [False] * len(question.messages) + [
        message["role"] == "assistant" and mark is not False
        for message, mark in zip(answer.messages, answer.marks, strict=True)
    ]
    if not any(trained):
        raise BadRecordError(
            "has a completion of which every message of the assistant is left out", "Remove that line."
        )
    return Chat([*question.messages, *answer.messages], parse_tools(read("tools")), tuple(trained))


def _instruction(read: Fields) -> Instruction:
    return Instruction(
        _string(read, "instruction"), "" if read("input") is None else _string(read, "input"), _string(read, "output")
    )


def _chat(read: Fields) -> Chat:
    messages = json_list(read("messages"))
    if not messages:
        raise _misfit("chat", "`messages` is missing, or is not a list of messages")
    try:
        parsed = parse_messages(messages, "messages")
    except InvalidMessageError as error:
        raise _misfit("chat", str(error)) from None
    return _conversation(list(zip(parsed, messages, strict=True)), read, "chat")


def _sharegpt(read: Fields) -> Chat:
    turns = json_list(read("conversations"))
    if not turns:
        raise _misfit("sharegpt", "`conversations` is missing, or is not a list")
    messages = []
    for number, turn in enumerate(turns):
        role, text = (turn.get("from"), turn.get("value")) if isinstance(turn, dict) else (None, None)
        if not isinstance(role, str) or not isinstance(text, str):
            raise _misfit(
                "sharegpt", f"`conversations.{number}` has no `from` and `value` that are strings{_hint(turn)}"
            )
        if role not in _SHAREGPT_ROLES:
            raise BadRecordError(
                f"has a `from` that is none of {', '.join(_SHAREGPT_ROLES)}",
                "Write one of them; the name of a speaker belongs into `value`.",
            )
        messages.append(({"role": _SHAREGPT_ROLES[role], "content": text}, turn))
    return _conversation(messages, read, "sharegpt")


def _conversation(messages: list[tuple[dict[str, Any], dict[str, Any]]], read: Fields, format: str) -> Chat:
    """Return the conversation of messages and the records that they come from."""
    if not any(message["role"] == "assistant" for message, _ in messages):
        raise _misfit(format, "there is no message of the assistant to learn")
    marks = [
        training_mark(source, message["role"], f"message {number}")
        for number, (message, source) in enumerate(messages, 1)
    ]
    trained = tuple(
        message["role"] == "assistant" and mark is not False for (message, _), mark in zip(messages, marks, strict=True)
    )
    if not any(trained):
        fields = dict.fromkeys(left_out_text(source) for message, source in messages if message["role"] == "assistant")
        raise BadRecordError(f"has {' or '.join(fields)} on every message of the assistant", "Remove that line.")
    return Chat([message for message, _ in messages], parse_tools(read("tools")), trained)


def _hint(turn: Any) -> str:
    """Return the hint for turns that are messages of the other format."""
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
        return ""
    return "; for turns of `role` and `content`, set data.format: chat and data.columns: {messages: conversations}"


def _string(read: Fields, field: str) -> str:
    value = read(field)
    if not isinstance(value, str):
        raise _misfit("alpaca", f"`{field}` is {'missing' if value is None else 'not a string'}")
    return value


def _misfit(format: str, detail: str = "") -> BadRecordError:
    return misfit(format, EXPECTED[format], detail)


def _strings(example: Example) -> Iterator[str]:
    """Yield every text of an example."""
    match example:
        case str():
            yield example
        case Completion():
            yield from (example.prompt, example.completion)
        case Instruction():
            yield from (example.instruction, example.input, example.output)
        case Chat():
            yield from strings_in(example.messages)
            yield from strings_in(example.tools or ())


_PARSERS: dict[str, Callable[[Fields], Example]] = {
    "text": _text,
    "completion": _completion,
    "chat": _chat,
    "sharegpt": _sharegpt,
    "alpaca": _instruction,
}
