"""The environment of ranks on two nodes: modules of a real site, and nothing of the process of the service."""

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.slurm.conftest import slurm_service
from tests.support.live import attempt_of, run_of, wait_for_status
from tests.support.packages import install
from tests.support.slurm_lab import SlurmLab
from tests.unit.service.scheduler.test_launch_plan import HOSTILE
from trainyard.cli.environment_checks import compare_with_sbatch
from trainyard.client import Client
from trainyard.demo import ServiceProcess
from worker.launcher.resource_limits import raised_stack

pytestmark = pytest.mark.slurm

MODULES_INIT = Path("/usr/share/modules/init/bash")
MODULE = """#%Module1.0
setenv DEMO_HOME /opt/demo
prepend-path PATH /opt/demo/bin
unsetenv SITE_DROPS
"""
PROGRAM = """
import json, os, sys
from trainyard.script import checkpoint_dir, report

report(1, {"loss": 0.5}, total_steps=1)
state = {"environ": dict(os.environ), "torch": "torch" in sys.modules}
(checkpoint_dir() / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(state))
import limits
"""


@pytest.fixture
def client(slurm: SlurmLab, tmp_path: Path) -> Iterator[Client]:
    """Yield a client of a service whose administrator's file adds a folder of modules."""
    if not MODULES_INIT.is_file():
        install("Environment Modules", "environment-modules")
    if not MODULES_INIT.is_file():
        message = "install the package environment-modules (root can: the tests do it)"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    module = tmp_path / "modulefiles" / "demo" / "1.0"
    module.parent.mkdir(parents=True)
    module.write_text(MODULE)
    site = tmp_path / "site.sh"
    site.write_text(f"export SITE_DROPS=1 SITE_SETS='a b'\nsource {MODULES_INIT}\nmodule use {tmp_path}/modulefiles\n")
    made: ServiceProcess
    with slurm_service(tmp_path / "state", site_setup=str(site)) as made, made.client() as ours:
        yield ours


LIMITS = """
import json, resource
names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
print(json.dumps({name: resource.getrlimit(getattr(resource, name)) for name in names}))
"""
LOW = {"RLIMIT_NOFILE": 600, "RLIMIT_NPROC": 5000, "RLIMIT_MEMLOCK": 65536, "RLIMIT_STACK": 2**22, "RLIMIT_CORE": 0}
"""Soft limits of the service; none of the nodes has these."""
RAISED = ("RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_MEMLOCK")
AMBIENT = {name: value for name, value in HOSTILE.items() if name != "PYTHONHOME" and not name.startswith("TRAINYARD_")}
"""What the process of the service has. Without these two kinds it could not run itself."""


class HostileService(ServiceProcess):
    """A service that was started from the shell of somebody who has set much."""

    def _environment(self) -> dict[str, str]:
        return super()._environment() | AMBIENT


@contextmanager
def low_limits() -> Iterator[None]:
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in LOW}
    for name, soft in LOW.items():
        resource.setrlimit(getattr(resource, name), (soft, limits[name][1]))
    try:
        yield
    finally:
        for name, both in limits.items():
            resource.setrlimit(getattr(resource, name), both)


def submit(client: Client, folder: Path, modules: list[str]) -> str:
    code = folder / "mine"
    code.mkdir()
    (code / "train.py").write_text(PROGRAM)
    (code / "limits.py").write_text(LIMITS)
    spec = {
        "task": "script",
        "argv": ["train.py"],
        "gpus": 2,
        "restart": {"max_retries": 0},
        "resources": {"partition": "gpu", "gpus_per_node": 1},
        "environment": {"modules": modules, "setup": ['export NODE_OF_SETUP="$SLURMD_NODENAME"']},
    }
    return client.submit(spec, code=code).id


def test_ranks_on_two_nodes_get_what_modules_changed(client: Client, tmp_path: Path) -> None:
    job_id = submit(client, tmp_path, ["demo/1.0"])
    done = wait_for_status(client, job_id, "succeeded", "failed", "rejected")
    assert done.status == "succeeded", done.status_message
    run = run_of(tmp_path / "state" / "runs", job_id)
    states = [json.loads((run.checkpoints / f"rank-{rank}.json").read_text()) for rank in range(2)]
    for state in states:
        environ = state["environ"]
        assert (environ["DEMO_HOME"], environ["SITE_SETS"]) == ("/opt/demo", "a b")
        assert environ["PATH"].startswith("/opt/demo/bin:")
        assert environ["LOADEDMODULES"] == "demo/1.0"
        assert "SITE_DROPS" not in environ
        assert not state["torch"]
    assert {state["environ"]["NODE_OF_SETUP"] for state in states} == {"node1", "node2"}
    script = client.script(job_id).script
    assert "demo" not in str(script)
    for node in range(2):
        assert "preparing the environment" in attempt_of(run, 1).node_log(node).read_text()


def test_missing_module_rejects_the_job_with_its_name(client: Client, tmp_path: Path) -> None:
    done = wait_for_status(client, submit(client, tmp_path, ["demo/1.0", "demo/9.9"]), "failed", "succeeded")
    assert "environment.modules: `module load demo/9.9` failed with exit code 1" in done.status_message
    assert done.status_reason == "rejected"


def test_nothing_of_the_service_reaches_a_job(slurm: SlurmLab, tmp_path: Path) -> None:
    options = ["--propagate=NONE", "--partition=gpu", "--quiet"]
    of_node = json.loads(slurm.run("srun", *options, sys.executable, "-c", LIMITS))
    expected = {name: [hard if name in RAISED else soft, hard] for name, (soft, hard) in of_node.items()}
    expected["RLIMIT_STACK"][0] = raised_stack(*of_node["RLIMIT_STACK"])
    with low_limits():
        started = slurm_service(tmp_path / "state", of_type=HostileService, job_environment="XDG_CACHE_HOME,XPATH")
        service = started.__enter__()
    try:
        with service.client() as client:
            job_id = submit(client, tmp_path, [])
            done = wait_for_status(client, job_id, "succeeded", "failed", "rejected")
            assert done.status == "succeeded", done.status_message
    finally:
        started.__exit__(None, None, None)
    run = run_of(tmp_path / "state" / "runs", job_id)
    for rank in range(2):
        state = json.loads((run.checkpoints / f"rank-{rank}.json").read_text())
        inherited = {name for name, value in AMBIENT.items() if state["environ"].get(name) == value}
        assert inherited == {"XDG_CACHE_HOME", "XPATH"}
        printed = attempt_of(run, 1).rank_log(rank).read_text().splitlines()[-1]
        assert json.loads(printed) == expected


def test_doctor_names_what_differs_from_a_job_by_sbatch(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service.client() as client, low_limits():
        monkeypatch.setenv("NCCL_IB_HCA", "mlx5")
        variables, limits = compare_with_sbatch(client, 120)
        left = list(client.jobs())
    by_sbatch, *others = variables.message.split("; ")
    assert "NCCL_IB_HCA" in by_sbatch
    assert (variables.state, "OMP_WAIT_POLICY" in str(others)) == ("warning", True)
    assert limits.state == "ok", limits
    assert f"open files {resource.getrlimit(resource.RLIMIT_NOFILE)[1]}, by sbatch 600" in limits.message
    assert left == []
