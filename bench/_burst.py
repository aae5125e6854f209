"""How long the service takes to submit many jobs that are accepted at once, beside the same number of plain sbatch."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench._slurm_programs import accepting_sbatch, install_programs, queue_file
from tests.support.wait import wait_until
from trainyard.demo import ServiceProcess

_SECONDS = 900.0
_AT_ONCE = 4
"""As many calls as the service makes."""


def burst_seconds(jobs: int, spec: dict[str, Any]) -> dict[str, float]:
    """The seconds from the first request until each stage is complete, with programs in place of Slurm's commands."""
    with _slurm_programs() as (folder, bin_folder):
        service = ServiceProcess(folder, backend="slurm", accelerator="cpu")
        service.start()
        try:
            with service.client() as client:
                # The first job waits for the first cluster snapshot.
                client.submit(spec)
                wait_until(lambda: _submitted(bin_folder) == 1, 60, "the first submission")
                started = time.monotonic()
                for _ in range(jobs):
                    client.submit(spec)
                accepted = time.monotonic() - started
                wait_until(lambda: _submitted(bin_folder) == jobs + 1, _SECONDS, "all submissions")
                return {"accepted": accepted, "submitted": time.monotonic() - started}
        finally:
            service.stop()


def plain_sbatch_seconds(count: int) -> float:
    """The seconds of plain calls of the same sbatch, as many at once as the service makes."""
    with _slurm_programs() as (folder, _):
        file = folder / "batch.sh"
        file.write_text("#!/bin/sh\n#SBATCH --job-name=plain\ntrue\n")
        started = time.monotonic()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(
                pool.map(lambda _: subprocess.run(["sbatch", str(file)], check=True, capture_output=True), range(count))
            )
        return time.monotonic() - started


def _sbatch(file: Path) -> None:
    subprocess.run(["sbatch", str(file)], check=True, capture_output=True)


@contextmanager
def _slurm_programs() -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as root, patch.dict(os.environ):
        programs = Path(root) / "bin"
        install_programs(programs, [], nodes=4, sbatch=accepting_sbatch(programs))
        yield Path(root), programs


def _submitted(programs: Path) -> int:
    return len(queue_file(programs).read_text().splitlines())
