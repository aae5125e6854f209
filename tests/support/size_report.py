"""`python -m tests.support.size_report`: sizes of files and functions; fails if one exceeds its limit."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("trainyard", "service", "worker")
OTHER_FOLDERS = ("tests", "bench", "migrations")
MAX_FILE = 600
MAX_FUNCTION = 50
LARGEST_COUNT = 5

REASONS: dict[str, str] = {}
"""Exceptions and their reasons, by `<path>` of a file or `<path>:<qualified name>` of a function."""


@dataclass(frozen=True)
class Sized:
    """A file or a function."""

    name: str
    lines: int
    limit: int

    @property
    def too_large(self) -> bool:
        return self.lines > self.limit and self.name not in REASONS


def files_of(package: str) -> list[Sized]:
    """Return the Python files of a package."""
    paths = sorted((ROOT / package).rglob("*.py"))
    return [Sized(str(path.relative_to(ROOT)), len(path.read_text().splitlines()), MAX_FILE) for path in paths]


def functions_of(file: Sized) -> list[Sized]:
    """Return the functions and methods of a file."""
    tree = ast.parse((ROOT / file.name).read_text())
    return [Sized(f"{file.name}:{name}", lines, MAX_FUNCTION) for name, lines in _functions(tree, "")]


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = prefix + child.name
            if not isinstance(child, ast.ClassDef):
                yield name, (child.end_lineno or child.lineno) - child.lineno + 1
            yield from _functions(child, f"{name}.")
        else:
            yield from _functions(child, prefix)


def _print_largest(title: str, sized: list[Sized]) -> None:
    print(f"\n{title}")
    for one in sorted(sized, key=lambda one: -one.lines)[:LARGEST_COUNT]:
        print(f"{one.lines:6}  {one.name}")


def main() -> int:
    """Print the report; return 1 if a limit is exceeded."""
    by_package = {package: files_of(package) for package in (*PRODUCT, *OTHER_FOLDERS)}
    print(" lines  files  package")
    for package, files in by_package.items():
        print(f"{sum(file.lines for file in files):6} {len(files):6}  {package}")
    files = [file for package in PRODUCT for file in by_package[package]]
    functions = [function for file in files for function in functions_of(file)]
    _print_largest("largest files", files)
    _print_largest("longest functions", functions)
    too_large = [one for one in files + functions if one.too_large]
    for one in too_large:
        print(f"\n{one.name} has {one.lines} lines, more than {one.limit}: split it, or give a reason in {__file__}")
    gone = REASONS.keys() - {one.name for one in files + functions if one.lines > one.limit}
    for name in sorted(gone):
        print(f"\n{name} needs no exception any more: take it out of {__file__}")
    return 1 if too_large or gone else 0


if __name__ == "__main__":
    sys.exit(main())
