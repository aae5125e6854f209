"""The query language of jobs: what it means, how it fails, and that any text either parses or names a column."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainyard.contract.job_query import (
    AGGREGATES,
    MAX_NESTING,
    And,
    Comparison,
    Duration,
    Exists,
    Key,
    Membership,
    Node,
    Not,
    Or,
    QueryError,
    keys_of,
    parse_key,
    parse_query,
)

LR, LOSS, TAG = Key("optimizer.lr"), Key("eval/loss"), Key("tag")


def test_and_binds_closer_than_or_and_values_have_types() -> None:
    query = "optimizer.lr < 1e-3 and eval/loss<2 or not (tag = \"base line\" and status in (succeeded, 'failed'))"
    status = Membership(Key("status"), ("succeeded", "failed"))
    assert parse_query(query) == Or(
        (
            And((Comparison(LR, "<", 0.001), Comparison(LOSS, "<", 2.0))),
            Not(And((Comparison(TAG, "=", "base line"), status))),
        )
    )


@pytest.mark.parametrize(
    ("query", "node"),
    [
        ("a == true", Comparison(Key("a"), "=", True)),
        ("created > -7d", Comparison(Key("created"), ">", Duration(-604800.0))),
        ("runtime > 5m", Comparison(Key("runtime"), ">", Duration(300.0))),
        ("runtime <= 1.5h", Comparison(Key("runtime"), "<=", Duration(5400.0))),
        ("min(eval/loss) >= -.5E+2", Comparison(Key("eval/loss", "min"), ">=", -50.0)),
        ("BEST(`acc@1 (val)`)!=1", Comparison(Key("acc@1 (val)", "best"), "!=", 1.0)),
        ("acc@1 > 3", Comparison(Key("acc@1"), ">", 3.0)),
        ("max > 3", Comparison(Key("max"), ">", 3.0)),
        ("name !~ x-y", Comparison(Key("name"), "!~", "x-y")),
        (r'name = "a\"b\\"', Comparison(Key("name"), "=", 'a"b\\')),
        ("seed not in (1,2)", Membership(Key("seed"), (1.0, 2.0), negated=True)),
        ("EXISTS eval/loss AND NOT exists lr", And((Exists(LOSS), Not(Exists(Key("lr")))))),
        ("loss is NaN", Membership(Key("loss"), ("NaN",))),
        ("loss is not inf", Membership(Key("loss"), ("Infinity", "-Infinity"), negated=True)),
        ("notes is empty", Not(Exists(Key("notes")))),
        ("notes IS NOT null and is = 1", And((Exists(Key("notes")), Comparison(Key("is"), "=", 1.0)))),
        ("model.name = 7b-chat", None),
        ("   ", None),
    ],
)
def test_forms(query: str, node: Node | None) -> None:
    if query.startswith("model"):
        with pytest.raises(QueryError, match="backticks"):
            parse_query(query)
    else:
        assert parse_query(query) == node


@pytest.mark.parametrize(
    ("query", "column", "expected"),
    [
        ("lr <", 5, "expected a value to compare `lr` with, not end of the query"),
        ("lr < 1 seed = 2", 8, "join conditions by `and` or `or`"),
        ("(lr < 1", 8, "expected `)` for the `(` in column 1"),
        ("lr < 1 && seed = 2", 8, "use `and`"),
        ('"lr" < 1', 1, "not quoted"),
        ("lr 3", 4, "expected an operator after `lr`"),
        ("digits", 7, "not end of the query; `name ~ digits` finds jobs by their names"),
        ("name contains digits", 6, "not `contains`; `~` means contains"),
        ("name = 'x", 8, "the quote ' is not closed"),
        ("mim(loss) < 2", 1, "did you mean `min`?"),
        ("seed in 3", 9, "expected `(` after `in`"),
        ("seed not 3", 10, "expected `in` after `not`"),
        ("and lr = 1", 1, "expected a key"),
        ("lr = 1 and", 11, "end of the query"),
        ("lr = 1\n  and ;", 14, "unexpected ';'"),
        ("(" * (MAX_NESTING + 2) + "a=1", MAX_NESTING + 2, "levels of parentheses"),
        (" or ".join(["a=1"] * 51), 351, "more than 50 conditions"),
        ("a in (" + ",".join(["1"] * 201) + ")", 408, "more than 200 values"),
        ("a" * 4001, 4001, "at most 4000"),
    ],
)
def test_errors_name_their_column(query: str, column: int, expected: str) -> None:
    with pytest.raises(QueryError) as refused:
        parse_query(query)
    assert expected in str(refused.value)
    assert refused.value.column == column
    assert f"(column {column})" in str(refused.value)


_PARTS = [*"abz_.0159eE+-*/@%:<>=!~(),'\"`\\ \n\tµ😀&", " and ", " not ", " in ", "exists ", "min("]


def _refusal(text: str) -> QueryError | None:
    try:
        parse_query(text)
    except QueryError as error:
        return error
    return None


@given(st.lists(st.sampled_from(_PARTS), max_size=30).map("".join))
def test_any_text_parses_or_names_a_column_within_it(text: str) -> None:
    refusal = _refusal(text)
    assert refusal is None or 1 <= refusal.column <= len(text) + 1


_NAMES = st.one_of(
    st.from_regex(r"[a-z_][a-z0-9_]{0,8}(?:[./][a-z0-9_]{1,8}){0,2}", fullmatch=True),
    st.text(alphabet=st.characters(exclude_characters="`", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20),
)
_KEYS = st.builds(Key, _NAMES, st.sampled_from([None, *AGGREGATES]))
_VALUES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.text(max_size=20),
    st.integers(-500, 500).map(lambda number: Duration(float(number) * 60)),
)
_CONDITIONS = st.one_of(
    st.builds(Comparison, _KEYS, st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "~", "!~"]), _VALUES),
    st.builds(Membership, _KEYS, st.lists(_VALUES, min_size=1, max_size=4).map(tuple), st.booleans()),
    st.builds(Exists, _KEYS),
)


def _groups(inner: Any) -> Any:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(st.builds(Not, inner), st.builds(And, several), st.builds(Or, several))


def _written(node: Node) -> str:
    """A query that has this tree; every inner group has parentheses."""
    if isinstance(node, Not):
        return f"not ({_written(node.operand)})"
    if isinstance(node, And | Or):
        word = " and " if isinstance(node, And) else " or "
        return word.join(f"({_written(operand)})" for operand in node.operands)
    if isinstance(node, Exists):
        return f"exists {node.key}"
    if isinstance(node, Membership):
        return f"{node.key} {'not ' if node.negated else ''}in ({', '.join(map(_value, node.values))})"
    return f"{node.key} {node.operator} {_value(node.value)}"


def _value(value: Any) -> str:
    if isinstance(value, Duration):
        return f"{value.seconds / 60:g}min"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value).lower() if isinstance(value, bool) else repr(value)


@example(Comparison(Key(" A"), "=", 0.0))
@given(st.recursive(_CONDITIONS, _groups, max_leaves=6))
def test_a_written_tree_is_read_again(node: Node) -> None:
    text = _written(node)
    assert parse_query(text) == node
    assert all(str(key) in text for key in keys_of(node))


@given(_KEYS)
def test_keys_of_columns_and_sorts_are_read_as_they_are_written(key: Key) -> None:
    assert parse_key(str(key)) == key


@pytest.mark.parametrize("text", ["", "x" * 601])
def test_keys_have_limits(text: str) -> None:
    with pytest.raises(QueryError):
        parse_key(text)
