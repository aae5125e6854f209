"""Check sentences: docstrings and comments use few phrases that hide the subject or the noun.

Usage: python -m tests.support.phrase_lint [FOLDER...]. With folders, list each match.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("service", "worker", "trainyard")
PHRASES = {
    "that of, those of": re.compile(r"\b(?:that|those) of\b"),
    "what": re.compile(r"\bwhat\b"),
    "one, ones": re.compile(r"\bones?\b"),
    "Of, By at the beginning": re.compile(r"^(?:Of|By) ", re.MULTILINE),
    "as it is, as they are": re.compile(r"\bas (?:it is|they are)\b"),
}
LIMITS = {
    "that of, those of": 0.05,
    "what": 0.4,
    "one, ones": 2.0,
    "Of, By at the beginning": 0.05,
    "as it is, as they are": 0.1,
}
"""Matches in 1,000 words of docstrings and comments, at most."""


def sentences(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments of a module with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for number, line in enumerate(source.splitlines(), 1):
        if line.strip().startswith("# "):
            yield number, line.strip()[2:]


def rates(texts: Iterator[str]) -> dict[str, float]:
    """Return how often each phrase occurs in 1,000 words."""
    total, counts = 0, Counter[str]()
    for text in texts:
        total += len(text.split())
        counts.update({phrase: len(pattern.findall(text)) for phrase, pattern in PHRASES.items()})
    return {phrase: 1000 * counts[phrase] / max(total, 1) for phrase in PHRASES}


def problems(measured: dict[str, float]) -> list[str]:
    """Return a line for each phrase that is too frequent."""
    return [
        f"`{phrase}`: {measured[phrase]:.2f} times in 1,000 words, more than {limit}; name the subject and the noun"
        for phrase, limit in LIMITS.items()
        if measured[phrase] > limit
    ]


def _modules(folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        # `_sync` is generated from `_async`.
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if "_sync" not in path.parts)


def main(folders: tuple[str, ...]) -> int:
    for path in _modules(folders):
        for number, text in sentences(path.read_text()):
            if names := [phrase for phrase, pattern in PHRASES.items() if pattern.search(text)]:
                print(f"{path.relative_to(ROOT)}:{number}: {'; '.join(names)}")
    if folders:
        return 0
    excess = problems(rates(text for path in _modules(FOLDERS) for _, text in sentences(path.read_text())))
    print("\n".join(excess) or "sentences: all phrases are within their limits")
    return 1 if excess else 0


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:])))
