"""`python -m bench.startup`: from `submit` to the first optimizer step, beside plain torchrun on the same rank program.

Both run the preset `mlp_parity` on 2 processes, in turns. The first step's end is the time stamp that rank 0 gave the
first point of `train/loss`. The floor is torchrun started by hand on a run directory made from the contract, with a
service that cannot be reached.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from trainyard.client import Client
from trainyard.contract.launch import LaunchDocument
from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.contract.resolve import Site, resolve
from trainyard.contract.resources import TERMINAL
from trainyard.contract.spec import TrainingSpec, parse_spec
from trainyard.contract.templates import load_template
from trainyard.demo import ServiceProcess

PRESET = "mlp_parity"
RANKS = 2
ROUNDS = 5
ALLOWED_SECONDS = 3.0
RUN_SECONDS = 120.0


def main() -> int:
    """Returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder, running_service(Path(folder)) as client:
        programs: dict[str, Callable[[int], float]] = {
            "trainyard submit": lambda _: through_service(client),
            "torchrun alone": lambda number: by_torchrun(Path(folder) / f"floor-{number}"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in programs}
        for number in range(ROUNDS):
            for name, program in programs.items():
                seconds[name].append(program(number))
    return report(seconds, ALLOWED_SECONDS)


def report(seconds: dict[str, list[float]], allowed: float) -> int:
    """Print the table and the verdict; returns the exit status."""
    print(f"seconds to the first optimizer step: {PRESET}, {RANKS} processes, {ROUNDS} rounds, {os.cpu_count()} cores")
    print(f"{'':18}{'median':>8}{'least':>8}{'most':>8}")
    for name, values in seconds.items():
        print(f"{name:18}{median(values):8.2f}{min(values):8.2f}{max(values):8.2f}")
    ours, floor = (median(values) for values in seconds.values())
    good = ours - floor <= allowed
    verdict = "within" if good else "MORE THAN"
    print(f"{'difference':18}{ours - floor:8.2f}   {verdict} the allowed {allowed:g} s")
    return 0 if good else 1


@contextmanager
def running_service(folder: Path) -> Iterator[Client]:
    """A service of our own on SQLite and the local backend."""
    service = ServiceProcess(folder / "service")
    try:
        service.start()
        with service.client() as client:
            try:
                yield client
            finally:
                end_jobs(client)
    finally:
        service.stop()


def end_jobs(client: Client) -> None:
    """A job outlives its service by design; after a failure here it must not."""
    for job in client.jobs():
        if job.status not in TERMINAL:
            client.cancel(job.id)
            client.wait(job.id, timeout=RUN_SECONDS)


def spec() -> TrainingSpec:
    """The preset, resolved as the service would."""
    document = load_template(PRESET).spec | {"gpus": RANKS}
    return resolve(parse_spec(document), Site(accelerator="cpu", scheduler="local"))


def through_service(client: Client) -> float:
    """Seconds from just before the request to the first step, by way of everything."""
    document = load_template(PRESET).spec | {"gpus": RANKS}
    begun = time.time()
    job = client.submit(document)
    ended = client.wait(job.id, timeout=RUN_SECONDS)
    if ended.status != "succeeded":
        raise RuntimeError(f"job {job.id} ended as {ended.status}: {ended.status_message}")
    (series,) = client.metrics(job.id, ["train/loss"]).series
    assert series.steps[0] == 1
    return series.times[0].timestamp() - begun


def by_torchrun(folder: Path) -> float:
    """Seconds from just before torchrun is started to the first step."""
    attempt = prepare(RunLayout(folder))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "-m", "worker"]
    begun = time.time()
    subprocess.run(
        [*command, str(attempt.root)],
        check=True,
        timeout=RUN_SECONDS,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    return first_loss(attempt.spool_file(1)).timestamp() - begun


def prepare(run: RunLayout) -> AttemptLayout:
    """A run directory as the service would make it, for an attempt that nobody listens to."""
    attempt = run.attempt(1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch = LaunchDocument(
        job_id="floor",
        attempt_id="floor",
        attempt=1,
        tag="ty-bench-floor",
        service_url=f"http://127.0.0.1:{port}",
        execution=1,
        max_restarts=0,
        ranks_per_node=RANKS,
        spec=spec(),
    )
    write_atomic(attempt.launch, launch.model_dump_json(by_alias=True))
    write_atomic(attempt.token, "nobody", mode=0o600)
    return attempt


def first_loss(spool: Path) -> datetime:
    """The time stamp of the first `train/loss` in a spool file."""
    for line in spool.read_text().splitlines():
        record: dict[str, Any] = json.loads(line)
        for point in record["body"].get("points", ()):
            if point["key"] == "train/loss":
                assert point["step"] == 1
                return datetime.fromisoformat(point["time"])
    raise RuntimeError(f"{spool} holds no train/loss")


if __name__ == "__main__":
    sys.exit(main())
