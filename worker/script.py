"""A rank of a `script` job becomes the user's program: the same process, the same log, and nothing of ours in it."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from trainyard.contract.code import needs_code
from trainyard.contract.launch import LaunchDocument
from trainyard.contract.layout import AttemptLayout
from trainyard.script import FOLDER


def become(layout: AttemptLayout, launch: LaunchDocument) -> NoReturn:
    """Run the spec's program in this process's place."""
    folder = layout.code if launch.spec.code else layout.root
    os.chdir(folder)
    # Slurm signals every process of a job that is to end: the program is asked by `should_stop`, and not killed.
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    words = command(launch.spec.argv or (), folder)
    os.execve(words[0], words, environment(os.environ, layout))  # noqa: S606 (no shell on the way)


def command(argv: Sequence[str], folder: Path) -> list[str]:
    """The program's words, as Python would be called by hand."""
    first = str(folder / argv[0]) if needs_code(argv) else argv[0]
    return [sys.executable, first, *argv[1:]]


def environment(base: Mapping[str, str], layout: AttemptLayout) -> dict[str, str]:
    """The rank's own, with what `trainyard.script` needs. The program sees its own folder, as usual for Python."""
    kept = {name: value for name, value in base.items() if name != "PYTHONSAFEPATH"}
    return {**kept, FOLDER: str(layout.root), "PYTHONUNBUFFERED": "1"}
