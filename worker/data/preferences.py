"""Preferences from records: pairs of answers to a prompt, or answers with a label. Pure functions of plain data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ROLES = ("system", "user", "assistant", "tool", "developer")

Text = str | Sequence[Mapping[str, Any]]
"""A text, or the messages of a conversation."""

FORMATS = {
    "preference": "`prompt`, `chosen` and `rejected`, all strings or all lists of messages with `role` and `content`",
    "openai_preference": (
        "`input` with `messages`, and the lists of messages `preferred_output` and `non_preferred_output`"
    ),
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


def parse_preference(format: str, record: Any) -> Preference | None:
    """Return the preference of a record, or None if the record does not have that format."""
    if not isinstance(record, Mapping):
        return None
    match format:
        case "preference":
            return _preference(record, record.get("prompt"), [record.get(name) for name in ("chosen", "rejected")])
        case "unpaired_preference":
            label = record.get("label")
            parsed = _preference(record, record.get("prompt"), [record.get("completion")])
            if parsed is None or not isinstance(label, bool):
                return None
            return Preference(parsed.prompt, parsed.answers, label, parsed.tools)
        case "openai_preference":
            source = record.get("input")
            if not isinstance(source, Mapping) or isinstance(source.get("messages"), str):
                return None
            outputs = [record.get(name) for name in ("preferred_output", "non_preferred_output")]
            return _preference(source, source.get("messages"), outputs)
    return None


def _preference(source: Mapping[str, Any], prompt: Any, answers: list[Any]) -> Preference | None:
    tools = source.get("tools")
    if tools is not None and not isinstance(tools, list):
        return None
    if isinstance(prompt, str):
        return Preference(prompt, tuple(answers)) if all(isinstance(one, str) for one in answers) else None
    if not _are_messages(prompt) or not all(_are_messages(one) for one in answers):
        return None
    # An answer is what the model shall write, and not what others say.
    if not all(message["role"] == "assistant" for answer in answers for message in answer[:1]):
        return None
    return Preference(prompt, tuple(answers), tools=tools or None)


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_message(message) for message in value)


def _is_message(message: Any) -> bool:
    if not isinstance(message, Mapping) or message.get("role") not in ROLES:
        return False
    content = message.get("content")
    return isinstance(content, str) or (content is None and isinstance(message.get("tool_calls"), list))


def strings_of(preference: Preference) -> Iterator[str]:
    """Yield every text of a preference."""
    for text in (preference.prompt, *preference.answers):
        if isinstance(text, str):
            yield text
        else:
            yield from _strings(text)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)
