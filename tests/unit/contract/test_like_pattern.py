"""Patterns of LIKE match whole texts, in little time."""

import pytest

from tests.support.cpu_limit import at_most
from trainyard.contract.like_pattern import matches_pattern


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
