"""A folder whose files appear by rename: whoever looks sees each whole or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def publishing(folder: Path) -> Iterator[Path]:
    """An empty folder to write to; its files move to `folder` at the end, and go if there was an error."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".writing-{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        for path in sorted(aside.iterdir()):
            path.chmod(0o644)
            os.replace(path, folder / path.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
