"""Stops the PostgreSQL of killed tests and removes its folder."""

import shutil
import sys
from contextlib import suppress
from pathlib import Path

import psutil


def end(root: Path) -> None:
    """Stop the server whose data are in `root`, if it runs, and remove the folder."""
    with suppress(OSError, ValueError, psutil.Error):
        server = psutil.Process(int((root / "data" / "postmaster.pid").read_text().split("\n", 1)[0]))
        server.kill()
        server.wait(10)
    shutil.rmtree(root, ignore_errors=True)


def main(root: Path) -> None:
    """Wait until the parent process closes this process's standard input, then clean up."""
    sys.stdin.buffer.read()
    end(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
