"""Environment modules of a real site on two nodes, and its administrator's file."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.conftest import slurm_service
from tests.support.live import attempt_of, run_of, wait_for_status
from tests.support.packages import install
from tests.support.slurm_lab import SlurmLab
from trainyard.client import Client
from trainyard.demo import ServiceProcess

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


def submit(client: Client, folder: Path, modules: list[str]) -> str:
    code = folder / "mine"
    code.mkdir()
    (code / "train.py").write_text(PROGRAM)
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
