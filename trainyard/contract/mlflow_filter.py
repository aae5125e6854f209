"""Filters and orders of MLflow's searches: conditions that are joined by AND. Pure functions."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trainyard.contract.parameter_text import index_text

Kind = Literal["attribute", "param", "tag", "metric"]
Operand = str | float | tuple[str, ...] | None
Value = str | float | None

MAX_FILTER = 10_000
"""Characters of a filter string."""
_MAX_CONDITIONS = 50

_KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(("attribute", "attributes", "attr", "run"), "attribute"),
    **dict.fromkeys(("param", "params", "parameter", "parameters"), "param"),
    **dict.fromkeys(("tag", "tags"), "tag"),
    **dict.fromkeys(("metric", "metrics"), "metric"),
}
_TIMES = ("start_time", "end_time", "creation_time", "last_update_time", "creation_timestamp", "last_updated_timestamp")
_NUMERIC_ATTRIBUTES = frozenset({*_TIMES, "experiment_id"})
_TEXT_OPERATORS = ("=", "!=", "LIKE", "ILIKE", "IN", "NOT IN", "IS NULL", "IS NOT NULL")
_NUMBER_OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
_QUOTED = {"'": "''", '"': '""', "`": "``"}

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<text>'(?:[^']|'')*' | "(?:[^"]|"")*")
    | (?P<number>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?(?![\w.]))
    | (?P<name>[A-Za-z_]\w*(?:\.(?:`(?:[^`]|``)*` | "(?:[^"]|"")*" | [\w./-]+))?)
    | (?P<sign><=|>=|!=|=|<|>|,|\(|\))
    )""",
    re.VERBOSE,
)


class FilterError(ValueError):
    """A filter string is malformed, or compares an unsupported key."""


@dataclass(frozen=True)
class Condition:
    """One comparison."""

    kind: Kind
    key: str
    operator: str
    operand: Operand = None

    def holds(self, value: Value) -> bool:
        """Return whether a value meets the condition. None (a missing value) meets only `IS NULL`."""
        if self.operator in ("IS NULL", "IS NOT NULL"):
            return (value is None) == (self.operator == "IS NULL")
        if value is None:
            return False
        if self.operator in ("LIKE", "ILIKE"):
            return matches_pattern(str(value), str(self.operand), ignore_case=self.operator == "ILIKE")
        if isinstance(self.operand, float):
            return isinstance(value, int | float) and _COMPARISONS[self.operator](float(value), self.operand)
        text, operands = self._text(value), self.operand if isinstance(self.operand, tuple) else (self.operand,)
        is_equal = text in [self._text(operand) for operand in operands]
        return is_equal == (self.operator in ("=", "IN"))

    def _text(self, value: Value) -> str:
        """Return the text to compare. Parameters are compared by value, so that `3e-4` is `0.0003`."""
        return index_text(value) if self.kind == "param" else str(value)


_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def parse_filter(text: str, attributes: Sequence[str], kinds: Sequence[Kind]) -> list[Condition]:
    """Return the conditions of a filter string.

    Args:
        attributes: The attributes of the searched entities.
        kinds: The other kinds of keys of the searched entities.

    Raises:
        FilterError: The string is malformed, or compares an unsupported key.
    """
    if len(text) > MAX_FILTER:
        raise FilterError(f"has more than {MAX_FILTER} characters")
    reader = _Reader(text)
    conditions: list[Condition] = []
    while not reader.at_end():
        if conditions:
            reader.expect_word("AND", "; conditions can only be joined by AND")
        conditions.append(_read_condition(reader, attributes, kinds))
        if len(conditions) > _MAX_CONDITIONS:
            raise FilterError(f"has more than {_MAX_CONDITIONS} conditions")
    return conditions


@dataclass(frozen=True)
class Order:
    """The key by which results are sorted."""

    kind: Kind
    key: str
    descending: bool


def parse_order(text: str, attributes: Sequence[str], kinds: Sequence[Kind]) -> Order:
    """Parse one text of `order_by`, such as `metrics.loss DESC`.

    Raises:
        FilterError: The text is malformed, or names an unsupported key.
    """
    reader = _Reader(text[:MAX_FILTER])
    kind, key = _identify(reader.next("name")[1], attributes, kinds)
    descending = reader.has_word("DESC")
    if not descending:
        reader.has_word("ASC")
    if not reader.at_end():
        raise FilterError(f"is {text[:80]!r}; after the name only ASC or DESC can follow")
    return Order(kind, key, descending)


