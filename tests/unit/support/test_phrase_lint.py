"""The lint of sentences counts phrases in docstrings and comments alone."""

from tests.support.phrase_lint import LIMITS, PHRASES, problems, rates, sentences

SOURCE = '''"""What a module does."""

name = "that of one"  # inline
# By the way, that of another.
'''


def test_docstrings_and_comments_are_read() -> None:
    assert list(sentences(SOURCE)) == [(1, "What a module does."), (4, "By the way, that of another.")]


def test_a_frequent_phrase_is_a_problem() -> None:
    measured = rates(iter(["that of the one " * 10, "a plain sentence with a subject"]))
    assert measured["that of, those of"] == 1000 * 10 / 46
    assert [line.split("`")[1] for line in problems(measured)] == ["that of, those of", "one, ones"]
    assert problems(dict.fromkeys(PHRASES, 0.0)) == []


def test_each_phrase_has_a_limit() -> None:
    assert PHRASES.keys() == LIMITS.keys()
