"""GPUs are requested as generic resources of Slurm, by number per node."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.core.settings import Settings
from service.scheduler.base import Accepted
from service.scheduler.launch_plan import plan_launch
from service.scheduler.slurm.batch_script import batch_script
from service.scheduler.slurm.commands import SlurmCommands
from service.scheduler.slurm.scheduler import SlurmScheduler
from service.specs.site import site_of
from tests.slurm.specs import parity
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.contract.spec.sections import Resources
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.cluster import ClusterResource
from trainyard.contract.wire.launch import LaunchDocument

pytestmark = pytest.mark.slurm


def test_a_job_is_given_the_gpus_that_it_requests(slurm: SlurmLab, tmp_path: Path) -> None:
    spec = parse_spec(parity(gpus=2, resources__gpus_per_node=2))
    folder = tmp_path / "attempt"
    folder.mkdir()
    document = LaunchDocument(
        job_id="job-1",
        attempt_id="a1",
        attempt=1,
        tag="ty-main-a1",
        service_url="http://127.0.0.1:1",
        execution=1,
        max_restarts=0,
        ranks_per_node=2,
        accelerator="cuda",
        spec=spec,
    )
    root = Path(__file__).parents[2]
    plan = plan_launch(document, folder=folder, inherited={"PATH": os.environ["PATH"]}, search_path=[root])
    script = batch_script(document, plan)
    outcome = SlurmScheduler(target="tests.support.jobs:environment").submit(replace(plan, script=script))
    assert isinstance(outcome, Accepted)
    assert slurm.run("squeue", "--noheader", "--states=all", "-j", outcome.scheduler_id, "-o", "%b").strip() in (
        "gres:gpu:2",
        "gpu:2",
    )
    wait_until((folder / "began").exists, 60, "the job to run")
    assert json.loads((folder / "environment.json").read_text())["SLURM_GPUS_ON_NODE"] == "2"


def test_partitions_report_gpus_and_default_times(slurm: SlurmLab) -> None:
    partitions = {one.name: one for one in SlurmCommands().sinfo().partitions}
    assert (partitions["minute"].default_time_minutes, partitions["minute"].time_limit_minutes) == (1, 1)
    assert partitions["gpu"].default_time_minutes is None
    cluster = ClusterResource(backend="slurm", taken_at=datetime.now(UTC), partitions=list(partitions.values()))
    site = site_of(Settings(backend="slurm"), Resources(partition="minute"), cluster)
    assert (site.accelerator, site.partition_limit_minutes) == ("cuda", 1)
