"""`python3 -m trainyard.installation.sync_client`: write the synchronous client, which is the asynchronous client
without `await`.

The build writes it too (`backend.py`), and pytest, so that an edited `_async` is never tested with an older `_sync`.
"""

import os
import re
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "client"
_HEADER = "# Generated from _async/{name} by trainyard/installation/sync_client.py; do not edit.\n"

_RULES = [
    (r"\basync (?=def|with|for)", ""),
    (r"\bawait ", ""),
    (r"\basyncio\.to_thread\((\w+), ", r"\1("),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\bAwaitable\[None\]", "None"),
    (r"import (.*)\bAwaitable, ", r"import \1"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b_async\b", "_sync"),
    (r"\ba(close|read|iter_bytes)\b", r"\1"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    ("asynchronous client", "synchronous client"),
    (r"for (\w+) in (.*):\n +yield \1\n", r"yield from \2\n"),
]


def generated() -> dict[Path, str]:
    """Return the path and the text of every file of the synchronous client."""
    sources = sorted((CLIENT / "_async").glob("*.py"))
    return {CLIENT / "_sync" / path.name: _HEADER.format(name=path.name) + _without_await(path) for path in sources}


def write() -> list[str]:
    """Write the files that differ from `generated`, remove others, and return the names of all of these."""
    files, folder = generated(), CLIENT / "_sync"
    folder.mkdir(exist_ok=True)
    surplus = set(folder.glob("*.py")) - files.keys()
    for path in surplus:
        path.unlink()
    changed = [path for path, text in files.items() if not path.is_file() or path.read_text() != text]
    for path in changed:
        # At once: another process may import it.
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(files[path])
        part.replace(path)
    return sorted(path.name for path in (*changed, *surplus))


def _without_await(path: Path) -> str:
    text = path.read_text()
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text)
    return text.replace("import asyncio\n", "import time\n" if "time.sleep" in text else "")


if __name__ == "__main__":
    write()
