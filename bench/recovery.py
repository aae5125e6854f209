"""`python -m bench.recovery`: how soon a run trains again after a rank was killed, compared with plain torchrun.

Two ranks train a small model, write a checkpoint after every 50th step, and one of them gets SIGKILL at a random
moment. The time ends with the first step that a rank finishes afterwards, without options, and with
`restart.fork_ranks` and `checkpoint.memory_steps: 1`. Beside it: the time from the start of the launcher to the first
step, and a like model in a plain program under torchrun, which writes a checkpoint after every step. The ranks of the
plain program do not always meet again after a restart; such a round counts as infinite.
"""

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from tests.integration.worker.harness import FakeService, Run, wait_for
from trainyard.contract.spec.site import Site
from trainyard.contract.wire.reports import MetricsBatch
from trainyard.contract.wire.spool import parse_spool
from trainyard.progress_file import read_progress

TARGET_SECONDS = 3.0
CHECKPOINT_STEPS = 50
_WAIT_SECONDS = 60.0
_PLAIN_SECONDS = 30.0
"""After how long a restart of the plain program counts as infinite."""
_STEP_SECONDS = 0.02
"""Added to each step, which would else take less than a millisecond."""
_PLAIN_ROW = "plain torchrun, after a kill"
_ROWS = ("first step", "after a kill", "first step, both options", "after a kill, both options", _PLAIN_ROW)
_PLAIN = '''
"""A plain program: it writes a checkpoint after every step, and continues from it."""
import json, os, sys, time
from pathlib import Path
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

folder = Path(sys.argv[1])
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters())
saved, step = folder / "checkpoint.pt", 0
if saved.exists():
    state = torch.load(saved)
    step = state["step"]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
while True:
    time.sleep(float(sys.argv[2]))
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    step += 1
    if rank == 0:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, folder / "new.pt")
        (folder / "new.pt").rename(saved)
    record = {"pid": os.getpid(), "start": os.environ["TORCHELASTIC_RESTART_COUNT"], "step": step, "time": time.time()}
    with (folder / f"rank-{rank}.jsonl").open("a") as steps:
        steps.write(json.dumps(record) + chr(10))
'''


@dataclass(frozen=True)
class Recovery:
    """A run with a killed rank, in seconds and steps."""

    first: float
    """From the start of the launcher to the first step."""
    again: float
    """From the kill to the next step."""
    repeated: int
    """Steps that were trained again."""
    step: float
    """The median time of a step before the kill."""


def recover(
    folder: Path, generator: random.Random, *, options: bool, site: Site | None = None, ranks: int = 2
) -> Recovery:
    """Kill the last rank of a run of the engine."""
    changes = {
        "checkpoint": {"every_steps": CHECKPOINT_STEPS, "memory_steps": 1 if options else None},
        "restart": {"fork_ranks": options},
    }
    with FakeService() as service:
        run = Run(folder, service.url, {"epochs": 1_000_000, "gpus": ranks, **changes}, site=site)
        began = time.time()
        attempt = run.start(faults=[{"kind": "sleep", "seconds": _STEP_SECONDS}])
        try:
            wait_for(lambda: finished_steps(attempt.spool_file(1)), "the first step", _WAIT_SECONDS)
            time.sleep(generator.uniform(2.0, 5.0))
            os.kill(read_progress(attempt.progress, 1)[ranks - 1].pid, signal.SIGKILL)
            killed = time.time()
            after = wait_for(lambda: finished_steps(attempt.spool_file(2)), "the next step", _WAIT_SECONDS)
            before = finished_steps(attempt.spool_file(1))
            return Recovery(
                first=before[0][1] - began,
                again=after[0][1] - killed,
                repeated=before[-1][0] - after[0][0] + 1,
                step=median(end - start for (_, start), (_, end) in pairwise(before)),
            )
        finally:
            assert run.process is not None
            # The ranks end with their launcher.
            run.process.kill()
            run.process.wait()


