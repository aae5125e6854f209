"""Calls of tools in messages: the form of their arguments, and whether a chat template writes them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from worker.data.template_traits import Arguments

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], str | None]
"""Returns the text of messages; None if the template refuses them."""
_MARKS = tuple(map(chr, range(0xE000, 0xF900)))
"""Characters of private use."""


class LostCallsError(ValueError):
    """The chat template leaves calls of tools out or distorts them, so that they would not be learned."""

    hint = (
        "Use a model whose chat template writes `tool_calls`, or give its folder such a template (chat_template.jinja)."
    )


def unused_mark(text: str) -> str:
    """Return a private-use character that a text lacks; the first of them if the text has all."""
    return next((mark for mark in _MARKS if mark not in text), _MARKS[0])


def with_arguments(message: Message, form: Arguments) -> Message:
    """Return a message with the arguments of its calls as an object or as JSON text, as `form` states."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_changed(call, arguments=_formed(call, form)) for call in calls]}


def check_calls(messages: Sequence[Message], text: str, render: Render) -> None:
    """Raise LostCallsError if the text would be the same without one of the calls or its arguments."""
    if _all_are_written(messages, text, render):
        return
    for lost, index, changed in (*_without_calls(messages), *_without_arguments(messages)):
        if render([*messages[:index], _with_calls(messages[index], changed), *messages[index + 1 :]]) == text:
            raise LostCallsError(
                f"the model's chat template leaves out the {lost} of message {index + 1}, so that they would not be "
                "learned"
            )


def _without_calls(messages: Sequence[Message]) -> Iterator[tuple[str, int, list[Any]]]:
    """For each call, yield the name of the part that is removed, the index of its message, and the other calls."""
    for index, number, calls in _positions(messages):
        yield "`tool_calls`", index, calls[:number] + calls[number + 1 :]


def _without_arguments(messages: Sequence[Message]) -> Iterator[tuple[str, int, list[Any]]]:
    """For each call, yield the name of the part that is removed, the index of its message, and all calls, of which this
    one has no arguments."""
    for index, number, calls in _positions(messages):
        if _has_arguments(calls[number]):
            bare = _changed(calls[number], arguments={})
            yield "arguments of `tool_calls`", index, [*calls[:number], bare, *calls[number + 1 :]]


def _positions(messages: Sequence[Message]) -> Iterator[tuple[int, int, list[Any]]]:
    for index, message in enumerate(messages):
        calls = list(message.get("tool_calls") or ())
        for number in range(len(calls)):
            yield index, number, calls


def _all_are_written(messages: Sequence[Message], text: str, render: Render) -> bool:
    """Return whether the template writes each name and argument: a second text, with marks in their places, has all
    marks."""
    mark = unused_mark(text)
    marks: list[str] = []
    changed = []
    for message in messages:
        calls = []
        for call in message.get("tool_calls") or ():
            name, argument = (f"{mark}{len(marks) + number}{mark}" for number in range(2))
            marks += [name, argument] if _has_arguments(call) else [name, name]
            calls.append(_changed(call, name=name, arguments={argument: ""} if _has_arguments(call) else {}))
        changed.append(_with_calls(message, calls) if calls else message)
    written = render(changed) if marks else ""
    return written is not None and all(one in written for one in marks)


def _has_arguments(call: Mapping[str, Any]) -> bool:
    arguments = call["function"]["arguments"]
    return bool(json.loads(arguments) if isinstance(arguments, str) else arguments)


def _formed(call: Mapping[str, Any], form: Arguments) -> Any:
    arguments = call["function"]["arguments"]
    if form == "object" and isinstance(arguments, str):
        return json.loads(arguments)
    if form == "text" and not isinstance(arguments, str):
        return json.dumps(arguments, ensure_ascii=False)
    return arguments


def _changed(call: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    return {**call, "function": {**call["function"], **fields}}


def _with_calls(message: Message, calls: Sequence[Any]) -> Message:
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "tool_calls": calls} if calls else rest