class _Reader:
    """The tokens of a filter string."""

    def __init__(self, text: str):
        self._tokens: list[tuple[str, str]] = []
        self._position = 0
        text, start = text.rstrip(), 0
        while start < len(text):
            match = _TOKEN.match(text, start)
            if match is None:
                raise FilterError(f"cannot be read from {text[start : start + 40]!r} on")
            self._tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            start = match.end()

    def at_end(self) -> bool:
        return self._position == len(self._tokens)

    def next(self, *kinds: str) -> tuple[str, str]:
        """Return the next token, which must be of one of these kinds."""
        if self.at_end():
            raise FilterError("ends within a condition")
        kind, text = self._tokens[self._position]
        if kind not in kinds:
            raise FilterError(f"has {text[:40]!r} in a wrong place")
        self._position += 1
        return kind, text

    def has_word(self, word: str) -> bool:
        """Skip a word, if it is the next token."""
        is_next = not self.at_end() and self._tokens[self._position][1].upper() == word
        self._position += is_next
        return is_next

    def expect_word(self, word: str, hint: str = "") -> None:
        if not self.has_word(word):
            position = min(self._position, len(self._tokens) - 1)
            raise FilterError(f"has {self._tokens[position][1][:40]!r} where {word} is expected{hint}")


def _read_condition(reader: _Reader, attributes: Sequence[str], kinds: Sequence[Kind]) -> Condition:
    _, name = reader.next("name")
    kind, key = _identify(name, attributes, kinds)
    is_number = kind == "metric" or (kind == "attribute" and key in _NUMERIC_ATTRIBUTES)
    operator = _read_operator(reader)
    allowed = _NUMBER_OPERATORS if is_number else _TEXT_OPERATORS
    if operator not in allowed:
        raise FilterError(f"compares {name[:80]} by {operator}; possible are {', '.join(allowed)}")
    return Condition(kind, key, operator, _read_operand(reader, name, operator, is_number=is_number))


def _identify(name: str, attributes: Sequence[str], kinds: Sequence[Kind]) -> tuple[Kind, str]:
    head, dot, key = name.partition(".")
    kind: Kind | None = _KINDS.get(head.lower()) if dot else "attribute"
    key = head if not dot else _unquote(key) if key[0] in _QUOTED else key
    if kind is None or kind not in ("attribute", *kinds):
        possible = ", ".join(f"{each}s.NAME" for each in kinds)
        raise FilterError(f"names {name[:80]!r}; possible are {', '.join(filter(None, (possible, *attributes)))}")
    if kind == "attribute" and key not in attributes:
        raise FilterError(f"names the attribute {key[:80]!r}; possible are {', '.join(attributes)}")
    return kind, key


def _read_operator(reader: _Reader) -> str:
    kind, text = reader.next("sign", "name")
    word = text.upper()
    if kind == "sign" or word in ("LIKE", "ILIKE", "IN"):
        return word
    if word == "NOT":
        reader.expect_word("IN")
        return "NOT IN"
    if word == "IS":
        negated = reader.has_word("NOT")
        reader.expect_word("NULL")
        return "IS NOT NULL" if negated else "IS NULL"
    raise FilterError(f"has {text[:40]!r} where an operator is expected")


def _read_operand(reader: _Reader, name: str, operator: str, *, is_number: bool) -> Operand:
    if operator.endswith("NULL"):
        return None
    if operator.endswith("IN"):
        return _read_list(reader)
    kind, text = reader.next("text", "number", "name")
    if kind != ("number" if is_number else "text"):
        expected = "a number" if is_number else "a quoted text"
        raise FilterError(f"compares {name[:80]} with {text[:40]!r}, which is not {expected}")
    return float(text) if is_number else _unquote(text)


def _read_list(reader: _Reader) -> tuple[str, ...]:
    reader.expect_word("(")
    values = [_unquote(reader.next("text")[1])]
    while reader.has_word(","):
        values.append(_unquote(reader.next("text")[1]))
    reader.expect_word(")")
    return tuple(values)


def _unquote(text: str) -> str:
    return text[1:-1].replace(_QUOTED[text[0]], text[0])


def matches_pattern(text: str, pattern: str, *, ignore_case: bool = False) -> bool:
    """Return whether the whole text matches a pattern of LIKE, where `%` is any text and `_` any character. The time is
    linear for each part between two `%`: one regular expression could take exponentially long."""
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    parts = [re.compile(_expression(part), flags) for part in pattern.split("%")]
    lengths = [len(part) for part in pattern.split("%")]
    if len(parts) == 1:
        return parts[0].fullmatch(text) is not None
    if parts[0].match(text) is None:
        return False
    position, end = lengths[0], len(text) - lengths[-1]
    for part in parts[1:-1]:
        match = part.search(text, position)
        if match is None:
            return False
        position = match.end()
    return position <= end and parts[-1].fullmatch(text, end) is not None


def _expression(part: str) -> str:
    return "".join("." if character == "_" else re.escape(character) for character in part)
