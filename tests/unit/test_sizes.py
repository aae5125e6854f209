"""Sizes of memory and files are binary, and one function in each language writes them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "trainyard": ("*.py",),
    "service": ("*.py", "*.html", "*.js"),
    "worker": ("*.py",),
    "jobs_templates": ("*.yaml", "*.md"),
    "docs": ("*.md",),
    "docker": ("*.md",),
}
FORMATTERS = {"trainyard/contract/sizes.py", "service/web/static/format.js"}
MEASUREMENTS = {"docs/benchmarks.md", "docs/gpu.md"}
"""Records of measurements, in the units of the programs that measured."""
DIVISOR = r"(2 ?\*\* ?[234]0|1024 ?\*\* ?\d|1e[69]|GIB|MIB)"
FORMATS = re.compile(r"\}\s?[KMGTP]iB\b(?!/s)|/ ?" + DIVISOR + r"[^\n]{0,12}[KMGT]i?B\b(?!/s)")
"""A number that is formatted with a binary unit where it stands."""
DECIMAL = re.compile(r"(?<![\w-])[\d.,]*\}?\s?(?<!\w)[kKMGTP]B\b(?!/s)")
"""A decimal unit. Rates of links keep it, as their makers and `nccl-tests` state them: `GB/s`."""
NAMES_OF_DEVICES = re.compile(r"\bGB200\b|\b80GB\b")


def _files() -> Iterator[Path]:
    for folder, patterns in FOLDERS.items():
        for pattern in patterns:
            yield from (path for path in (ROOT / folder).rglob(pattern) if "vendor" not in path.parts)
    yield from (ROOT / "README.md", ROOT / "CHANGELOG.md")


def offences(name: str, text: str) -> list[str]:
    """Return the lines of a file that format a size themselves or state one in decimal units."""
    if name in FORMATTERS:
        return []
    return [
        f"{name}:{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if FORMATS.search(line) or DECIMAL.search(NAMES_OF_DEVICES.sub("", line))
    ]


def test_sizes_are_binary_and_formatted_by_one_function() -> None:
    results = []
    for path in _files():
        name = path.relative_to(ROOT).as_posix()
        if name not in MEASUREMENTS and not name.startswith("docs/decisions/"):
            results += offences(name, path.read_text())
    assert not results, "use `format_size` of trainyard/contract/sizes.py, or `bytes` of format.js, in GiB and MiB"


@pytest.mark.parametrize(
    ("line", "offends"),
    [
        ('f"{free / 1e9:.1f} GB free"', True),
        ('f"{count / 2**30:.3g} GiB"', True),
        ("`${number(value / 2 ** 20, 3)} MiB`", True),
        ('const GIGA = { unit: "GB" };', True),
        ("The limit is 50 MB.", True),
        ("about 100 kB", True),
        ("The limit is 50 MiB.", False),
        ('f"{rate / 1e9:.2f} GB/s"', False),
        ('("GB200", {"fp8": 5000})', False),
        ("_EMBEDDINGS, MAX_MEMBERS, TRAINYARD_LOW_DISK_GB", False),
    ],
)
def test_other_formatters_are_refused(line: str, offends: bool) -> None:
    assert bool(offences("worker/x.py", line)) is offends
