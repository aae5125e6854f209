"""Check names: no identifier has a word that is too vague, and no test name is too long.

Usage: python -m tests.support.name_lint [--count]
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("service", "worker", "trainyard", "migrations", "jobs_templates", "tests", "bench", "docker")
MAX_TEST_NAME = 70

REPLACEMENTS = {
    **dict.fromkeys(("told", "tell", "tells"), "notified, sent, reported"),
    **dict.fromkeys(("asked", "asks", "wanted", "wish", "wishes"), "requested, expected"),
    **dict.fromkeys(("said", "says", "heard", "hears", "seen"), "reported, received, observed"),
    **dict.fromkeys(("look", "looks"), "check, observe, query"),
    **dict.fromkeys(("kept",), "retained, stored"),
    **dict.fromkeys(("found",), "matches, result, or what it is"),
    **dict.fromkeys(("words",), "message, text"),
    **dict.fromkeys(("place",), "offset, position, slot, folder"),
    **dict.fromkeys(("person",), "user, owner, principal"),
    **dict.fromkeys(("piece", "thing", "things"), "what it is: part, chunk, micro_batch, item"),
    **dict.fromkeys(("moment", "stretch"), "time, phase, interval"),
    **dict.fromkeys(("beside",), "alongside, next_to"),
}
"""Terms to use instead of each word that is too vague for a name."""
ALLOWED_NAMES = re.compile(r"not_?found|placeholder|replace|in_?place", re.IGNORECASE)
"""Terms of HTTP, PyTorch and the standard library that contain a banned word."""
CAMEL_CASE_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def components(name: str) -> list[str]:
    """The lower-case words of a snake_case or CamelCase name."""
    return [word.lower() for word in CAMEL_CASE_PART.findall(ALLOWED_NAMES.sub("", name))]


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each name that a module defines or binds, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, getattr(node, "lineno", 0)


def problems_of(path: Path, source: str) -> Iterator[str]:
    """One line for each name of a module that breaks a rule."""
    for part in path.with_suffix("").parts:
        for word in REPLACEMENTS.keys() & components(part):
            yield f"{path}: the module's name has the word `{word}`; use for example: {REPLACEMENTS[word]}"
    reported = set()
    for name, line in bound_names(ast.parse(source)):
        for word in REPLACEMENTS.keys() & components(name) if name not in reported else ():
            reported.add(name)
            yield f"{path}:{line}: `{name}` has the word `{word}`; use for example: {REPLACEMENTS[word]}"
        if name.startswith("test_") and len(name) > MAX_TEST_NAME:
            yield f"{path}:{line}: `{name}` has {len(name)} characters, more than {MAX_TEST_NAME}"


def main(argv: list[str]) -> int:
    """Print every problem, or with --count how many each folder has; the exit status."""
    problems: list[str] = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            problems += problems_of(path.relative_to(ROOT), path.read_text())
    if "--count" in argv:
        for folder, count in sorted(Counter(str(Path(line.split(":")[0]).parent) for line in problems).items()):
            print(f"{count:5}  {folder}")
    else:
        print("\n".join(problems))
    print(f"{len(problems)} names to change; docs/glossary.md has the terms")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
