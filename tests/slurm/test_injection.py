"""Injection of commands into the batch script, through each field and route."""

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.scheduler.base import Accepted, Rejected
from service.scheduler.launch_plan import plan_launch
from service.scheduler.slurm.batch_script import batch_script
from service.scheduler.slurm.scheduler import SlurmScheduler
from tests.slurm.specs import parity
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.client import InvalidRequestError
from trainyard.contract.spec.sbatch_options import SBATCH_OPTIONS
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.slurm, pytest.mark.smoke]

OPTIONS = tuple(SBATCH_OPTIONS)
FIELDS = ("partition", "account", "qos", "constraint", "exclude", "gpu_type")


def hostile(file: Path) -> str:
    """Return a text whose first line sbatch reads as a complete option and whose second line bash runs."""
    return f"x\\'\"\ntouch {file} #"


def test_injection_is_rejected_in_every_field(service: ServiceProcess, tmp_path: Path) -> None:
    text = hostile(tmp_path / "pwned")
    requests: list[tuple[str, dict[str, Any]]] = [
        (f"resources.{field}", {f"resources__{field}": text}) for field in FIELDS
    ]
    requests += [(f"resources.options.{option}", {"resources__options": {option: text}}) for option in OPTIONS]
    requests += [("name", {"name": text}), ("environment.variables.X", {"environment__variables": {"X": text}})]
    with service.client() as client:
        for param, change in requests:
            with pytest.raises(InvalidRequestError) as caught:
                client.submit(parity() | _nested(change))
            assert caught.value.status == 422
            assert param in str(caught.value.param), param


def test_injection_never_reaches_the_batch_script(slurm: SlurmLab, tmp_path: Path) -> None:
    spec = parse_spec(parity(gpus=1, strategy="single", resources__gpus_per_node=1))
    text = hostile(tmp_path / "pwned")
    changes: list[dict[str, Any]] = [{field: text} for field in FIELDS]
    changes += [{"options": {option: text}} for option in OPTIONS]
    changes += [{"options": {text: "1"}}]
    for change in changes:
        resources = spec.resources.model_copy(update=change)
        document = _document(spec.model_copy(update={"resources": resources}))
        document = document.model_copy(update={"accelerator": "cuda"})
        plan = plan_launch(document, folder=tmp_path, inherited={})
        with pytest.raises(ValueError, match="may not appear in a batch script"):
            batch_script(document, plan)
    assert not (tmp_path / "pwned").exists()


def test_injection_in_a_tag_runs_nothing(slurm: SlurmLab, tmp_path: Path) -> None:
    spec = parse_spec(parity(gpus=1, strategy="single", resources__gpus_per_node=1))
    document = _document(spec).model_copy(update={"tag": hostile(tmp_path / "pwned")})
    plan = plan_launch(document, folder=tmp_path, inherited={})
    with pytest.raises(ValueError, match="may not appear in a batch script"):
        batch_script(document, plan)


def test_unescaped_injection_works_on_this_slurm(slurm: SlurmLab, tmp_path: Path) -> None:
    """Shows that the other tests are not vacuous on this release of Slurm."""
    file = tmp_path / "pwned"
    script = tmp_path / "batch.sh"
    quoted = shlex.quote(hostile(file))  # The script is written as submitit does it.
    script.write_text(f"#!/bin/bash\n#SBATCH --output=/dev/null\n#SBATCH --job-name={quoted}\n")
    slurm.run("sbatch", str(script))
    wait_until(file.exists, 30, "the injected line to have run")


def test_accepted_rejected_and_ambiguous_outcomes_differ(
    slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter alone: it distinguishes the outcomes, and an accepted job has only the environment of the plan."""
    spec = parse_spec(parity(gpus=1, strategy="single", resources__gpus_per_node=1, resources__partition="nowhere"))
    monkeypatch.setenv("SECRET_OF_THE_SERVICE", "x")
    scheduler = SlurmScheduler(target="tests.support.jobs:environment")
    refused = _submit(scheduler, _document(spec), tmp_path / "refused")
    assert isinstance(refused, Rejected)
    spec = spec.model_copy(update={"resources": spec.resources.model_copy(update={"partition": "gpu"})})
    assert isinstance(_submit(scheduler, _document(spec), tmp_path / "accepted"), Accepted)
    exported = tmp_path / "accepted" / "environment.json"
    wait_until(lambda: (tmp_path / "accepted" / "began").exists(), 60, "the job to run")
    assert "SECRET_OF_THE_SERVICE" not in exported.read_text()
    assert '"MY_FLAG": "a \\"quoted\\" $(value)"' in exported.read_text()


def _document(spec: Any) -> LaunchDocument:
    return LaunchDocument(
        job_id="job-1",
        attempt_id="a1",
        attempt=1,
        tag="ty-main-a1",
        service_url="http://127.0.0.1:1",
        execution=1,
        max_restarts=0,
        ranks_per_node=1,
        spec=spec,
    )


def _nested(change: dict[str, Any]) -> dict[str, Any]:
    (key, value), *_ = change.items()
    section, _, field = key.partition("__")
    return {section: {**parity().get(section, {}), field: value}} if field else {section: value}


def _submit(scheduler: SlurmScheduler, document: LaunchDocument, folder: Path) -> Any:
    folder.mkdir()
    root = Path(__file__).parents[2]
    allowed = {"PATH": os.environ["PATH"], "MY_FLAG": 'a "quoted" $(value)'}
    plan = plan_launch(document, folder=folder, inherited=allowed, search_path=[root])
    return scheduler.submit(replace(plan, script=batch_script(document, plan)))
