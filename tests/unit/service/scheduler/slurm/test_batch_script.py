"""The content of the batch script, and what never appears in it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from service.core.settings import Settings
from service.scheduler.launch_plan import plan_launch
from service.scheduler.slurm.batch_script import batch_script, is_plain_path
from tests.unit.contract.test_environment import spec_with
from tests.unit.service.scheduler.test_launch_plan import document

FOLDER = Path("/runs/job-1/attempts/1")


def script(*, extra: str = "", resources: dict[str, Any] | None = None, **changes: Any) -> str:
    spec = spec_with({"MY_FLAG": "secret; touch pwned"})
    spec = spec.model_copy(update={"resources": spec.resources.model_copy(update=resources or {})})
    launch_document = document(**({"spec": spec, "nodes": 2} | changes))
    plan = plan_launch(launch_document, folder=FOLDER, python="/py", inherited={"PATH": "/bin"})
    return batch_script(launch_document, plan, extra=extra)


def options(text: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_requests_what_the_job_needs_and_nothing_else() -> None:
    requested = options(
        script(resources={"partition": "gpu", "cpus_per_gpu": 4, "memory_gb_per_gpu": 8, "qos": "normal"})
    )
    assert requested == {
        "cpus-per-task": "8",
        "error": "/runs/job-1/attempts/1/submitit/%j_0_log.err",
        "export": "ALL",
        "job-name": "ty-main-a1b2",
        "mem": "16G",
        "no-requeue": "",
        "nodes": "2",
        "ntasks-per-node": "1",
        "open-mode": "append",
        "output": "/runs/job-1/attempts/1/submitit/%j_0_log.out",
        "partition": "gpu",
        "qos": "normal",
        "signal": "USR2@180",
    }


def test_gpus_are_requested_by_type() -> None:
    assert "gres" not in options(script())
    assert options(script(accelerator="cuda"))["gres"] == "gpu:2"
    assert options(script(accelerator="cuda", resources={"gpu_type": "a100"}))["gres"] == "gpu:a100:2"


@pytest.mark.parametrize(("minutes", "signal"), [(1, "CONT@15"), (10, "CONT@60"), (600, "USR2@105")])
def test_slurms_signal_never_precedes_the_workers_own_limit(minutes: int, signal: str) -> None:
    requested = options(script(time_limit_minutes=minutes))
    assert (requested["time"], requested["signal"]) == (str(minutes), signal)


def test_the_signal_fits_the_partition_limit_without_a_job_limit() -> None:
    requested = options(script(partition_limit_minutes=1))
    assert requested["signal"] == "CONT@15"
    assert "time" not in requested


def test_administrator_options_are_in_every_script() -> None:
    requested = options(script(extra="--reservation=ai --exclusive --licenses=a:2,b"))
    assert (requested["reservation"], requested["licenses"], "exclusive" in requested) == ("ai", "a:2,b", True)
    assert requested["job-name"] == "ty-main-a1b2"


@pytest.mark.parametrize(
    "text",
    [
        "--export=NONE",
        "--job-name=x",
        "--clusters=b",
        "--requeue",
        "reservation=ai",
        "--comment='a b'",
        "--comment=$(x)",
        "-x",
    ],
)
@pytest.mark.fault_scenario(58)
def test_unsafe_administrator_options_are_rejected(text: str) -> None:
    with pytest.raises(ValidationError):
        Settings(slurm_extra_options=text)


def test_srun_ends_all_tasks_and_gets_the_cpus() -> None:
    text = script()
    assert " --kill-on-bad-exit=1 --export=ALL /py -u -m submitit.core._submit /runs/job-1/attempts/1/submitit" in text
    assert 'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"' in text


def test_the_script_contains_no_user_text() -> None:
    assert "secret" not in script()
    assert "MY_FLAG" not in script()


@pytest.mark.parametrize("field", ["partition", "account", "qos", "constraint", "exclude"])
@pytest.mark.parametrize("text", ["x\\'\"\ntouch /tmp/pwned #", "a b", "a;b", "$(x)", "", "a\\"])
def test_unsafe_values_are_rejected(field: str, text: str) -> None:
    with pytest.raises(ValueError, match="may not appear in a batch script"):
        script(resources={field: text})


@pytest.mark.parametrize("path", ["/runs/with blank", "/runs/it's", "/runs/a\nb", "relative", "/runs/%j", "/a\\b"])
def test_unsafe_paths_are_rejected(path: str) -> None:
    assert not is_plain_path(Path(path))
    launch_document = document()
    plan = plan_launch(launch_document, folder=FOLDER, python="/py", inherited={})
    with pytest.raises(ValueError, match="may not appear in a batch script"):
        batch_script(launch_document, replace(plan, folder=Path(path)))
