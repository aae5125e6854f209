"""Generates the synchronous client from the asynchronous one; `--check` only reports whether it is up to date."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "trainyard" / "client"
HEADER = "# Generated from _async/{name} by tests/support/generate_sync_client.py; do not edit.\n"

_RULES = [
    (r"\basync (?=def|with|for)", ""),
    (r"\bawait ", ""),
    (r"\basyncio\.to_thread\((\w+), ", r"\1("),
    (r"\basyncio\b", "time"),
    (r"\bAwaitable\[None\]", "None"),
    (r"import (.*)\bAwaitable, ", r"import \1"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b_async\b", "_sync"),
    (r"\ba(close|read|iter_bytes)\b", r"\1"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    ("asynchronous client", "synchronous client"),
]


def generated() -> dict[Path, str]:
    """Return the path and the text of every generated file."""
    files = {}
    for source in sorted((CLIENT / "_async").glob("*.py")):
        text = source.read_text()
        for pattern, replacement in _RULES:
            text = re.sub(pattern, replacement, text)
        for command in (["check", "--fix", "--unsafe-fixes", "--select", "I,F401,UP028"], ["format"]):
            name = f"trainyard/client/_sync/{source.name}"
            ruff = [sys.executable, "-m", "ruff", *command, "--quiet", "--config", "pyproject.toml"]
            ruff += ["--stdin-filename", name, "-"]
            text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        files[CLIENT / "_sync" / source.name] = HEADER.format(name=source.name) + text
    return files


def stale() -> list[str]:
    """Return the names of generated files that differ from what would be generated now."""
    return [path.name for path, text in generated().items() if not path.is_file() or path.read_text() != text]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(f"run `make sync-client`: out of date: {', '.join(stale())}" if stale() else 0)
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
