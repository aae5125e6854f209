import pytest

from worker.data.aligned_parts import aligned


@pytest.mark.parametrize(
    ("text", "parts", "positions"),
    [
        ("<a>x<b>y<c>", ["<a>", "<b>", "<c>"], [0, 4, 8]),
        ("<a><b><c>", ["<a>", "<b>", "<c>"], [0, 3, 6]),
        ("<a>xx<a>y", ["<a>", "<a>", ""], [0, 5, 9]),
        ("ab", ["a", "b"], [0, 1]),
    ],
)
def test_positions_of_pieces_are_returned(text, parts, positions):
    assert aligned(text, parts) == positions


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<a>x<b>y<b>z<c>", ["<a>", "<b>", "<c>"]),
        ("<a>x<c>", ["<a>", "<b>", "<c>"]),
        ("x<a>", ["<a>", ""]),
        ("<a>x", ["<a>", "<b>"]),
        ("aba", ["ab", "ba"]),
        ("<b><a>", ["", "<a>", "<b>", ""]),
    ],
)
def test_several_ways_or_none_are_no_positions(text, parts):
    assert aligned(text, parts) is None
