"""The curve that is drawn on the server."""

import math

from service.web.svg_preview import draw


def test_it_goes_from_the_highest_to_the_lowest_corner() -> None:
    svg = draw([0, 10], [2.0, 1.0], title="Loss", width=640, height=240)
    assert 'd="M56.0 8.0L632.0 210.0"' in svg
    assert '<span class="high">2</span>' in svg
    assert '<span class="last">10</span>' in svg


def test_what_is_no_number_is_left_out() -> None:
    svg = draw([0, 1, 2, 3], [1.0, math.nan, math.inf, 2.0], title="Loss")
    assert "nan" not in svg.lower()
    assert svg.count("L") == 2, "one line, and the word Loss"


def test_a_curve_that_does_not_move_is_in_the_middle_and_one_point_is_none() -> None:
    assert "109.0L" in draw([0, 1], [3.0, 3.0], title="x")
    assert draw([0], [1.0], title="x") == ""


def test_a_title_is_text() -> None:
    assert "<b>" not in draw([0, 1], [0.0, 1.0], title='"><b>')
