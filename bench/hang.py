"""`python -m bench.hang`: how soon a run that stands still is reported, and whether rank and reason are right.

Two to four ranks train a small model under the real launcher. When the launcher has learned how long the run usually
waits, one rank stands still: stopped by a signal, reading a pipe that nobody writes, waiting for a lock that nobody
releases, sleeping, computing without an end, in a barrier that no other rank enters, in a call of C that keeps the
interpreter's lock, or waiting for a loader process that was stopped. Each hang is in a run of its own. The time is from
the hang to the event that names it; the limit of 20 s is its floor.
"""

import argparse
import math
import os
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Lock
from typing import Any

from tests.integration.worker.harness import FakeService, Run, wait_for
from tests.support.images import digits, save_vit, write_folder
from trainyard.contract.spec.site import Site
from trainyard.contract.wire.worker_events import STALL_SUSPECTED
from trainyard.progress_file import read_progress
from worker.core.processes import children
from worker.launcher.stall_limits import MIN_SECONDS
from worker.launcher.stalls import LIMIT

TARGET_SECONDS = 30.0
TARGET_SHARE = 0.98
KINDS = ("stopped", "file", "lock", "code", "slow", "order", "interpreter", "loader")
RANKS = (2, 3, 4)
_HOW = {"lock": "lock", "code": "sleep", "slow": "compute", "order": "barrier", "interpreter": "interpreter"}
"""The text by which the planted fault hangs (tests/integration/worker/faults)."""
_LEARN_SECONDS = 180.0
_WAIT_SECONDS = 90.0
_IMPORT_LOCK = Lock()
"""Threads that import transformers at the same time miss its names."""


@dataclass(frozen=True)
class Hang:
    """A hang to plant."""

    kind: str
    ranks: int
    rank: int
    """The rank that stands still."""


@dataclass(frozen=True)
class Named:
    """The event about a hang."""

    seconds: float
    kind: str
    ranks: list[int]


def hangs(count: int) -> list[Hang]:
    """Return hangs of all kinds on all numbers of ranks in turn."""
    made = []
    for number in range(count):
        kind, ranks = KINDS[number % len(KINDS)], RANKS[number // len(KINDS) % len(RANKS)]
        # Of two ranks in different collectives, either could be right; the second one counts as such.
        made.append(Hang(kind, ranks, 1 if kind == "order" and ranks == 2 else number % ranks))
    return made


def plant(hang: Hang, site: Site | None = None) -> Named:
    """Start a run, let a rank hang, and return the event about it."""
    with tempfile.TemporaryDirectory() as made, FakeService() as service:
        how, pipe = Path(made) / "how", Path(made) / "pipe"
        os.mkfifo(pipe)
        changes: dict[str, Any] = {"epochs": 1_000_000, "gpus": hang.ranks}
        if hang.kind == "loader":
            changes |= read_images(Path(made))
        run = Run(Path(made) / "job", service.url, changes, site=site)
        fault = {"kind": "hang", "rank": hang.rank, "path": str(how)}
        attempt = run.start(faults=[{"kind": "sleep", "seconds": 0.05}, fault])
        try:
            wait_for(lambda: _has_learned(service), "enough steps", _LEARN_SECONDS)
            pid = read_progress(attempt.progress, 1)[hang.rank].pid
            if hang.kind == "stopped":
                os.kill(pid, signal.SIGSTOP)
            elif hang.kind == "loader":
                for process in children(pid):
                    os.kill(process, signal.SIGSTOP)
            else:
                how.write_text(_HOW.get(hang.kind, str(pipe)))
            started = time.monotonic()
            while not (events := service.events_of_type(STALL_SUSPECTED)):
                if time.monotonic() - started > _WAIT_SECONDS:
                    return Named(math.inf, "nothing", [])
                time.sleep(0.05)
            data = events[0]["data"]
            return Named(time.monotonic() - started, data["kind"], data["ranks"])
        finally:
            assert run.process is not None
            # The ranks end with their launcher.
            run.process.kill()
            run.process.wait()


def _has_learned(service: FakeService) -> bool:
    """Return whether the launcher has stated the limit of training; a slow start has one too."""
    return any(event["data"]["phase"] == "training" for event in service.events_of_type(LIMIT))


def read_images(folder: Path) -> dict[str, Any]:
    """Return the changes of the spec by which processes read images for the ranks."""
    with _IMPORT_LOCK:
        save_vit(folder / "vit")
    return {
        "task": "image_classification",
        "model": {"source": "hf", "path": str(folder / "vit")},
        "data": {"source": "images", "path": str(write_folder(folder / "images", digits(0, 48)))},
        "batch": {"size": 8, "loaders": 1},
    }


def main() -> int:
    """Return 1 if a target is missed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hangs", type=int, default=len(KINDS), help="hangs, of all kinds in turn")
    parser.add_argument("--skip", type=int, default=0, help="first of these hangs to leave out")
    parser.add_argument("--at-once", type=int, default=1, help="runs at the same time (default: 1)")
    arguments = parser.parse_args()
    times, right = [], 0
    planted = hangs(arguments.hangs)[arguments.skip :]
    print(f"{os.cpu_count()} cores, {arguments.at_once} runs at once")
    print(f"{'hang':<12}{'ranks':>6}{'rank':>6}{'seconds':>9}  rank and reason")
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for hang, named in zip(planted, pool.map(plant, planted), strict=True):
            is_right = (named.kind, named.ranks) == (hang.kind, [hang.rank])
            times.append(named.seconds)
            right += is_right
            shown = "right" if is_right else f"WRONG: {named.kind} of {named.ranks}"
            print(f"{hang.kind:<12}{hang.ranks:>6}{hang.rank:>6}{named.seconds:>9.1f}  {shown}", flush=True)
    slowest = sorted(times)[int(0.95 * (len(times) - 1) + 0.5)]
    print(f"median {median(times):.1f} s, 95th percentile {slowest:.1f} s (target {TARGET_SECONDS:g} s)")
    print(f"the floor is {MIN_SECONDS:g} s")
    print(f"rank and reason right in {right} of {len(times)} (target {TARGET_SHARE:.0%})")
    return int(slowest > TARGET_SECONDS or right < TARGET_SHARE * len(times))


if __name__ == "__main__":
    sys.exit(main())
