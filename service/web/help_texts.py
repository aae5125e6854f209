"""The documentation of the repository as HTML, and a search in it. `documentation` is a link to the folder `docs`."""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from markdown_it import MarkdownIt
from markdown_it.token import Token

_FOLDER = Path(__file__).parent / "documentation"
_NOT_IN_ANCHOR = re.compile(r"[^\w\- ]")
_MAX_RESULTS = 30
GROUPS: Sequence[tuple[str, Sequence[str]]] = (
    ("Train", ("programs", "finetuning", "tasks", "objectives", "data", "lora", "sweeps", "openai", "planner")),
    ("Reference", ("spec", "runs-table", "dashboard", "api", "api-reference", "glossary")),
    ("Operate", ("operations", "settings", "security", "environments")),
    ("Inside", ("engine", "gpu", "benchmarks")),
)
"""The pages of the contents; decisions are reached by links."""


@dataclass(frozen=True)
class Section:
    """A heading with the text below it."""

    page: str
    title: str
    anchor: str
    text: str
    """In lower case, with the title."""


@dataclass(frozen=True)
class HelpText:
    """One file of the documentation."""

    name: str
    title: str
    html: str
    sections: tuple[Section, ...]

    @property
    def contents(self) -> list[Section]:
        return list(self.sections[1:])


@dataclass
class _Reader:
    """Splits the tokens of a file into sections, and gives headings anchors and links addresses."""

    page: str
    sections: list[Section] = field(default_factory=list)
    title: str = ""
    anchor: str = ""
    texts: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)

    def read(self, tokens: Sequence[Token]) -> None:
        for number, token in enumerate(tokens):
            if token.type == "heading_open" and token.tag in ("h1", "h2", "h3"):
                self._close()
                self.title = _plain(tokens[number + 1])
                self.anchor = self._anchor(self.title)
                token.attrSet("id", self.anchor)
            elif token.type == "table_open":
                token.attrSet("class", "plain")
            elif token.type in ("fence", "code_block"):
                self.texts.append(token.content)
            elif token.type == "inline":
                self.texts.append(_plain(token))
                self._direct_links(token.children or ())
        self._close()

    def _direct_links(self, tokens: Sequence[Token]) -> None:
        """Let links lead to pages of the help. Links to files that only the repository has become text."""
        address: str | None = ""
        for token in tokens:
            if token.type == "link_open":
                address = _address(self.page, str(token.attrGet("href")))
                token.attrs = {} if address is None else {"href": address}
            if token.type in ("link_open", "link_close") and address is None:
                token.tag = "span"

    def _close(self) -> None:
        if self.title:
            text = " ".join([self.title, *self.texts]).lower()
            self.sections.append(Section(self.page, self.title, self.anchor, text))
        self.texts = []

    def _anchor(self, title: str) -> str:
        """Return the anchor that GitHub gives a heading, so that links work in both places."""
        anchor = base = _NOT_IN_ANCHOR.sub("", title.lower()).replace(" ", "-")
        number = 0
        while anchor in self.known:
            number += 1
            anchor = f"{base}-{number}"
        self.known.add(anchor)
        return anchor


class HelpTexts:
    """Renders files at their first request, and keeps them: they belong to the installed version."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        self._folder = folder
        self._texts: dict[str, HelpText] = {}

    def get(self, name: str) -> HelpText | None:
        """Return a file by its path without `.md`; None if there is none."""
        if name not in self._names:
            return None
        text = self._texts.get(name)
        if text is None:
            text = self._texts[name] = _render(name, (self._folder / f"{name}.md").read_text(encoding="utf-8"))
        return text

    def contents(self) -> list[tuple[str, list[HelpText]]]:
        """Return the groups of the contents with their files."""
        groups = [(title, [text for name in names if (text := self.get(name))]) for title, names in GROUPS]
        return [(title, texts) for title, texts in groups if texts]

    def search(self, query: str) -> list[Section]:
        """Return the sections that have all terms of a query; the sections with the most terms in their titles come
        first."""
        terms = query.lower().split()
        matches = [
            section
            for _, texts in self.contents()
            for text in texts
            for section in text.sections
            if terms and all(term in section.text for term in terms)
        ]
        matches.sort(key=lambda section: -sum(term in section.title.lower() for term in terms))
        return matches[:_MAX_RESULTS]

    @cached_property
    def _names(self) -> frozenset[str]:
        paths = [*self._folder.glob("*.md"), *self._folder.glob("decisions/*.md")]
        return frozenset(path.relative_to(self._folder).with_suffix("").as_posix() for path in paths)


def _render(name: str, text: str) -> HelpText:
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    reader = _Reader(name)
    reader.read(tokens)
    html = str(markdown.renderer.render(tokens, markdown.options, {}))
    html = html.replace("<table ", '<div class="scroll" tabindex="0"><table ').replace("</table>", "</table></div>")
    html = html.replace("<pre>", '<pre tabindex="0">')
    title = reader.sections[0].title if reader.sections else name
    return HelpText(name, title, html, tuple(reader.sections))


def _plain(token: Token) -> str:
    return "".join(child.content if child.type != "softbreak" else " " for child in token.children or ())


def _address(page: str, href: str) -> str | None:
    """Return the address of a link's target: another page of the help, or a foreign address; None: neither."""
    if href.startswith(("#", "https://", "http://")):
        return href
    folder = PurePosixPath(page).parent
    target = posixpath.normpath(str(folder / href.partition("#")[0]))
    if target.startswith("../") or not target.endswith(".md"):
        return None
    return f"/help/{target.removesuffix('.md')}{''.join(href.partition('#')[1:])}"
