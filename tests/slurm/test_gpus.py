"""GPUs are requested as generic resources of Slurm, by number per node."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import pytest

from service.core.settings import Settings
from service.core.slurm_settings import GpuOption
from service.diagnostics.slurm_checks import requests
from service.diagnostics.slurm_times import ended_jobs, time_to_save
from service.scheduler.base import Accepted
from service.scheduler.launch_plan import plan_launch
from service.scheduler.slurm.batch_script import batch_script
from service.scheduler.slurm.commands import SlurmCommands
from service.scheduler.slurm.dialect import Dialect
from service.scheduler.slurm.sbatch_output import parse_forecast
from service.scheduler.slurm.scheduler import SlurmScheduler
from service.specs.site import site_of
from tests.slurm.specs import parity
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from tests.unit.service.scheduler.slurm.test_batch_script import script
from trainyard.contract.spec.sections import Resources
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.cluster import ClusterResource
from trainyard.contract.wire.launch import LaunchDocument

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize(("form", "shown"), [("gres", "gres:gpu:2"), ("gpus-per-node", "gres:gpu:2"), ("gpus", "N/A")])
def test_a_job_is_given_the_gpus_that_it_requests(slurm: SlurmLab, tmp_path: Path, form: GpuOption, shown: str) -> None:
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
    text = batch_script(document, plan, dialect=Dialect(memory="mem-per-cpu", gpus=form))
    outcome = SlurmScheduler(target="tests.support.jobs:environment").submit(replace(plan, script=text))
    assert isinstance(outcome, Accepted)
    per_node = slurm.run("squeue", "--noheader", "--states=all", "-j", outcome.scheduler_id, "-o", "%b").strip()
    # Slurm 22.05 shows gres:gpu:2, and 24.11 gres/gpu:2.
    assert per_node.replace("gres/", "gres:") in (shown, shown.removeprefix("gres:"))
    wait_until((folder / "began").exists, 60, "the job to run")
    assert json.loads((folder / "environment.json").read_text())["SLURM_GPUS_ON_NODE"] == "2"


@pytest.mark.parametrize("memory", ["mem", "mem-per-cpu", "mem-per-gpu", "none"])
def test_slurm_accepts_each_form_of_request(slurm: SlurmLab, memory: str) -> None:
    resources = {"memory_gb_per_gpu": 1, "cpus_per_gpu": 2}
    for form, nodes, accelerator in product(("gres", "gpus-per-node", "gpus"), (1, 2), ("cpu", "cuda")):
        settings = {"slurm_memory_option": memory, "slurm_gpu_option": form}
        text = script(settings=settings, resources=resources, nodes=nodes, accelerator=accelerator)
        forecast = parse_forecast(*SlurmCommands().test_only(text))
        assert forecast.accepted, (form, nodes, accelerator, forecast)


def test_doctor_names_forms_that_slurm_refuses(slurm: SlurmLab) -> None:
    settings = Settings(backend="slurm", slurm_memory_option="mem-per-gpu", slurm_gpu_option="gpus")
    assert requests(settings).state == "ok", requests(settings)
    assert "partitions gpu, high, minute" in requests(settings).message
    refused = requests(settings.model_copy(update={"slurm_extra_options": "--reservation=nope"}))
    assert (refused.state, "Requested reservation is invalid" in refused.message) == ("warning", True)


def test_doctor_compares_slurms_times_with_those_of_the_service(purging_lab: SlurmLab) -> None:
    settings = Settings(backend="slurm")
    assert ended_jobs(settings).message.startswith("there is no accounting, and Slurm forgets ended jobs after 2 s")
    finding = time_to_save(settings, 60.0)
    assert (finding.state, "a preempted job of partition gpu has 50 s" in finding.message) == ("warning", True)


def test_partitions_report_gpus_and_default_times(slurm: SlurmLab) -> None:
    partitions = {one.name: one for one in SlurmCommands().sinfo().partitions}
    assert (partitions["minute"].default_time_minutes, partitions["minute"].time_limit_minutes) == (1, 1)
    assert partitions["gpu"].default_time_minutes is None
    cluster = ClusterResource(backend="slurm", taken_at=datetime.now(UTC), partitions=list(partitions.values()))
    site = site_of(Settings(backend="slurm"), Resources(partition="minute"), cluster)
    assert (site.accelerator, site.partition_limit_minutes) == ("cuda", 1)
