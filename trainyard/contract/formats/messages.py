"""Messages of conversations and preferences, as chat templates take them. Pure functions of plain data."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainyard.contract.formats.records import BadRecordError, json_list, without_nulls
from trainyard.contract.formats.training_marks import DETAILS, MARKS

ROLES = ("system", "user", "assistant", "tool", "developer")
_OTHER_NAMES = {
    "human": "user",
    **dict.fromkeys(("gpt", "model", "bot", "chatgpt"), "assistant"),
    **dict.fromkeys(("function", "observation", "ipython"), "tool"),
    **{name.title(): name for name in ROLES},
}
"""Role names of other tools, and our names, which the error states. They are not replaced, since a chat template may
know them."""
_TRAINER_FIELDS = {*MARKS, DETAILS}
"""Fields that are meant for a trainer; chat templates do not get them."""


class InvalidMessageError(BadRecordError):
    """An item of a list of messages is not a message. The error names the item and its problem."""


def parse_messages(messages: Sequence[Any], field: str) -> list[dict[str, Any]]:
    """Return messages with text as their content, and without fields that are null, which tables have for every field
    of any message; nulls in the arguments of calls stay.

    Args:
        field: The record's field that holds them, for errors.

    Raises:
        InvalidMessageError: A message lacks a required field.
        BadRecordError: A message has content that cannot be trained.
    """
    of_list = "" if field == "messages" else f" of `{field}`"
    return [
        _message(_Position(f"`{field}.{index}`", f"message {index + 1}{of_list}"), message)
        for index, message in enumerate(messages)
    ]


class _Position(NamedTuple):
    """The two names of a message in errors, such as `messages.0` and "message 1"."""

    path: str
    name: str


def _message(position: _Position, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidMessageError(f"{position.path} is not an object")
    role = message.get("role")
    if role not in ROLES:
        name = _OTHER_NAMES.get(role) if isinstance(role, str) else None
        hint = f"; write `{name}` instead of `{role}`" if name else ""
        raise InvalidMessageError(f"{position.path} has no `role` of {', '.join(ROLES)}{hint}")
    calls = message.get("tool_calls")
    if message.get("function_call") is not None and not calls:
        raise BadRecordError(f"has the outdated `function_call` in {position.name}; write it as `tool_calls`")
    content = _content(position, message.get("content"), optional=role == "assistant" and bool(calls))
    left_out = (*_TRAINER_FIELDS, "tool_calls")
    fields = {key: without_nulls(value) for key, value in message.items() if value is not None and key not in left_out}
    fields |= {"content": content}
    if calls and not isinstance(calls, list):
        raise BadRecordError(f"has `tool_calls` of {position.name} that are not a list")
    if calls:
        fields["tool_calls"] = [_tool_call(position, call) for call in calls]
    return fields


def _content(position: _Position, content: Any, *, optional: bool) -> str:
    if content is None and optional:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        wrong = "no `content`" if content is None else "`content` that is neither a string nor a list of parts"
        raise InvalidMessageError(f"{position.path} has {wrong}")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadRecordError(f"has a part of {position.name} that is not text; only text can be trained")
    return "".join(part["text"] for part in content)


def _tool_call(position: _Position, call: Any) -> dict[str, Any]:
    """Return a call with unchanged arguments, JSON text or an object: chat templates differ in their needs."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRecordError(f"has a call of a tool in {position.name} without `function.name`")
    arguments = function.get("arguments")
    if arguments is not None and (problem := _problem_of(arguments)):
        raise BadRecordError(f"has a call of a tool in {position.name} whose arguments are {problem}")
    rest = {key: value for key, value in function.items() if key != "arguments"}
    named = without_nulls(rest) | {"arguments": {} if arguments is None else arguments}
    return {**without_nulls({key: value for key, value in call.items() if key != "function"}), "function": named}


def _problem_of(arguments: Any) -> str | None:
    """Return why these are not the arguments of a call, or the text of them; None if they are."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        # Python also reads NaN, and infinity for numbers that are too large.
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # tables have times and bytes too
        return "not JSON"
    return None if isinstance(value, Mapping) else "not a JSON object"


def parse_tools(value: Any) -> list[Any] | None:
    """Return the functions that a model may call; None without any.

    Raises:
        BadRecordError: The value is neither a list of objects nor JSON text of such a list.
    """
    if value is None or value == "":
        return None
    tools = json_list(value)
    if tools is None or not all(isinstance(tool, dict) for tool in tools):
        raise BadRecordError("has `tools` that are not a list of objects")
    return [without_nulls(tool) for tool in tools] or None
