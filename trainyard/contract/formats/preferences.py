"""Preferences from records: pairs of answers to a prompt, or answers with a label. Pure functions of plain data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainyard.contract.formats.messages import parse_tools
from trainyard.contract.formats.prompts import NO_BEGINNING, answered, split_texts
from trainyard.contract.formats.records import HALF_PAIR, BadRecordError, is_encodable, misfit, parsing, strings_in

Fields = Mapping[str, Any]
Text = str | Sequence[Mapping[str, Any]]
"""A text, or the messages of a conversation."""

FORMATS = {
    "openai_preference": (
        "`input` with `messages`, and the lists of messages `preferred_output` and `non_preferred_output`"
    ),
    "preference": (
        "`chosen` and `rejected`, both strings or both lists of messages with `role` and `content`, and `prompt`, "
        "which may be absent if they begin with it"
    ),
    "unpaired_preference": (
        "`prompt` and `completion`, both strings or both lists of messages, and `label`, which is true or false"
    ),
}
"""The fields of a record of each format, for messages."""


@dataclass(frozen=True)
class Preference:
    """A prompt with its answers."""

    prompt: Text
    answers: tuple[Text, ...]
    """The chosen and the rejected answer, or the labelled answer. They are texts if the prompt is a text."""
    desirable: bool = True
    tools: Sequence[Any] | None = None
    """Functions that the model may call, for its chat template."""


def parse_preference(format: str, record: Any, columns: Mapping[str, str]) -> Preference:
    """Return the preference of a record.

    Args:
        columns: Maps fields of the format to fields of the record, where the names differ.

    Raises:
        BadRecordError: The record does not have the format.
    """
    if not isinstance(record, Mapping):
        raise misfit(format, FORMATS[format])
    with parsing(record):
        named = {**record, **{field: record.get(name) for field, name in columns.items()}}
        preference = _PARSERS[format](named)
        if not all(map(is_encodable, _strings_of(preference))):
            raise BadRecordError(*HALF_PAIR)
        return preference


def _pair(record: Fields) -> Preference:
    return _preference("preference", record, "prompt", {name: record.get(name) for name in ("chosen", "rejected")})


def _labelled(record: Fields) -> Preference:
    format, label = "unpaired_preference", record.get("label")
    if not isinstance(label, bool):
        raise misfit(format, FORMATS[format], "`label` is neither true nor false")
    if record.get("prompt") is None:
        raise misfit(format, FORMATS[format], "`prompt` is missing; only two answers have a common beginning")
    return replace(_preference(format, record, "prompt", {"completion": record.get("completion")}), desirable=label)


def _openai_pair(record: Fields) -> Preference:
    format, source = "openai_preference", record.get("input")
    if not isinstance(source, Mapping) or isinstance(source.get("messages"), str):
        raise misfit(format, FORMATS[format], "`input` is missing, or is no object with a list `messages`")
    if source.get("messages") is None:
        raise misfit(format, FORMATS[format], "`messages` is missing")
    outputs = {name: record.get(name) for name in ("preferred_output", "non_preferred_output")}
    return _preference(format, source, "messages", outputs)


def _preference(format: str, source: Fields, field: str, answers: Mapping[str, Any]) -> Preference:
    """Return the preference of a prompt, which may be absent, and answers to it.

    Raises:
        BadRecordError: The record has no valid prompt or answers.
    """
    prompt = source.get(field)
    # Without a prompt, all answers must be texts if any answer is a text.
    has_texts = any(isinstance(answer, str) for answer in answers.values()) and not isinstance(prompt, list)
    for name, answer in answers.items():
        if has_texts and not isinstance(answer, str):
            raise misfit(format, FORMATS[format], f"`{name}` is missing, or is not a string as the other texts are")
        if isinstance(answer, str) and isinstance(prompt, list):
            raise misfit(format, FORMATS[format], f"`{name}` is a string, and `{field}` is a list")
        if not has_texts and (not isinstance(answer, list) or not answer):
            raise misfit(format, FORMATS[format], f"`{name}` is missing, or is not a list of messages")
    if not isinstance(prompt, str | list | None) or prompt == []:
        raise misfit(format, FORMATS[format], f"`{field}` is neither a string nor a list of messages")
    if has_texts:
        if isinstance(prompt, str):
            return Preference(prompt, tuple(answers.values()))
        beginning, texts = split_texts(*answers.values())
        if not beginning:
            raise misfit(format, FORMATS[format], NO_BEGINNING)
        return Preference(beginning, texts)
    question, replies = answered(format, prompt, answers, FORMATS[format], field)
    for name, reply in zip(answers, replies, strict=True):
        if False in reply.marks:
            raise BadRecordError(
                f"leaves a message of `{name}` out of what is learned; an answer is learned as a whole"
            )
    return Preference(
        question.messages, tuple(reply.messages for reply in replies), tools=parse_tools(source.get("tools"))
    )


def _strings_of(preference: Preference) -> Iterator[str]:
    """Yield every text of a preference."""
    for text in (preference.prompt, *preference.answers):
        if isinstance(text, str):
            yield text
        else:
            yield from strings_in(text)


_PARSERS: Mapping[str, Callable[[Fields], Preference]] = {
    "openai_preference": _openai_pair,
    "preference": _pair,
    "unpaired_preference": _labelled,
}
"""Return the preference of a record, or raise BadRecordError."""
