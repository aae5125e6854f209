"""The content of the batch script, and what never appears in it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import ValidationError

from service.scheduler.launch_plan import plan_launch
from service.scheduler.slurm.batch_script import batch_script, is_plain_path
from service.scheduler.slurm.dialect import Dialect
from tests.support.shared_parts import SettingsWithoutEnvironment
from tests.unit.contract.test_environment import spec_with
from tests.unit.contract.test_sbatch_options import HOSTILE, VALID
from tests.unit.service.scheduler.test_launch_plan import document

FOLDER = Path("/runs/job-1/attempts/1")


def script(
    *,
    settings: Mapping[str, Any] = MappingProxyType({}),
    resources: dict[str, Any] | None = None,
    **changes: Any,
) -> str:
    spec = spec_with({"MY_FLAG": "secret; touch pwned"})
    spec = spec.model_copy(update={"resources": spec.resources.model_copy(update=resources or {})})
    launch_document = document(**({"spec": spec, "nodes": 2} | changes))
    plan = plan_launch(launch_document, folder=FOLDER, python="/py", inherited={"PATH": "/bin"})
    return batch_script(launch_document, plan, dialect=Dialect.of(SettingsWithoutEnvironment(**settings)))


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
        "propagate": "NONE",
        "qos": "normal",
        "signal": "USR2@180",
    }


def test_gpus_are_requested_by_type() -> None:
    assert "gres" not in options(script())
    assert options(script(accelerator="cuda"))["gres"] == "gpu:2"
    assert options(script(accelerator="cuda", resources={"gpu_type": "a100"}))["gres"] == "gpu:a100:2"


GPUS = {
    ("gres", 1, None): {"gres": "gpu:2"},
    ("gres", 3, None): {"gres": "gpu:2"},
    ("gres", 1, "a100"): {"gres": "gpu:a100:2"},
    ("gres", 3, "a100"): {"gres": "gpu:a100:2"},
    ("gpus-per-node", 1, None): {"gpus-per-node": "2"},
    ("gpus-per-node", 3, None): {"gpus-per-node": "2"},
    ("gpus-per-node", 1, "a100"): {"gpus-per-node": "a100:2"},
    ("gpus-per-node", 3, "a100"): {"gpus-per-node": "a100:2"},
    ("gpus", 1, None): {"gpus": "2"},
    ("gpus", 3, None): {"gpus": "6", "gpus-per-task": "2"},
    ("gpus", 1, "a100"): {"gpus": "a100:2"},
    ("gpus", 3, "a100"): {"gpus": "a100:6", "gpus-per-task": "a100:2"},
}
"""How the GPUs of jobs with two ranks on each node are requested, by the setting, the nodes and the type."""
MEMORY = {
    "mem": {"mem": "16G"},
    "mem-per-cpu": {"mem-per-cpu": "2731M"},
    "mem-per-gpu": {"mem-per-gpu": "8G"},
    "none": dict[str, str](),
}
"""How two ranks on each node request 8 GiB each, with three CPUs each."""
OF_DIALECT = {"gres", "gpus", "gpus-per-node", "gpus-per-task", "mem", "mem-per-cpu", "mem-per-gpu"}


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize(("gpus", "nodes", "gpu_type"), GPUS)
def test_each_form_of_request_gives_every_node_the_same(
    memory: str, gpus: str, nodes: int, gpu_type: str | None
) -> None:
    settings = {"slurm_memory_option": memory, "slurm_gpu_option": gpus}
    resources = {"memory_gb_per_gpu": 8, "cpus_per_gpu": 3, "gpu_type": gpu_type}
    requested = options(script(settings=settings, resources=resources, nodes=nodes, accelerator="cuda"))
    assert (requested["nodes"], requested["ntasks-per-node"], requested["cpus-per-task"]) == (str(nodes), "1", "6")
    expected = GPUS[gpus, nodes, gpu_type] | MEMORY[memory]
    assert {name: value for name, value in requested.items() if name in OF_DIALECT} == expected
    other = {**resources, "options": {"gres": "nvme:1"}}
    requested = options(script(settings=settings, resources=other, nodes=nodes, accelerator="cuda"))
    assert requested["gres"] == ",".join(filter(None, [expected.get("gres"), "nvme:1"]))


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("gpus", ["gres", "gpus-per-node", "gpus"])
def test_jobs_without_gpus_request_none_and_no_memory_for_them(memory: str, gpus: str) -> None:
    settings = {"slurm_memory_option": memory, "slurm_gpu_option": gpus}
    requested = options(script(settings=settings, resources={"memory_gb_per_gpu": 8, "cpus_per_gpu": 3}))
    expected = MEMORY["mem" if memory == "mem-per-gpu" else memory]
    assert {name: value for name, value in requested.items() if name in OF_DIALECT} == expected
    assert OF_DIALECT.isdisjoint(options(script(settings=settings)))


def test_site_chooses_the_propagated_limits_and_options_of_srun() -> None:
    settings = {"slurm_propagate": "NOFILE,MEMLOCK", "slurm_srun_options": "--mpi=none --cpu-bind=none --exact"}
    text = script(settings=settings)
    assert options(text)["propagate"] == "NOFILE,MEMLOCK"
    assert " --export=ALL --propagate=NOFILE,MEMLOCK --mpi=none --cpu-bind=none --exact /py " in text
    assert "propagate" not in script(settings={"slurm_propagate": ""})


@pytest.mark.parametrize("gpu_type", ["a b", "$(x)", "a;b"])
@pytest.mark.parametrize("gpus", ["gres", "gpus-per-node", "gpus"])
def test_unsafe_gpu_types_are_rejected_in_each_form(gpus: str, gpu_type: str) -> None:
    with pytest.raises(ValueError, match="may not appear in a batch script"):
        script(settings={"slurm_gpu_option": gpus}, resources={"gpu_type": gpu_type}, accelerator="cuda")


@pytest.mark.parametrize(("minutes", "signal"), [(1, "CONT@15"), (10, "CONT@60"), (600, "USR2@105")])
def test_slurms_signal_never_precedes_the_workers_own_limit(minutes: int, signal: str) -> None:
    requested = options(script(time_limit_minutes=minutes))
    assert (requested["time"], requested["signal"]) == (str(minutes), signal)


def test_the_signal_fits_the_partition_limit_without_a_job_limit() -> None:
    requested = options(script(partition_limit_minutes=1))
    assert requested["signal"] == "CONT@15"
    assert "time" not in requested


def test_administrator_options_are_in_every_script() -> None:
    requested = options(script(settings={"slurm_extra_options": "--reservation=ai --exclusive --licenses=a:2,b"}))
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
        SettingsWithoutEnvironment(slurm_extra_options=text)
    with pytest.raises(ValidationError):
        SettingsWithoutEnvironment(slurm_srun_options=text)


@pytest.mark.parametrize("name", VALID)
def test_each_option_of_a_spec_is_one_line_of_the_script(name: str) -> None:
    plain = script().splitlines()
    for value in (value if value is True else str(value) for value in VALID[name]):
        added = [line for line in script(resources={"options": {name: value}}).splitlines() if line not in plain]
        (line,) = added
        text, _, rest = line.partition(" --")
        assert (text, parse_sbatch_line(rest)) == ("#SBATCH", name if value is True else f"{name}={value}")


def parse_sbatch_line(line: str) -> str:
    """Read the first argument as `_get_argument` of sbatch's source does; the line must end with it."""
    argument, quote, escaped = "", "", False
    for character in line:
        if escaped:
            argument, escaped = argument + character, False
        elif character == "\\":
            escaped = True
        elif quote and character == quote:
            quote = ""
        elif not quote and character in "'\"":
            quote = character
        else:
            assert quote or character not in " \t#", line
            argument += character
    assert not quote
    assert not escaped
    return argument


