"""Files that comments and documents refer to exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"(?<![\w.<*{-])((?:[\w-]+/)*)([a-z_][a-z0-9_]*\.(?:py|js))\b")
USERS = {
    "train.py",
    "mine.py",
    "model.py",
    "task.py",
    "main.py",
    "train_line.py",
    "my_task.py",
    "my_train.py",
    "torch.py",
}
"""Files of users in examples."""


@pytest.mark.parametrize("folder", ["docs", "service", "worker", "trainyard", "tests", "bench", "."])
def test_named_files_exist(folder: str) -> None:
    """In Markdown as code, in Python and JavaScript as comments."""
    existing = {
        path.name
        for top in ("service", "worker", "trainyard", "tests", "bench", "migrations", "jobs_templates")
        for path in (ROOT / top).rglob("*.*")
    }
    paths = [*(ROOT / folder).glob("*.md")] if folder in (".", "docs") else (ROOT / folder).rglob("*.[pj][ys]")
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in paths
        for text in mentions(path)
        for _, name in NAMED.findall(text)
        if name not in existing | USERS
    }
    assert not missing, missing


def mentions(path: Path) -> list[str]:
    source = path.read_text()
    if path.suffix == ".md":
        return re.findall(r"`[^`\n]+`", source)
    if path.suffix == ".py":
        return re.findall(r"(?:^|\s)#.*|\"\"\"(?:.|\n)*?\"\"\"", source)
    return re.findall(r"(?:^|\s)//.*", source)
