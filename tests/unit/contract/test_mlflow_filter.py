"""Filter strings of MLflow are read and evaluated as MLflow does."""

import pytest

from tests.support.cpu_limit import at_most
from trainyard.contract.mlflow_filter import (
    Condition,
    FilterError,
    Order,
    Value,
    matches_pattern,
    parse_filter,
    parse_order,
)

_ATTRIBUTES = ("run_id", "run_name", "status", "user_id", "start_time", "end_time")


def parse(text: str) -> list[Condition]:
    return parse_filter(text, _ATTRIBUTES, ("param", "tag", "metric"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("params.lr = '3e-4'", [Condition("param", "lr", "=", "3e-4")]),
        ('parameter."a b" != "it\'s"', [Condition("param", "a b", "!=", "it's")]),
        ("tags.`a.b/c` LIKE 'x%'", [Condition("tag", "a.b/c", "LIKE", "x%")]),
        ("tag.x.y='it''s'", [Condition("tag", "x.y", "=", "it's")]),
        ("metrics.train/loss<=-.5e-1", [Condition("metric", "train/loss", "<=", -0.05)]),
        ("attributes.status IN ('FAILED','KILLED')", [Condition("attribute", "status", "IN", ("FAILED", "KILLED"))]),
        ("run_name not in ('a')", [Condition("attribute", "run_name", "NOT IN", ("a",))]),
        ("tags.x IS NOT NULL", [Condition("tag", "x", "IS NOT NULL")]),
        (
            "start_time > 10 and user_id = 'ann'",
            [Condition("attribute", "start_time", ">", 10.0), Condition("attribute", "user_id", "=", "ann")],
        ),
    ],
)
def test_filters_are_read(text: str, expected: list[Condition]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params.lr", "ends within"),
        ("params.lr = 3", "not a quoted text"),
        ("params.lr > '3'", "possible are"),
        ("metrics.loss = 'x'", "not a number"),
        ("metrics.loss LIKE 'x'", "possible are"),
        ("datasets.name = 'x'", "names 'datasets.name'"),
        ("attributes.color = 'x'", "names the attribute"),
        ("params.a = 'x' OR params.b = 'y'", "joined by AND"),
        ("params.a = 'x' AND", "ends within"),
        ("params.a IN 'x'", "is expected"),
        ("params.a = 'x", "cannot be read"),
        ("params.a ~ 'x'", "cannot be read"),
        (" AND ".join(["params.a = 'x'"] * 60), "more than 50"),
        ("x" * 10_001, "more than 10000"),
    ],
)
def test_other_filters_are_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("params.lr = '3e-4'", "0.0003", True),
        ("params.lr != '3e-4'", "0.0003", False),
        ("params.on = 'true'", "True", True),
        ("params.lr IN ('1', '2.0')", "2", True),
        ("params.lr = '1'", None, False),
        ("params.lr != '1'", None, False),
        ("params.lr IS NULL", None, True),
        ("params.lr IS NOT NULL", "1", True),
        ("tags.x = '2.0'", "2", False),
        ("tags.x NOT IN ('a', 'b')", "c", True),
        ("tags.x ILIKE 'A_c%'", "abcd", True),
        ("tags.x LIKE 'A_c%'", "abcd", False),
        ("metrics.m < 0.5", 0.4, True),
        ("metrics.m < 0.5", float("nan"), False),
        ("metrics.m != 0.5", 0.5, False),
        ("metrics.m >= 1", float("inf"), True),
    ],
)
def test_conditions_hold_for_values(text: str, value: Value, holds: bool) -> None:
    (condition,) = parse(text)
    assert condition.holds(value) == holds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start_time", Order("attribute", "start_time", descending=False)),
        ("attributes.run_name ASC", Order("attribute", "run_name", descending=False)),
        ("metrics.train/loss desc", Order("metric", "train/loss", descending=True)),
        ("tags.`a b` DESC", Order("tag", "a b", descending=True)),
    ],
)
def test_orders_are_read(text: str, expected: Order) -> None:
    assert parse_order(text, _ATTRIBUTES, ("param", "tag", "metric")) == expected


@pytest.mark.parametrize("text", ["", "metrics.a DESC b", "metrics.a < 1", "color", "datasets.a", "'a'"])
def test_other_orders_are_refused(text: str) -> None:
    with pytest.raises(FilterError):
        parse_order(text, _ATTRIBUTES, ("param", "tag", "metric"))


@pytest.mark.parametrize(
    ("text", "pattern", "matches"),
    [
        ("", "", True),
        ("", "%", True),
        ("a", "", False),
        ("abc", "abc", True),
        ("abc", "a%", True),
        ("abc", "%c", True),
        ("abc", "a%c%", True),
        ("abc", "a_c", True),
        ("abc", "a_", False),
        ("ab", "ab%b", False),
        ("aab", "a%ab", True),
        ("a.c", "a.c", True),
        ("abc", "a.c", False),
        ("a\nb", "a%b", True),
        ("xayaz", "%a%a%", True),
        ("xay", "%a%a%", False),
    ],
)
def test_patterns_match_whole_texts(text: str, pattern: str, matches: bool) -> None:
    assert matches_pattern(text, pattern) == matches


def test_many_wildcards_take_little_time() -> None:
    with at_most(2):
        assert not matches_pattern("a" * 6000, "%a" * 5000 + "b")
