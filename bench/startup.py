"""`python -m bench.startup`: the time to the first optimizer step on Slurm, compared with plain torchrun.

In a test cluster of its own, both run the preset `mlp_parity` on 2 processes, alternately: as our job, and in a batch
script that only calls `srun torchrun` with a run directory made from the contract and an unreachable service. The time
starts when the node's prolog runs, and ends with the first step, whose end is the time stamp of the first point of
`train/loss`.
"""

import argparse
import json
import os
import sys
import tempfile
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
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.jobs import TERMINAL, JobResource
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.demo import ServiceProcess, free_port

PRESET = "mlp_parity"
RANKS = 2
ALLOWED_SECONDS = 0.5
"""The allowed difference to torchrun."""
RUN_SECONDS = 120.0
ON_SLURM = {"resources": {"partition": "gpu", "gpus_per_node": RANKS}}

Programs = Mapping[str, Callable[[int], float]]
"""Functions that each measure one run in seconds; the argument is the number of the round."""


def main() -> int:
    """Run the measurement; return 0 if the target is met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as made, running_lab(Variant(stamps=True)) as lab:
        os.environ.update(lab.environment)
        with running_service(Path(made)) as client:
            programs: Programs = {
                "trainyard": lambda _: since_slurms_start(lab, client),
                "srun torchrun": lambda number: by_srun(lab, Path(made) / f"baseline-{number}"),
            }
            seconds = measure(programs, rounds)
    return 0 if report(seconds) else 1


def measure(programs: Programs, rounds: int) -> dict[str, list[float]]:
    """The seconds of each program, run alternately."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(rounds):
        for name, program in programs.items():
            seconds[name].append(program(number))
            print(f"{name}: {seconds[name][-1]:.2f}", file=sys.stderr, flush=True)
    return seconds


def report(seconds: dict[str, list[float]]) -> bool:
    """Print the table and the result; returns whether the target is met."""
    ours, baseline = (median(values) for values in seconds.values())
    rounds = len(next(iter(seconds.values())))
    print("seconds from Slurm's start of the job to the first optimizer step")
    print(f"{PRESET}, {RANKS} processes, {rounds} rounds")
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    print(f"{'':18}{'median':>8}{'least':>8}{'most':>8}")
    for name, values in seconds.items():
        print(f"{name:18}{median(values):8.2f}{min(values):8.2f}{max(values):8.2f}")
    good = ours - baseline <= ALLOWED_SECONDS
    result = "within" if good else "MORE THAN"
    print(f"{'difference':18}{ours - baseline:8.2f}   {result} the allowed {ALLOWED_SECONDS:g} s\n")
    return good


@contextmanager
def running_service(folder: Path) -> Iterator[Client]:
    """Run a service on SQLite and yield its client."""
    service = ServiceProcess(folder / "service", backend="slurm", accelerator="cpu")
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
    """Cancel all jobs, which would otherwise outlive the service after a failure."""
    for job in client.jobs():
        if job.status not in TERMINAL:
            client.cancel(job.id)
            client.wait(job.id, timeout=RUN_SECONDS)


def since_slurms_start(lab: SlurmLab, client: Client) -> float:
    """Seconds from Slurm's start of the job to the first step."""
    job = run_job(client)
    assert job.attempt is not None
    return first_step(client, job) - lab.started(str(job.attempt.scheduler_id))


def run_job(client: Client) -> JobResource:
    """Run one job to its end."""
    job = client.submit({**load_template(PRESET).spec, "gpus": RANKS, **ON_SLURM})
    ended = client.wait(job.id, timeout=RUN_SECONDS)
    if ended.status != "succeeded":
        raise RuntimeError(f"job {job.id} ended as {ended.status}: {ended.status_message}")
    return ended


def first_step(client: Client, job: JobResource) -> float:
    """When the first step ended, in seconds since the epoch."""
    (series,) = client.metrics(job.id, ["train/loss"]).series
    assert series.steps[0] == 1
    return series.times[0].timestamp()


def by_srun(lab: SlurmLab, folder: Path) -> float:
    """Seconds from Slurm's start to the first step, with a hand-written batch script."""
    attempt = prepare(RunLayout(folder))
    ranks = f"{sys.executable} -m torch.distributed.run --nproc-per-node {RANKS} -m worker {attempt.root}"
    options = ["--parsable", "-p", "gpu", f"--output={folder}/slurm.log", "-c", str(RANKS)]
    number = lab.run("sbatch", *options, "--wrap", f"srun {ranks}").strip()
    wait_until(attempt.finish(1).exists, RUN_SECONDS, f"job {number}; its log is {folder}/slurm.log")
    wait_until(lambda: not lab.jobs(states="RUNNING,COMPLETING"), 60, "the node to be free")
    return first_loss(attempt.spool_file(1)).timestamp() - lab.started(number)


def prepare(run: RunLayout) -> AttemptLayout:
    """Create a run directory as the service does, for an attempt whose service is unreachable."""
    attempt = run.attempt("1")
    document = load_template(PRESET).spec | {"gpus": RANKS}
    launch = LaunchDocument(
        job_id="baseline",
        attempt_id="baseline",
        attempt=1,
        tag="ty-bench-baseline",
        service_url=f"http://127.0.0.1:{free_port()}",
        execution=1,
        max_restarts=0,
        ranks_per_node=RANKS,
        spec=resolve(parse_spec(document), Site(accelerator="cpu", scheduler="local")),
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
