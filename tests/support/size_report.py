"""`python -m tests.support.size_report`: how large the code is; fails where a file or a function has grown too far."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("trainyard", "service", "worker")
OTHERS = ("tests", "bench", "migrations")
MAX_FILE = 400
MAX_FUNCTION = 50
SHOWN = 5

REASONS: dict[str, str] = {}
"""What may be larger, and why: `<path>` for a file, `<path>:<qualified name>` for a function."""


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
    """Every Python file of a package."""
    paths = sorted((ROOT / package).rglob("*.py"))
    return [Sized(str(path.relative_to(ROOT)), len(path.read_text().splitlines()), MAX_FILE) for path in paths]


def functions_of(file: Sized) -> list[Sized]:
    """Every function and method of a file, from `def` to its last line."""
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
    for one in sorted(sized, key=lambda one: -one.lines)[:SHOWN]:
        print(f"{one.lines:6}  {one.name}")


def main() -> int:
    """Returns the exit status."""
    by_package = {package: files_of(package) for package in (*PRODUCT, *OTHERS)}
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
