"""The query language that filters jobs: `optimizer.lr < 1e-3 and (status = succeeded or tag = "baseline")`.

`parse_query` returns a tree. The code that runs the query resolves each key to a field, a parameter, a tag or a metric.
Pure functions.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

MAX_QUERY = 4000
"""Maximum number of characters of a query."""
MAX_CONDITIONS = 50
MAX_NESTING = 20
MAX_LIST = 200
"""Maximum number of values in an `in (...)`."""
MAX_KEY = 600
"""Maximum number of characters of a key. A name has up to 250 characters, and each backtick in it counts twice."""

Operator = Literal["=", "!=", "<", "<=", ">", ">=", "~", "!~"]
Aggregate = Literal["last", "min", "max", "best", "min_step", "max_step", "best_step"]

AGGREGATES: tuple[Aggregate, ...] = ("last", "min", "max", "best", "min_step", "max_step", "best_step")
OPERATORS: tuple[Operator, ...] = ("=", "!=", "<", "<=", ">", ">=", "~", "!~")
_RESERVED = frozenset({"and", "or", "not", "in", "exists"})
_STATES = ("nan", "inf", "empty")
"""The words that can follow `is`."""
_STATE_NAMES = {"infinity": "inf", "infinite": "inf", "null": "empty", "none": "empty", "missing": "empty"}
_UNITS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}

_WORD = re.compile(r"[^\s()<>=!,]+")
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<text>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*")
    | (?P<quoted>`(?:[^`]|``)+`)
    | (?P<number>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?(?:(?P<unit>min|[smhdw])(?!\w))?(?![\w.@%/]))
    | (?P<name>[A-Za-z_][\w./@%:\-]*)
    | (?P<sign><=|>=|!=|==|!~|=|<|>|~|,|\(|\))
    )""",
    re.VERBOSE | re.ASCII,
)
_QUOTED = re.compile(r"`(?:[^`]|``)+`")
_KEY_IN_LIST = re.compile(r"(?:`(?:[^`]|``)+`|[^,])+")
_END_NAME = re.compile(r"[.:\-]+$")


@dataclass(frozen=True)
class Duration:
    """A length of time such as `2h`. In a comparison with a point in time, it is relative to now: `created > -7d`."""

    seconds: float


Value = float | bool | str | Duration


@dataclass(frozen=True)
class Key:
    """The left side of a condition: a column of jobs, a field of the spec, a parameter, a tag or a metric."""

    name: str
    aggregate: Aggregate | None = None
    """The value of a metric to compare; None: the last value, or the key is no metric."""
    column: int = field(default=1, compare=False)
    """The column in the query at which the key begins, from 1."""

    def __str__(self) -> str:
        name = self.name if _is_plain(self.name) else in_backticks(self.name)
        return name if self.aggregate is None else f"{self.aggregate}({name})"


@dataclass(frozen=True)
class Comparison:
    """`key operator value`. A job that does not have the key does not match, whatever the operator."""

    key: Key
    operator: Operator
    value: Value


@dataclass(frozen=True)
class Membership:
    """`key in (...)`: the key has one of the values. With `negated`, the key exists and has none of them."""

    key: Key
    values: tuple[Value, ...]
    negated: bool = False


@dataclass(frozen=True)
class Exists:
    """`exists key`: the job has the key."""

    key: Key


@dataclass(frozen=True)
class Not:
    """Matches the jobs that `operand` does not match."""

    operand: "Node"


@dataclass(frozen=True)
class And:
    """Matches the jobs that all operands match."""

    operands: tuple["Node", ...]


@dataclass(frozen=True)
class Or:
    """Matches the jobs that any operand matches."""

    operands: tuple["Node", ...]


Node = Comparison | Membership | Exists | Not | And | Or


class QueryError(ValueError):
    """A query that cannot be parsed. `column` is the position of the problem, in characters from 1."""

    def __init__(self, problem: str, column: int):
        super().__init__(f"{problem} (column {column})")
        self.problem = problem
        self.column = column


def keys_of(node: Node) -> Iterator[Key]:
    """Yield the keys of a query in order, with repetitions."""
    if isinstance(node, Not):
        yield from keys_of(node.operand)
    elif isinstance(node, And | Or):
        for operand in node.operands:
            yield from keys_of(operand)
    else:
        yield node.key


def parse_query(text: str) -> Node | None:
    """Return the tree of a query; None for an empty query, which matches every job.

    Raises:
        QueryError: the query is malformed, or too long.
    """
    if len(text) > MAX_QUERY:
        raise QueryError(f"the query has {len(text)} characters; at most {MAX_QUERY} are allowed", MAX_QUERY + 1)
    parser = _Parser(text)
    if parser.kind == "end":
        return None
    node = parser.parse_or(0)
    if parser.kind != "end":
        hint = "; join conditions by `and` or `or`" if parser.kind in ("name", "text", "number", "quoted") else ""
        raise QueryError(f"unexpected {parser.described()}{hint}", parser.column)
    return node