@pytest.mark.parametrize("name", VALID)
def test_hostile_values_of_options_never_reach_the_script(name: str) -> None:
    for value in HOSTILE:
        with pytest.raises(ValueError, match="may not appear in a batch script"):
            script(resources={"options": {name: value}})


@pytest.mark.parametrize("name", ["wrap", "uid", "job-name", "export", "x\ntouch /tmp/pwned", "--comment", "node_list"])
def test_other_options_never_reach_the_script(name: str) -> None:
    with pytest.raises(ValueError, match="may not appear in a batch script"):
        script(resources={"options": {name: "1"}})


def test_gpus_and_other_generic_resources_are_one_option() -> None:
    resources = {"options": {"gres": "nvme:1,fs"}}
    assert options(script(resources=resources))["gres"] == "nvme:1,fs"
    assert options(script(resources=resources, accelerator="cuda"))["gres"] == "gpu:2,nvme:1,fs"


def test_administrator_options_replace_those_of_a_stored_spec() -> None:
    text = script(
        settings={"slurm_extra_options": "--reservation=ai --oversubscribe"},
        resources={"options": {"reservation": "x", "exclusive": True}},
    )
    requested = options(text)
    assert (requested["reservation"], "oversubscribe" in requested, "exclusive" in requested) == ("ai", True, False)


def test_many_excluded_nodes_are_accepted() -> None:
    failed = tuple(f"gpu-a100-{n:04}.cluster.example.org" for n in range(8))
    assert options(script(excluded_nodes=failed))["exclude"] == ",".join(failed)


def test_srun_ends_all_tasks_and_gets_the_cpus() -> None:
    text = script()
    command = "/py -u -m submitit.core._submit /runs/job-1/attempts/1/submitit"
    assert f" --kill-on-bad-exit=1 --export=ALL --propagate=NONE {command}" in text
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
