"""`python -m bench.startup`: how long until the first optimizer step, beside plain torchrun on the same rank program.

Both run the preset `mlp_parity` on 2 processes, in turns. The first step's end is the time stamp that rank 0 gave the
first point of `train/loss`. On this machine the time begins with `submit`, or with torchrun's start. On Slurm, with a
lab of its own, it begins when the node's prolog runs: for our job, and for a batch script whose one line is `srun
torchrun`. The floor has a run directory made from the contract, and a service that cannot be reached.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.slurm_lab import SlurmLab, Variant, running_lab
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.templates import load_template
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from trainyard.contract.wire.jobs import TERMINAL, JobResource
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.demo import ServiceProcess

PRESET = "mlp_parity"
RANKS = 2
LOCAL_SECONDS, SLURM_SECONDS = 3.0, 2.0
"""What ours may take more."""
RUN_SECONDS = 120.0
ON_SLURM = {"resources": {"partition": "gpu", "gpus_per_node": RANKS}}

Programs = Mapping[str, Callable[[int], float]]
"""Each measures one run; the number makes its folder its own."""


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=["local", "slurm"], help="one of the two parts")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    good = True
    if options.only != "slurm":
        good &= on_this_machine(options.rounds)
    if options.only != "local":
        good &= on_slurm(options.rounds)
    return 0 if good else 1


def on_this_machine(rounds: int) -> bool:
    """From `submit`; returns whether ours meets its target."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as made, running_service(Path(made)) as client:
        programs: Programs = {
            "trainyard submit": lambda _: since_submit(client),
            "torchrun alone": lambda number: by_torchrun(Path(made) / f"floor-{number}"),
        }
        seconds = measure(programs, rounds)
    return report("from `submit`, on this machine", seconds, LOCAL_SECONDS)


def on_slurm(rounds: int) -> bool:
    """From Slurm's start; returns whether ours meets its target."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as made, running_lab(Variant(stamps=True)) as lab:
        os.environ.update(lab.environment)
        with running_service(Path(made), backend="slurm", accelerator="cpu") as client:
            programs: Programs = {
                "trainyard": lambda _: since_slurms_start(lab, client),
                "srun torchrun": lambda number: by_srun(lab, Path(made) / f"floor-{number}"),
            }
            seconds = measure(programs, rounds)
    return report("from Slurm's start of the job", seconds, SLURM_SECONDS)


def measure(programs: Programs, rounds: int) -> dict[str, list[float]]:
    """Seconds of each, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(rounds):
        for name, program in programs.items():
            seconds[name].append(program(number))
            print(f"{name}: {seconds[name][-1]:.2f}", file=sys.stderr, flush=True)
    return seconds


def report(since: str, seconds: dict[str, list[float]], allowed: float) -> bool:
    """Print the table and the verdict; returns whether ours meets its target."""
    ours, floor = (median(values) for values in seconds.values())
    rounds = len(next(iter(seconds.values())))
    print(f"seconds {since} to the first optimizer step: {PRESET}, {RANKS} processes, {rounds} rounds")
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    print(f"{'':18}{'median':>8}{'least':>8}{'most':>8}")
    for name, values in seconds.items():
        print(f"{name:18}{median(values):8.2f}{min(values):8.2f}{max(values):8.2f}")
    good = ours - floor <= allowed
    verdict = "within" if good else "MORE THAN"
    print(f"{'difference':18}{ours - floor:8.2f}   {verdict} the allowed {allowed:g} s\n")
    return good


@contextmanager
def running_service(folder: Path, **settings: str) -> Iterator[Client]:
    """A service of our own on SQLite."""
    service = ServiceProcess(folder / "service", **settings)
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


def since_submit(client: Client) -> float:
    """Seconds from just before the request to the first step, by way of everything."""
    begun = time.time()
    return first_step(client, run_job(client, {})) - begun


def since_slurms_start(lab: SlurmLab, client: Client) -> float:
    """By way of everything."""
    job = run_job(client, ON_SLURM)
    assert job.attempt is not None
    return first_step(client, job) - lab.started(str(job.attempt.scheduler_id))


def run_job(client: Client, where: Mapping[str, Any]) -> JobResource:
    """One job to its end."""
    job = client.submit({**load_template(PRESET).spec, "gpus": RANKS, **where})
    ended = client.wait(job.id, timeout=RUN_SECONDS)
    if ended.status != "succeeded":
        raise RuntimeError(f"job {job.id} ended as {ended.status}: {ended.status_message}")
    return ended


def first_step(client: Client, job: JobResource) -> float:
    """When its first step was done, in seconds since 1970."""
    (series,) = client.metrics(job.id, ["train/loss"]).series
    assert series.steps[0] == 1
    return series.times[0].timestamp()


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


def by_srun(lab: SlurmLab, folder: Path) -> float:
    """As somebody would who writes the batch script by hand."""
    attempt = prepare(RunLayout(folder))
    ranks = f"{sys.executable} -m torch.distributed.run --nproc-per-node {RANKS} -m worker {attempt.root}"
    options = ["--parsable", "-p", "gpu", f"--output={folder}/slurm.log", "-c", str(RANKS)]
    number = lab.run("sbatch", *options, "--wrap", f"srun {ranks}").strip()
    wait_until(attempt.finish(1).exists, RUN_SECONDS, f"job {number}; its log is {folder}/slurm.log")
    wait_until(lambda: not lab.jobs(states="RUNNING,COMPLETING"), 60, "the node to be free")
    return first_loss(attempt.spool_file(1)).timestamp() - lab.started(number)


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
