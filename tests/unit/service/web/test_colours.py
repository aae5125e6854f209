"""The twelve colours of curves differ, also for readers who do not see all hues, and from the page behind them."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import pytest

SERVICE = Path(__file__).parents[4] / "service"
STATIC = SERVICE / "web" / "static"
THEMES = ("light", "dark")
BACKGROUNDS = ("surface", "ground", "accent-soft")
"""Variables: cards, the page behind them, and selected rows."""
CURVES_PER_DASH = 6

Rgb = tuple[float, float, float]
"""Linear red, green and blue, 0 to 1; or lightness and the two axes of OKLab."""
Matrix = tuple[Rgb, Rgb, Rgb]

LINEAR_TO_CONES: Matrix = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
CONES_TO_OKLAB: Matrix = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)
"""https://bottosson.github.io/posts/oklab"""
DEFICIENCIES: Mapping[str, Matrix] = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""Machado, Oliveira and Fernandes 2009, severity 1, on linear values."""


def times(matrix: Matrix, vector: Rgb) -> Rgb:
    one, two, three = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return one, two, three


def linear(text: str) -> Rgb:
    values = (int(text[begin : begin + 2], 16) / 255 for begin in (1, 3, 5))
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in values)
    return red, green, blue


def oklab(colour: Rgb) -> Rgb:
    one, two, three = (math.cbrt(cone) for cone in times(LINEAR_TO_CONES, colour))
    return times(CONES_TO_OKLAB, (one, two, three))


def as_perceived(colour: Rgb, deficiency: str) -> Rgb:
    one, two, three = (min(1.0, max(0.0, value)) for value in times(DEFICIENCIES[deficiency], colour))
    return one, two, three


def contrast(one: Rgb, other: Rgb) -> float:
    """Return the contrast of WCAG 2.2, 1 to 21."""
    light, dark = sorted((0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def least_distance(colours: Iterable[Rgb]) -> float:
    """Return the least distance in OKLab; black and white have 1, and 0.02 can just be noticed in large areas."""
    return min(math.dist(oklab(one), oklab(other)) for one, other in combinations(colours, 2))


def variables() -> dict[str, dict[str, str]]:
    """Return the variables of `base.css` that are colours, by theme."""
    light, dark = (STATIC / "base.css").read_text().split("}")[:2]
    return {
        theme: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", text))
        for theme, text in zip(THEMES, (light, dark), strict=True)
    }


def palette(theme: str) -> Sequence[Rgb]:
    names = re.findall(r'"([\w-]+)"', re.findall(r"const PALETTE = \[(.*?)\]", script(), re.DOTALL)[0])
    return [linear(variables()[theme][name]) for name in names]


def script() -> str:
    return (STATIC / "colours.js").read_text()


@pytest.mark.parametrize("theme", THEMES)
def test_twelve_colours_differ_from_each_other(theme: str) -> None:
    colours = palette(theme)
    assert len(colours) == 12
    assert least_distance(colours) >= 0.12


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_colours_of_equal_dashes_differ_with_a_deficiency(theme: str, deficiency: str) -> None:
    assert f"const CURVES_PER_DASH = {CURVES_PER_DASH};" in script()
    shown = [as_perceived(colour, deficiency) for colour in palette(theme)]
    assert least_distance(shown[:CURVES_PER_DASH]) >= 0.07
    assert least_distance(shown[CURVES_PER_DASH:]) >= 0.055


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("background", BACKGROUNDS)
def test_colours_have_contrast_to_the_page(theme: str, background: str) -> None:
    behind = linear(variables()[theme][background])
    assert min(contrast(colour, behind) for colour in palette(theme)) >= 3


def test_no_script_has_colours_of_its_own() -> None:
    scripts = [path for path in SERVICE.rglob("*.js") if "vendor" not in path.parts]
    own = {path.name for path in scripts if re.search(r"""hsl\(|["'`]#[0-9a-f]{6}\b""", path.read_text())}
    assert own == set()


def test_distances_and_contrasts_are_those_of_their_definitions() -> None:
    white, black, grey = linear("#ffffff"), linear("#000000"), linear("#767676")
    assert least_distance([white, black]) == pytest.approx(1, abs=1e-3)
    assert contrast(white, black) == pytest.approx(21)
    assert contrast(white, grey) == pytest.approx(4.54, abs=0.01)
    assert oklab(linear("#ff0000")) == pytest.approx((0.628, 0.225, 0.126), abs=1e-3)
