"""The launch plan: environment, ranks and script of an attempt."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.scheduler.launch_plan import inherited_environment, plan_launch
from tests.unit.contract.test_environment import spec_with
from trainyard.contract.wire.launch import LaunchDocument

FOLDER = Path("/runs/job-1/attempts/1")


def document(**changes: Any) -> LaunchDocument:
    fields: dict[str, Any] = {
        "job_id": "job-1",
        "attempt_id": "a1b2",
        "attempt": 1,
        "tag": "ty-main-a1b2",
        "service_url": "http://127.0.0.1:8470",
        "execution": 1,
        "max_restarts": 2,
        "ranks_per_node": 2,
        "spec": spec_with(),
    }
    return LaunchDocument(**(fields | changes))


class TestAllowed:
    def test_inherits_what_programs_need(self) -> None:
        names = "PATH HOME LANG LC_ALL TZ TMPDIR USER LOGNAME VIRTUAL_ENV CUDA_HOME NCCL_DEBUG GLOO_SOCKET_IFNAME"
        needed = dict.fromkeys(names.split(), "x")
        assert inherited_environment(needed) == needed

    @pytest.mark.parametrize(
        "name",
        [
            *("TRAINYARD_DATABASE_URL", "TRAINYARD_ATTEMPT", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "PYTHONPATH"),
            *("LD_PRELOAD", "LD_LIBRARY_PATH", "SLURM_JOB_ID", "SBATCH_ACCOUNT", "SUBMITIT_EXECUTOR", "XPATH", "path"),
        ],
    )
    def test_inherits_nothing_else(self, name: str) -> None:
        assert inherited_environment({name: "x"}) == {}


class TestPlanLaunch:
    def test_variables_and_secrets_of_the_spec_are_not_in_the_plan(self) -> None:
        spec = spec_with({"MY_FLAG": "my value", "TZ": "Asia/Tokyo"}, ("HF_TOKEN",))
        plan = plan_launch(document(spec=spec), folder=FOLDER, python="/py", inherited={"PATH": "/bin", "TZ": "UTC"})
        assert plan.environment == {"PATH": "/bin", "TZ": "UTC", "TRAINYARD_ATTEMPT": "a1b2", "PYTHONSAFEPATH": "1"}
        assert (plan.tag, plan.ranks, plan.python) == ("ty-main-a1b2", 2, "/py")
        assert not any(text in plan.script for text in ("MY_FLAG", "my value", "HF_TOKEN"))

    def test_own_environment_of_the_spec_is_not_in_the_plan(self) -> None:
        plain = plan_launch(document(), folder=FOLDER, inherited={"PATH": "/bin"})
        own = spec_with(venv="/home/ada/env", modules=("cuda/12",), setup=("touch pwned",))
        plan = plan_launch(document(spec=own), folder=FOLDER, inherited={"PATH": "/bin"})
        assert (plan.environment, plan.script) == (plain.environment, plain.script)

    def test_only_the_caller_sets_the_search_path(self) -> None:
        plan = plan_launch(document(), folder=FOLDER, inherited={}, search_path=[Path("/src"), Path("/more")])
        assert plan.environment["PYTHONPATH"] == "/src:/more"

    def test_counts_the_ranks_of_all_nodes(self) -> None:
        plan = plan_launch(document(nodes=3, time_limit_minutes=5), folder=FOLDER, inherited={})
        assert (plan.ranks, plan.time_limit_minutes) == (6, 5)

    def test_the_script_quotes_hostile_values(self, tmp_path: Path) -> None:
        hostile = "x'; touch pwned; echo \\'\" $(touch pwned) `touch pwned` #"
        packages = tmp_path / "it's src"
        (packages / "worker").mkdir(parents=True)
        (packages / "worker" / "launcher.py").write_text(
            "import os, sys\nprint(sys.argv[1], os.environ['MY_FLAG'], sep='|')\n"
        )
        plan = plan_launch(
            document(),
            folder=tmp_path,
            python=sys.executable,
            inherited={"PATH": "/usr/bin:/bin", "MY_FLAG": hostile},
            search_path=[packages],
        )
        done = subprocess.run(["sh"], input=plan.script, capture_output=True, text=True, check=True, timeout=30)
        assert done.stdout == f"{tmp_path}|{hostile}\n"
        assert not (tmp_path / "pwned").exists()
        assert shlex.quote(str(tmp_path)) in plan.script
