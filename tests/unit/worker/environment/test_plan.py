import json
import os
import resource

import pytest

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.launch import LaunchDocument
from worker.environment.containers.plan import write_plan
from worker.environment.prepare import EnvironmentRejectedError

SCRIPT = {"task": "script", "argv": ["a.py"]}
BUILTIN = {
    "task": "regression",
    "steps": 1,
    "model": {"source": "builtin", "name": "mlp"},
    "data": {"source": "builtin", "name": "parity"},
}


@pytest.fixture
def layout(tmp_path):
    root = tmp_path / "runs" / "j" / "attempts" / "1"
    root.mkdir(parents=True)
    return AttemptLayout(root)


def launch(runtime, image="python:3.12", spec=SCRIPT, variables=None):
    environment = {"container": {"image": image}, "variables": variables or {"APP_A": "1"}, "secrets": ["HF_TOKEN"]}
    document = {"job_id": "j", "attempt_id": "a", "attempt": 1, "tag": "t", "service_url": "http://s", "execution": 1}
    return LaunchDocument.model_validate(
        {
            **document,
            "max_restarts": 0,
            "ranks_per_node": 1,
            "container_runtime": runtime,
            "spec": {**spec, "environment": environment},
        }
    )


def plan(layout, document, changes=None, environ=None):
    path = write_plan(layout, document, 0, changes or {}, os.environ if environ is None else environ)
    assert path.stat().st_mode & 0o777 == 0o600
    return json.loads(path.read_text())


def test_script_imports_the_helper_alone(layout):
    document = plan(layout, launch("podman"))
    assert document["rank_variables"] == {"PYTHONPATH": str(layout.packages)}
    assert document["names"] == ["APP_A", "HF_TOKEN"]
    assert document["argv"][-3:] == ["python:3.12", "-I", str(layout.container / "init-0.py")]
    assert not any("/packages/" in word for word in document["argv"])


def test_builtin_task_has_our_packages_and_certificates(layout, tmp_path):
    (tmp_path / "ca.pem").write_text("authority")
    document = plan(layout, launch("podman", spec=BUILTIN), environ={"SSL_CERT_FILE": str(tmp_path / "ca.pem")})
    authorities = document["rank_variables"].pop("SSL_CERT_FILE")
    assert authorities.startswith(str(layout.container))
    assert document["rank_variables"] == {"PYTHONPATH": str(layout.packages), "PYTHONSAFEPATH": "1"}
    targets = [word for word in document["argv"] if f"target={layout.packages}/" in word]
    assert len(targets) == 2
    assert all(word.endswith(",readonly") for word in targets)


def test_runtime_of_a_module_gets_its_path_and_nothing_else_of_the_setup(layout):
    document = plan(layout, launch("podman"), changes={"PATH": "/opt/podman/bin", "APPTAINER_BIND": "/etc", "APP": "1"})
    assert document["runtime_variables"].keys() == {"PATH", "USER"}
    assert document["runtime_variables"]["PATH"] == "/opt/podman/bin"


def test_runtime_has_its_own_search_path(layout):
    document = plan(layout, launch("podman", variables={"PATH": "/x", "APP_A": "1"}))
    assert document["names"] == ["APP_A", "HF_TOKEN"]


def test_container_has_the_limits_of_the_job(layout):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert f"--ulimit=nofile={soft}:{hard}" in plan(layout, launch("docker"))["argv"]


def test_folder_of_charliecloud_has_its_variables(layout, tmp_path):
    (tmp_path / "image" / "ch").mkdir(parents=True)
    (tmp_path / "image" / "ch" / "environment").touch()
    document = plan(layout, launch("charliecloud", f"{tmp_path}/image"), environ={"PATH": "/nowhere"})
    assert f"--set-env={tmp_path}/image/ch/environment" in document["argv"]


def test_pyxis_names_job_and_node(layout):
    document = plan(layout, launch("pyxis"), environ={"SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n1"})
    assert {"--jobid=17", "--nodelist=n1"} <= {*document["argv"]}


@pytest.mark.parametrize("runtime", ["pyxis", None])
def test_runtime_that_cannot_start_here_is_refused(layout, runtime):
    with pytest.raises(EnvironmentRejectedError, match=r"^environment\.container: "):
        plan(layout, launch(runtime), environ={})
