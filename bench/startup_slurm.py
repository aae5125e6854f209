"""`python -m bench.startup_slurm`: from Slurm's start of a job to its first step, beside bare `srun torchrun`.

Both run the preset `mlp_parity` with 2 processes on one node of the lab, in turns: ours through the service, the floor
as a batch script with one line, on a run directory made from the contract and a service that cannot be reached. Slurm's
start is the time at which the node's prolog ran; the first step's end is the time stamp of the first `train/loss`.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.startup import PRESET, RANKS, ROUNDS, RUN_SECONDS, end_jobs, first_loss, prepare, report
from tests.support.slurm_lab import SlurmLab, Variant, running_lab
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.layout import RunLayout
from trainyard.contract.templates import fill_template
from trainyard.demo import ServiceProcess

ALLOWED_SECONDS = 2.0


def main() -> int:
    """Returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as made, running_lab(Variant(stamps=True)) as lab:
        os.environ.update(lab.environment)
        folder = Path(made)
        service = ServiceProcess(folder / "service", backend="slurm", accelerator="cpu")
        service.start()
        try:
            with service.client() as client:
                try:
                    return report(measure(lab, client, folder), ALLOWED_SECONDS)
                finally:
                    end_jobs(client)
        finally:
            service.stop()


def measure(lab: SlurmLab, client: Client, folder: Path) -> dict[str, list[float]]:
    """Seconds to the first step, in turns."""
    programs: dict[str, Callable[[int], float]] = {
        "trainyard": lambda _: through_service(lab, client),
        "srun torchrun": lambda number: by_srun(lab, folder / f"floor-{number}"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(ROUNDS):
        for name, program in programs.items():
            seconds[name].append(program(number))
            print(f"{name}: {seconds[name][-1]:.2f}", file=sys.stderr, flush=True)
    return seconds


def through_service(lab: SlurmLab, client: Client) -> float:
    """By way of everything."""
    where = {"resources.partition": "gpu", "resources.gpus_per_node": RANKS, "gpus": RANKS}
    job = client.submit(fill_template(PRESET, where))
    ended = client.wait(job.id, timeout=RUN_SECONDS)
    if ended.status != "succeeded" or ended.attempt is None:
        raise RuntimeError(f"job {job.id} ended as {ended.status}: {ended.status_message}")
    (series,) = client.metrics(job.id, ["train/loss"]).series
    assert series.steps[0] == 1
    return series.times[0].timestamp() - lab.started(str(ended.attempt.scheduler_id))


def by_srun(lab: SlurmLab, folder: Path) -> float:
    """As somebody would who writes the batch script by hand."""
    attempt = prepare(RunLayout(folder))
    ranks = f"{sys.executable} -m torch.distributed.run --nproc-per-node {RANKS} -m worker {attempt.root}"
    number = lab.run(
        "sbatch", "--parsable", "-p", "gpu", f"--output={folder}/slurm.log", "-c", str(RANKS), "--wrap", f"srun {ranks}"
    ).strip()
    wait_until(attempt.finish(1).exists, RUN_SECONDS, f"job {number}; its log is {folder}/slurm.log")
    wait_until(lambda: not lab.jobs(states="RUNNING,COMPLETING"), 60, "the node to be free")
    return first_loss(attempt.spool_file(1)).timestamp() - lab.started(number)


if __name__ == "__main__":
    sys.exit(main())
