"""What is wrong with one line of a data file, by format. Pure functions.

The messages describe the line, and never quote it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from trainyard.contract.wire.data_files import FileFormat

Line = Mapping[str, Any]

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_KEYS: Mapping[FileFormat, tuple[str, ...]] = {
    "chat": ("messages",),
    "preference": ("preferred_output", "non_preferred_output", "chosen", "rejected"),
    "completion": ("completion",),
    "text": ("text",),
}
"""Keys of which a line of the format has at least one."""
EXPECTED: Mapping[FileFormat, str] = {
    "chat": "`messages`, a list of objects with `role` and `content`, one `role` being `assistant`",
    "preference": (
        "`input` with `messages`, and the lists `preferred_output` and `non_preferred_output`; or `prompt`, `chosen` "
        "and `rejected`"
    ),
    "completion": "`prompt` and `completion`, two strings",
    "text": "`text`, a string",
}
"""What a line of each format is made of, for messages."""


def detect_format(line: Line) -> FileFormat | None:
    """Return the format whose keys the line has; None if it has those of no format."""
    return next((name for name, keys in _KEYS.items() if any(key in line for key in keys)), None)


def line_problem(name: FileFormat, line: Line) -> str | None:
    """Return what is wrong with a line of the format; None if nothing is."""
    return _CHECKS[name](line)


def _chat_problem(line: Line) -> str | None:
    if problem := _messages_problem("messages", line.get("messages")):
        return problem
    if not any(message["role"] == "assistant" for message in line["messages"]):
        return "`messages` has no message with the role `assistant`, so there is nothing to learn"
    if not isinstance(line.get("tools", []), list):
        return "`tools` is not a list"
    return None


def _messages_problem(field: str, messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return f"`{field}` is missing, or is not a list of messages"
    for number, message in enumerate(messages):
        if problem := _message_problem(message):
            return f"`{field}.{number}` {problem}"
    return None


def _message_problem(message: Any) -> str | None:
    if not isinstance(message, dict):
        return "is not an object"
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        return f"has no `role` of {', '.join(_ROLES)}"
    calls_tools = role == "assistant" and (message.get("tool_calls") or message.get("function_call"))
    if content is None:
        return None if calls_tools else "has no `content`"
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            return "has `content` with a part that is not text; only text can be trained on"
    elif not isinstance(content, str):
        return "has `content` that is neither a string nor a list of parts"
    weight = message.get("weight", 1)
    if weight not in (0, 1) or isinstance(weight, bool):
        return "has a `weight` that is neither 0 nor 1"
    return None


def _preference_problem(line: Line) -> str | None:
    if "chosen" in line or "rejected" in line:
        for key in ("chosen", "rejected"):
            value = line.get(key)
            if isinstance(value, list):
                if problem := _messages_problem(key, value):
                    return problem
            elif not isinstance(value, str):
                return f"`{key}` is neither a string nor a list of messages"
        prompt = line.get("prompt", "")
        return _messages_problem("prompt", prompt) if not isinstance(prompt, str) else None
    given = line.get("input")
    if not isinstance(given, dict):
        return "`input` is missing, or is not an object"
    if problem := _messages_problem("input.messages", given.get("messages")):
        return problem
    for key in ("preferred_output", "non_preferred_output"):
        if problem := _messages_problem(key, line.get(key)):
            return problem
        if any(message["role"] == "user" for message in line[key]):
            return f"`{key}` has a message with the role `user`"
    return None


def _completion_problem(line: Line) -> str | None:
    missing = [key for key in ("prompt", "completion") if not isinstance(line.get(key), str)]
    return f"`{missing[0]}` is missing, or is not a string" if missing else None


def _text_problem(line: Line) -> str | None:
    return None if isinstance(line.get("text"), str) else "`text` is not a string"


_CHECKS: Mapping[FileFormat, Callable[[Line], str | None]] = {
    "chat": _chat_problem,
    "preference": _preference_problem,
    "completion": _completion_problem,
    "text": _text_problem,
}
