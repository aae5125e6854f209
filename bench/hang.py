"""`python -m bench.hang`: how soon a run that stands still is reported, and whether rank and reason are right.

Two ranks train a small model under the real launcher. When the launcher has learned how long the run usually waits,
one rank stands still: stopped by a signal, reading a pipe that nobody writes, waiting for a lock that nobody releases,
sleeping, computing without an end, in a barrier that the other rank does not
enter, or in a call of C that keeps the interpreter's lock. Each hang is in a run of its
own. The time is from the hang to the event that names it; the limit of 20 s is its floor.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.integration.worker.harness import FakeService, Run, wait_for
from trainyard.contract.wire.worker_events import STALL_SUSPECTED
from trainyard.progress_file import read_progress
from worker.launcher.stall_limits import MIN_SECONDS
from worker.launcher.stalls import LIMIT

TARGET_SECONDS = 30.0
TARGET_SHARE = 0.98
KINDS = ("stopped", "file", "lock", "code", "slow", "order", "interpreter")
_HOW = {"lock": "lock", "code": "sleep", "slow": "compute", "order": "barrier", "interpreter": "interpreter"}
"""The text by which the planted fault hangs (tests/integration/worker/faults)."""
_LEARN_SECONDS = 180.0
_WAIT_SECONDS = 90.0


def plant(folder: Path, kind: str, rank: int) -> tuple[float, bool]:
    """Start a run, let a rank hang, and return the seconds until the event and whether it names rank and reason."""
    how, pipe = folder / "how", folder / "pipe"
    os.mkfifo(pipe)
    with FakeService() as service:
        run = Run(folder / "job", service.url, {"epochs": 1_000_000})
        hang = {"kind": "hang", "rank": rank, "path": str(how)}
        attempt = run.start(faults=[{"kind": "sleep", "seconds": 0.05}, hang])
        try:
            wait_for(lambda: service.events_of_type(LIMIT), "enough steps", _LEARN_SECONDS)
            if kind == "stopped":
                os.kill(read_progress(attempt.progress, 1)[rank].pid, signal.SIGSTOP)
            else:
                how.write_text(_HOW.get(kind, str(pipe)))
            started = time.monotonic()
            wait_for(lambda: service.events_of_type(STALL_SUSPECTED), "the event", _WAIT_SECONDS)
            seconds = time.monotonic() - started
            data = service.events_of_type(STALL_SUSPECTED)[0]["data"]
            return seconds, (data["kind"], data["ranks"]) == (kind, [rank])
        finally:
            assert run.process is not None
            # The ranks end with their launcher.
            run.process.kill()
            run.process.wait()


def main() -> int:
    """Return 1 if a target is missed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1, help="hangs of each kind (default: 1)")
    arguments = parser.parse_args()
    times, right = [], 0
    print(f"{'hang':<10}{'rank':>5}{'seconds':>9}  rank and reason")
    for number in range(arguments.repeats * len(KINDS)):
        kind = KINDS[number % len(KINDS)]
        # Of two ranks in different collectives, either could be right; the first one counts as such.
        rank = 1 if kind == "order" else number % 2
        with tempfile.TemporaryDirectory() as folder:
            seconds, is_right = plant(Path(folder), kind, rank)
        times.append(seconds)
        right += is_right
        print(f"{kind:<10}{rank:>5}{seconds:>9.1f}  {'right' if is_right else 'WRONG'}", flush=True)
    slowest = sorted(times)[int(0.95 * (len(times) - 1) + 0.5)]
    print(f"median {median(times):.1f} s, 95th percentile {slowest:.1f} s (target {TARGET_SECONDS:g} s)")
    print(f"the floor is {MIN_SECONDS:g} s")
    print(f"rank and reason right in {right} of {len(times)} (target {TARGET_SHARE:.0%})")
    return int(slowest > TARGET_SECONDS or right < TARGET_SHARE * len(times))


if __name__ == "__main__":
    sys.exit(main())
