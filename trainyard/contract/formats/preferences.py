"""Preferences from records: pairs of answers to a prompt, or answers with a label. Pure functions of plain data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.contract.formats.messages import InvalidMessageError, parse_messages, parse_tools
from trainyard.contract.formats.records import (
    HALF_PAIR,
    BadRecordError,
    is_encodable,
    misfit,
    strings_in,
    without_nulls,
)

Fields = Mapping[str, Any]
Text = str | Sequence[Mapping[str, Any]]
"""A text, or the messages of a conversation."""

FORMATS = {
    "openai_preference": (
        "`input` with `messages`, and the lists of messages `preferred_output` and `non_preferred_output`"
    ),
    "preference": "`prompt`, `chosen` and `rejected`, all strings or all lists of messages with `role` and `content`",
    "unpaired_preference": (
        "`prompt` and `completion`, both strings or both lists of messages, and `label`, which is true or false"
    ),
}
"""What a record of each format has."""


@dataclass(frozen=True)
class Preference:
    """A prompt with its answers."""

    prompt: Text
    answers: tuple[Text, ...]
    """The chosen and the rejected answer, or the one that has a label. They are texts if the prompt is one."""
    desirable: bool = True
    tools: Sequence[Any] | None = None
    """Functions that the model may call, for its chat template."""

    @property
    def is_chat(self) -> bool:
        return not isinstance(self.prompt, str)


def parse_preference(format: str, record: Any, columns: Mapping[str, str]) -> Preference:
    """Return the preference of a record.

    Args:
        columns: The names of the record's fields by those of the format, where they differ.

    Raises:
        BadRecordError: The record does not have the format.
    """
    if not isinstance(record, Mapping):
        raise misfit(format, FORMATS[format])
    named = without_nulls({**record, **{field: record.get(name) for field, name in columns.items()}})
    preference = _PARSERS[format](named)
    if isinstance(preference, str):
        raise misfit(format, FORMATS[format], preference)
    if not all(map(is_encodable, _strings_of(preference))):
        raise BadRecordError(*HALF_PAIR)
    return preference


def _pair(record: Fields) -> Preference | str:
    return _preference(record, "prompt", {name: record.get(name) for name in ("chosen", "rejected")})


def _labelled(record: Fields) -> Preference | str:
    label = record.get("label")
    if not isinstance(label, bool):
        return "`label` is neither true nor false"
    parsed = _preference(record, "prompt", {"completion": record.get("completion")})
    return parsed if isinstance(parsed, str) else Preference(parsed.prompt, parsed.answers, label, parsed.tools)


def _openai_pair(record: Fields) -> Preference | str:
    source = record.get("input")
    if not isinstance(source, Mapping) or isinstance(source.get("messages"), str):
        return "`input` is missing, or is no object with a list `messages`"
    outputs = {name: record.get(name) for name in ("preferred_output", "non_preferred_output")}
    return _preference(source, "messages", outputs)


def _preference(source: Fields, field: str, answers: Mapping[str, Any]) -> Preference | str:
    """Return the preference, or what is wrong."""
    prompt = source.get(field)
    if isinstance(prompt, str):
        for name, answer in answers.items():
            if not isinstance(answer, str):
                return f"`{name}` is missing, or is not a string as `{field}` is"
        return Preference(prompt, tuple(answers.values()))
    if prompt is None:
        return f"`{field}` is missing"
    parsed = {}
    for name, messages in {field: prompt, **answers}.items():
        if not isinstance(messages, list) or not messages:
            return f"`{name}` is missing, or is not a list of messages"
        try:
            parsed[name] = parse_messages(messages, name)
        except InvalidMessageError as error:
            return str(error)
    question, *texts = parsed.values()
    for name in answers:
        # An answer is what the model shall write, and not what others say.
        if (role := parsed[name][0]["role"]) != "assistant":
            return f"`{name}` begins with a message of the role `{role}`"
    return Preference(question, tuple(texts), tools=parse_tools(source.get("tools")))


def _strings_of(preference: Preference) -> Iterator[str]:
    """Yield every text of a preference."""
    for text in (preference.prompt, *preference.answers):
        if isinstance(text, str):
            yield text
        else:
            yield from strings_in(text)


_PARSERS: Mapping[str, Callable[[Fields], Preference | str]] = {
    "openai_preference": _openai_pair,
    "preference": _pair,
    "unpaired_preference": _labelled,
}
"""Return the preference of a record, or what is wrong with it."""
