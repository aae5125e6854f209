"""The text of a program as a terminal shows it at the end: without escape sequences and overwritten parts of lines.

Logs are stored and downloaded as they were written; quotations of them, such as in an error, have clean text. The pages
do the same in `log_lines.js`, with which the tests compare this function.
"""

import re

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]+[0-~]|[@-Z\\-_])"
    r"|\x9b[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
"""Sequences for colours, cursor moves, titles and strings, in their forms of 7 and 8 bits, and control characters."""


def clean(text: str) -> str:
    """Return the text without escape sequences and control characters; of an overwritten line, the last state."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(_ESCAPES.sub("", last_written(line)) for line in lines)


def last_written(line: str) -> str:
    """Return the text after the last carriage return. Programs that overwrite a line write a carriage return before or
    after it."""
    line = line.rstrip("\r")
    return line[line.rfind("\r") + 1 :]