def parse_key(text: str) -> Key:
    """Parse a single key, such as `optimizer.lr` or `min(eval/loss)`. Columns and sort orders are keys.

    Raises:
        QueryError: the text is not a single key.
    """
    if not text or len(text) > MAX_KEY:
        raise QueryError(f"a key has 1 to {MAX_KEY} characters", 1)
    aggregate, _, rest = text.partition("(")
    if aggregate in AGGREGATES and rest.endswith(")"):
        name = _unquoted(rest[:-1].strip())
        if name:
            return Key(name, _aggregate(aggregate))
    return Key(_unquoted(text))


def _aggregate(text: str) -> Aggregate:
    return next(one for one in AGGREGATES if one == text)


def in_backticks(name: str) -> str:
    """Return a name in backticks, as a key of a query. The name can have any characters; its backticks are doubled."""
    return f"`{name.replace('`', '``')}`"


def quoted(text: str) -> str:
    """Return a text in double quotes, as a value of a query."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def split_keys(text: str) -> list[str]:
    """Return the keys of a comma-separated list. A key in backticks may contain commas."""
    return [key.strip() for key in _KEY_IN_LIST.findall(text) if key.strip()]


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if _QUOTED.fullmatch(name) else name


def _is_plain(name: str) -> bool:
    match = _TOKEN.fullmatch(name)
    return match is not None and match["name"] == name and name.lower() not in _RESERVED and not _END_NAME.search(name)


class _Parser:
    """A recursive descent parser. It stores the current token of the query."""

    def __init__(self, text: str):
        self._text = text
        self._end = 0
        self._conditions = 0
        self.kind = ""
        self.lexeme = ""
        self.unit: str | None = None
        self.column = 1
        self._advance()

    def _advance(self) -> None:
        rest = self._text[self._end :]
        self.column = self._end + len(rest) - len(rest.lstrip()) + 1
        if not rest.strip():
            self.kind, self.lexeme, self.unit = "end", "", None
            return
        match = _TOKEN.match(self._text, self._end)
        if match is None:
            raise QueryError(self._unreadable(), self.column)
        self.kind = next(kind for kind in ("text", "quoted", "number", "name", "sign") if match[kind] is not None)
        self.lexeme, self.unit = match[self.kind], match["unit"]
        self._end = match.end()

    def _unreadable(self) -> str:
        character = self._text[self.column - 1]
        if character in "'\"`":
            return f"the quote {character} is not closed"
        if character.isdigit() or character in "+-.":
            word = _WORD.match(self._text, self.column - 1)
            return (
                f"`{word[0][:40] if word else character}` is not a number: only times have units (s, min, h, d, w); "
                "a name that begins with a digit or a sign is written in backticks"
            )
        if character in "&|":
            return f"{character!r} is not an operator; use `and`, `or` and `not`"
        return (
            f"unexpected {character!r}; a key with characters other than letters, digits and _ . / @ % : - is written "
            "in backticks, and a text in quotes"
        )

    def described(self) -> str:
        return "end of the query" if self.kind == "end" else f"`{self.lexeme[:40]}`"

    def _is_sign(self, sign: str) -> bool:
        return self.kind == "sign" and self.lexeme == sign

    def _word(self) -> str:
        return self.lexeme.lower() if self.kind == "name" else ""

    def parse_or(self, depth: int) -> Node:
        operands = [self._parse_and(depth)]
        while self._word() == "or":
            self._advance()
            operands.append(self._parse_and(depth))
        return operands[0] if len(operands) == 1 else Or(tuple(operands))

    def _parse_and(self, depth: int) -> Node:
        operands = [self._parse_unary(depth)]
        while self._word() == "and":
            self._advance()
            operands.append(self._parse_unary(depth))
        return operands[0] if len(operands) == 1 else And(tuple(operands))

    def _parse_unary(self, depth: int) -> Node:
        if depth > MAX_NESTING:
            raise QueryError(f"more than {MAX_NESTING} levels of parentheses and `not`", self.column)
        if self._word() == "not":
            self._advance()
            return Not(self._parse_unary(depth + 1))
        if self._is_sign("("):
            opened = self.column
            self._advance()
            node = self.parse_or(depth + 1)
            if not self._is_sign(")"):
                raise QueryError(f"expected `)` for the `(` in column {opened}, not {self.described()}", self.column)
            self._advance()
            return node
        return self._parse_condition()

    def _parse_condition(self) -> Node:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise QueryError(f"more than {MAX_CONDITIONS} conditions", self.column)
        if self._word() == "exists":
            self._advance()
            return Exists(self._parse_key())
        key = self._parse_key()
        word = self._word()
        if word == "is":
            self._advance()
            return self._parse_state(key)
        if word in ("in", "not"):
            self._advance()
            if word == "not":
                if self._word() != "in":
                    raise QueryError(f"expected `in` after `not`, not {self.described()}", self.column)
                self._advance()
            return Membership(key, self._parse_list(), negated=word == "not")
        return Comparison(key, self._parse_operator(key), self._parse_value(key))

    def _parse_state(self, key: Key) -> Node:
        """Parse the state after `key is`, as in `loss is nan` or `notes is not empty`. Other conditions express it."""
        negated = self._word() == "not"
        if negated:
            self._advance()
        word = self._word()
        state = _STATE_NAMES.get(word, word)
        if state not in _STATES:
            meaning = f"; to compare with a value, write `{key} = ...`" if self.kind != "end" else ""
            raise QueryError(
                f"expected {', '.join(_STATES[:-1])} or {_STATES[-1]} after `is`, not {self.described()}{meaning}",
                self.column,
            )
        self._advance()
        if state == "empty":
            return Exists(key) if negated else Not(Exists(key))
        values: tuple[Value, ...] = ("NaN",) if state == "nan" else ("Infinity", "-Infinity")
        return Membership(key, values, negated)

    def _parse_key(self) -> Key:
        if self.kind not in ("name", "quoted") or self._word() in _RESERVED:
            hint = "; a key in a condition is not quoted by ' or \", only by backticks" if self.kind == "text" else ""
            raise QueryError(
                f"expected a key such as `optimizer.lr`, `eval/loss` or `status`, not {self.described()}{hint}",
                self.column,
            )
        name, column, is_name = self.lexeme, self.column, self.kind == "name"
        self._advance()
        if not is_name or not self._is_sign("("):
            return Key(name if is_name else _unquoted(name), None, column)
        if name.lower() not in AGGREGATES:
            raise QueryError(
                f"`{name[:40]}(` is not known; use {', '.join(AGGREGATES)}{_meant(name, AGGREGATES)}", column
            )
        self._advance()
        if self.kind not in ("name", "quoted"):
            raise QueryError(f"expected a metric, not {self.described()}", self.column)
        metric = _unquoted(self.lexeme)
        self._advance()
        if not self._is_sign(")"):
            raise QueryError(f"expected `)`, not {self.described()}", self.column)
        self._advance()
        return Key(metric, _aggregate(name.lower()), column)

    def _parse_operator(self, key: Key) -> Operator:
        sign = "=" if self.lexeme == "==" else self.lexeme
        for operator in OPERATORS:
            if self.kind == "sign" and sign == operator:
                self._advance()
                return operator
        hint = ""
        if self.kind == "end":
            hint = f"; `name ~ {key}` finds jobs by their names"
        elif self._word() in ("contains", "like", "matches"):
            hint = "; `~` means contains"
        raise QueryError(
            f"expected an operator after `{key}`: one of {' '.join(OPERATORS)} or `in`, not {self.described()}{hint}",
            self.column,
        )

    def _parse_list(self) -> tuple[Value, ...]:
        if not self._is_sign("("):
            raise QueryError(f"expected `(` after `in`, not {self.described()}", self.column)
        self._advance()
        values = [self._parse_value(None)]
        while self._is_sign(","):
            self._advance()
            values.append(self._parse_value(None))
            if len(values) > MAX_LIST:
                raise QueryError(f"more than {MAX_LIST} values in one list", self.column)
        if not self._is_sign(")"):
            raise QueryError(f"expected `,` or `)`, not {self.described()}", self.column)
        self._advance()
        return tuple(values)

    def _parse_value(self, key: Key | None) -> Value:
        kind, lexeme, unit = self.kind, self.lexeme, self.unit
        if kind == "end" or kind == "sign" or (kind == "name" and lexeme.lower() in _RESERVED):
            after = f" to compare `{key}` with" if key else ""
            raise QueryError(f"expected a value{after}, not {self.described()}", self.column)
        self._advance()
        if kind == "text":
            return re.sub(r"\\(.)", r"\1", lexeme[1:-1], flags=re.DOTALL)
        if kind == "quoted":
            return _unquoted(lexeme)
        if kind == "number":
            number = float(lexeme.removesuffix(unit or ""))
            return Duration(number * _UNITS[unit]) if unit else number
        return {"true": True, "false": False}.get(lexeme.lower(), lexeme)


def _meant(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name.lower(), known, n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
