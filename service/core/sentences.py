"""How messages for users begin."""

import re

_FIRST_WORD = re.compile(r"[a-z]+(?=[ ,;:]|$)")


def begin_with_capital(message: str) -> str:
    """Return the message with a capital at its beginning, unless it begins with a name such as `optimizer.lr`."""
    return f"{message[0].upper()}{message[1:]}" if _FIRST_WORD.match(message) else message
