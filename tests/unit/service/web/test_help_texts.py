"""The documentation as pages: which files there are, where links lead, and what a search finds."""

import re
from pathlib import Path

import pytest

from service.web.help_texts import GROUPS, HelpTexts

LINK = r'href="(?:/help/([^"#]+))?(?:#([^"]+))?"'
DOCS = Path(__file__).parents[4] / "docs"


@pytest.fixture(scope="module")
def texts() -> HelpTexts:
    return HelpTexts()


def test_contents_have_every_file_once(texts: HelpTexts) -> None:
    named = [name for _, names in GROUPS for name in names]
    assert sorted(named) == sorted(path.stem for path in DOCS.glob("*.md"))
    assert [text.name for _, group in texts.contents() for text in group] == named


def test_links_between_pages_lead_to_sections(texts: HelpTexts) -> None:
    pages = [path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")]
    ids = {}
    links = []
    for name in pages:
        text = texts.get(name)
        assert text is not None
        ids[name] = set(re.findall(r' id="([^"]+)"', text.html))
        assert re.findall(r'href="(?!/help/|#|https://)[^"]*"', text.html) == []
        links += [(name, page or name, anchor) for page, anchor in re.findall(LINK, text.html)]
    assert len(links) > 100
    assert [link for link in links if link[1] not in ids or (link[2] and link[2] not in ids[link[1]])] == []


def test_markup_of_a_file_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# <b>A</b>\n\n<script>alert(1)</script> [x](javascript:alert(1))\n")
    text = HelpTexts(tmp_path).get("a")
    assert text is not None
    assert "<script>" not in text.html
    assert "javascript:" not in re.findall(r'href="[^"]*"', text.html)
    assert text.title == "<b>A</b>"


def test_equal_headings_have_their_own_anchors(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\n## Same `x`\n\n## Same `x`\n")
    text = HelpTexts(tmp_path).get("a")
    assert text is not None
    assert [section.anchor for section in text.contents] == ["same-x", "same-x-1"]


@pytest.mark.parametrize("name", ["", "none", "../README", "/etc/passwd", "decisions", "programs.md", "a\x00b"])
def test_other_files_are_not_found(texts: HelpTexts, name: str) -> None:
    assert texts.get(name) is None


def test_search_finds_sections_with_all_terms(texts: HelpTexts) -> None:
    (first, *_) = texts.search("Trackers TENSORBOARD")
    assert (first.page, first.anchor) == ("programs", "trackers")
    assert texts.search("zzz-nothing") == []
    assert texts.search("  ") == []
    assert len(texts.search("a")) == 30


def test_installation_without_documentation_has_no_contents(tmp_path: Path) -> None:
    assert HelpTexts(tmp_path / "none").contents() == []
