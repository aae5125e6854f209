"""Sizes of text, weights and spaces of all pages are those of the scale in `base.css`."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVICE = Path(__file__).parents[4] / "service"
SCALE = {"small", "base", "large", "title", "normal", "strong", *(f"s{number}" for number in range(7))}
DECLARATION = re.compile(
    r"(?<![\w-])(font(?:-size|-weight)?|(?:row-|column-)?gap|(?:margin|padding)(?:-\w+)?):([^;}]+)"
)
OF_SCALE = re.compile(rf"calc\(-1 \* var\(--({'|'.join(SCALE)})\)\)|var\(--({'|'.join(SCALE)}|mono|line-height)\)")
NEUTRAL = re.compile(r"\b(0|auto|inherit|normal|!important|sans-serif|system-ui)\b|!important")
EXCEPTIONS = {
    'base.css: font: var(--base)/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif',
    "api_docs.css: font: var(--small)/1.5 var(--mono)",
    "job.css: padding-bottom: 48vh",  # as high as the log below the page
    "job.css: margin-right: 42vw",  # as wide as the log next to the page
    "jobs.css: padding-bottom: 220px",  # as high as the bar of the selection on a phone
}


def literals(name: str, text: str) -> Iterator[str]:
    """Yield the declarations of a style sheet with sizes, weights or spaces that are not of the scale."""
    for prop, value in DECLARATION.findall(re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)):
        rest = NEUTRAL.sub("", OF_SCALE.sub("", value))
        if rest.strip(" /\n") and not (prop == "margin" and rest.strip() == "auto"):
            yield f"{name}: {prop}: {' '.join(value.split())}"


def style_sheets() -> dict[str, str]:
    paths = (path for path in SERVICE.rglob("*.css") if "vendor" not in path.parts)
    return {path.name: path.read_text() for path in paths}


def test_sizes_weights_and_spaces_are_of_the_scale() -> None:
    used = {one for name, text in style_sheets().items() for one in literals(name, text)}
    assert used == EXCEPTIONS, "use a variable of base.css"


def test_each_variable_of_the_scale_is_defined_once() -> None:
    defined = re.findall(r"^  --([\w-]+):", style_sheets()["base.css"].split("}")[0], re.MULTILINE)
    assert sorted(one for one in defined if one in SCALE) == sorted(SCALE)


@pytest.mark.parametrize(
    ("rule", "offends"),
    [
        ("a { padding: var(--s1) 0; margin: calc(-1 * var(--s2)) auto }", False),
        ("a { font: var(--small)/var(--line-height) var(--mono) }", False),
        ("a { /* padding: 3px */ grid-template-columns: 3px; --gap: 3px }", False),
        ("a { padding: 3px }", True),
        ("a { margin-left: .5rem }", True),
        ("a { font-weight: 700 }", True),
        ("a { font-size: 1.2em }", True),
        ("a { gap: var(--row) }", True),
    ],
)
def test_a_literal_is_noticed(rule: str, offends: bool) -> None:
    assert bool(list(literals("a.css", rule))) is offends
