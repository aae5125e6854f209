"""The pattern of a search in logs. Regular expressions are RE2's, whose time is linear in the text. Pure functions."""

from dataclasses import dataclass
from typing import Any

import re2

from service.core.errors import InvalidRequestError
from trainyard.contract.wire.logs import LogLevel

MAX_TEXT = 200
"""Maximum length of the text to search for."""
_MAX_MEMORY = 1024 * 1024
"""Bytes of a compiled pattern and of its automaton; larger patterns are refused."""


def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.max_mem = _MAX_MEMORY
    options.never_nl = True
    options.log_errors = False
    return re2.compile(pattern.encode(), options)


_START = r"(?:\b|\x1b\[[0-9;]*m)"
"""The start of a word, also behind an escape sequence for colours."""
_ERROR_TEXT = (
    rf"{_START}(?:ERROR|CRITICAL|FATAL)\b|{_START}[Ee]rror:|{_START}Traceback \(most recent call last\)"
    r"|^(?:\[\w+\]:\s*)?(?:[\w.]+\.)?\w*(?:Error|Exception)\b"
)
_WARNING_TEXT = rf"{_START}WARN(?:ING)?\b|{_START}[Ww]arning:|\b\w+Warning\b"
_ERROR = _compile(f"(?m){_ERROR_TEXT}")
_WARNING = _compile(f"(?m){_WARNING_TEXT}")
_ERROR_OR_WARNING = _compile(f"(?m){_ERROR_TEXT}|{_WARNING_TEXT}")
_FIRST: dict[LogLevel, Any] = {"error": _ERROR, "warning": _ERROR_OR_WARNING}


def level_of(line: bytes) -> LogLevel | None:
    """Return the severity of a line; None for most."""
    if _ERROR.search(line):
        return "error"
    return "warning" if _WARNING.search(line) else None


@dataclass(frozen=True)
class LinePattern:
    """Selects lines by their text, by their level, or both."""

    text: Any | None
    level: LogLevel | None

    @property
    def first(self) -> Any:
        """The compiled pattern that finds candidates."""
        return self.text if self.text is not None else _FIRST[self.level or "error"]

    def accepts(self, line: bytes) -> tuple[bool, LogLevel | None]:
        """Return whether a candidate matches, and its level."""
        level = level_of(line)
        if self.level == "error":
            return level == "error", level
        return self.level is None or level is not None, level


def compile_pattern(
    sought: str | None, *, regex: bool = False, case_sensitive: bool = False, level: LogLevel | None = None
) -> LinePattern:
    """Return the pattern to search for.

    Args:
        sought: A part of the line, or with `regex` a regular expression.
        level: Only lines of this level; `warning` includes errors.

    Raises:
        InvalidRequestError: Neither is given, or the regular expression is invalid or too large.
    """
    if not sought:
        if level is None:
            raise InvalidRequestError("give `text`, `level` or both", param="text")
        return LinePattern(None, level)
    source = sought if regex else re2.escape(sought)
    try:
        return LinePattern(_compile(f"(?m{'' if case_sensitive else 'i'}:{source})"), level)
    except re2.error as error:
        raise InvalidRequestError(f"is not a regular expression of RE2: {_reason(error)}", param="text") from error


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    return text.split(": (?m")[0]