def recover_plain(folder: Path, generator: random.Random) -> float:
    """Kill a rank of the plain program; return the seconds to the next step, infinite if there is none."""
    program, records = folder / "plain.py", folder / "rank-0.jsonl"
    program.write_text(_PLAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"]
    command += ["--monitor-interval=0.1", str(program), str(folder), str(_STEP_SECONDS)]
    with (folder / "log").open("wb") as log:
        torchrun = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        wait_for(lambda: _lines(records), "the first step", _WAIT_SECONDS)
        time.sleep(generator.uniform(2.0, 5.0))
        os.kill(int(_lines(folder / "rank-1.jsonl")[-1]["pid"]), signal.SIGKILL)
        killed = time.time()
        while time.time() - killed < _PLAIN_SECONDS:
            after = [line for line in _lines(records) if line["start"] == "1"]
            if after:
                return float(after[0]["time"]) - killed
            time.sleep(0.05)
        return math.inf
    finally:
        torchrun.terminate()
        torchrun.wait()


def finished_steps(spool: Path) -> list[tuple[int, float]]:
    """Return the steps of an execution and the times of their ends, in seconds since the epoch."""
    if not spool.exists():
        return []
    bodies = [record.body() for record in parse_spool(spool)]
    points = [point for body in bodies if isinstance(body, MetricsBatch) for point in body.points]
    return [(point.step, point.time.timestamp()) for point in points if point.key == "train/loss"]


def _lines(path: Path) -> list[dict[str, float | str | int]]:
    """Return the complete lines of a file; none if it does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def percentile(values: list[float], share: float) -> float:
    """Return the value at a share of the sorted values, the nearest one above."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> int:
    """Return 1 if the target is missed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="killed ranks of each kind (default: 30)")
    parser.add_argument("--plain-rounds", type=int, default=30, help="of these with a plain program (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills (default: 0)")
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)
    times: dict[str, list[float]] = {name: [] for name in _ROWS}
    recoveries: dict[bool, list[Recovery]] = {False: [], True: []}
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as made:
            plain = Path(made) / "plain"
            plain.mkdir()
            for options, (first, next_) in {False: _ROWS[:2], True: _ROWS[2:4]}.items():
                measured = recover(Path(made) / f"job-{options}", generator, options=options)
                times[first].append(measured.first)
                times[next_].append(measured.again)
                recoveries[options].append(measured)
            if number < arguments.plain_rounds:
                times[_PLAIN_ROW].append(recover_plain(plain, generator))
        latest = ", ".join(f"{name} {values[-1]:.2f}" for name, values in times.items() if values)
        print(f"{number + 1}: {latest}", file=sys.stderr, flush=True)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, {arguments.rounds} rounds")
    print(f"{'seconds':<30}{'median':>8}{'95 %':>8}{'most':>8}")
    for name, values in times.items():
        if not values:
            continue
        print(f"{name:<30}{median(values):>8.2f}{percentile(values, 0.95):>8.2f}{max(values):>8.2f}")
    count = len(times[_PLAIN_ROW])
    print(f"plain torchrun: {times[_PLAIN_ROW].count(math.inf)} of {count} restarts without a step")
    for options, made_again in recoveries.items():
        repeated = [recovery.repeated for recovery in made_again]
        how = "a memory checkpoint after each step" if options else f"a checkpoint every {CHECKPOINT_STEPS} steps"
        print(f"steps trained again with {how}: median {median(repeated):g}, most {max(repeated)}")
    pairs = zip(recoveries[True], recoveries[False], strict=True)
    ratio = median(with_options.step / without.step for with_options, without in pairs)
    print(f"time of a step with a memory checkpoint after each, relative to none: {ratio:.3f}")
    slowest = percentile(times[_ROWS[3]], 0.95)
    print(f"95 % of the kills with both options within {slowest:.2f} s (target {TARGET_SECONDS:g} s)")
    return int(slowest > TARGET_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
