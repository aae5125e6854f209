"""Values of parameters are compared by value."""

import pytest

from trainyard.contract.parameter_text import index_text


@pytest.mark.parametrize(
    ("one", "other"),
    [(0.0003, "3e-4"), (1, "1.0"), (1.0, "1"), ("0.50", ".5"), (True, "True"), (None, "null"), ("adam", "adam")],
)
def test_values_that_are_equal_have_one_text(one: object, other: str) -> None:
    assert index_text(one) == index_text(other)  # type: ignore[arg-type]


@pytest.mark.parametrize(("one", "other"), [(1, True), ("a", "A"), (0.1, 0.2), ("1_0", 10), ("", None)])
def test_values_that_differ_have_different_texts(one: object, other: object) -> None:
    assert index_text(one) != index_text(other)  # type: ignore[arg-type]


def test_text_is_bounded() -> None:
    assert len(index_text("9" * 2000)) == len(index_text(10**4000)) == 200
