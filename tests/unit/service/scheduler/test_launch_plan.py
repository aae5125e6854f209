"""The launch plan: environment, ranks and script of an attempt."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.scheduler.launch_plan import inherited_environment, plan_launch
from trainyard.contract.spec.environment import forbidden_variables
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from trainyard.contract.wire.launch import LaunchDocument

FOLDER = Path("/runs/job-1/attempts/1")


def spec_with(variables: dict[str, str]) -> TrainingSpec:
    return parse_spec(
        {
            "task": "regression",
            "model": {"source": "builtin", "name": "mlp"},
            "data": {"source": "builtin", "name": "parity"},
            "steps": 1,
            "environment": {"variables": variables},
        }
    )


def document(variables: dict[str, str] | None = None, **changes: Any) -> LaunchDocument:
    fields: dict[str, Any] = {
        "job_id": "job-1",
        "attempt_id": "a1b2",
        "attempt": 1,
        "tag": "ty-main-a1b2",
        "service_url": "http://127.0.0.1:8470",
        "execution": 1,
        "max_restarts": 2,
        "ranks_per_node": 2,
        "spec": spec_with(variables or {}),
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


class TestForbiddenVariables:
    def test_accepts_a_users_own_names(self) -> None:
        assert (
            forbidden_variables(spec_with({"OMP_NUM_THREADS": "1", "MY_FLAG": "a b $(c) `d`", "TOKENIZER": "x"})) == []
        )

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("TRAINYARD_ATTEMPT", "reserved for the service"),
            ("TRAINYARD_DATABASE_URL", "reserved for the service"),
            ("PATH", "reserved for the service"),
            ("SLURM_JOB_ID", "reserved for the scheduler"),
            ("SBATCH_EXPORT", "reserved for the scheduler"),
            ("SUBMITIT_EXECUTOR", "reserved for the scheduler"),
            ("CUDA_VISIBLE_DEVICES", "reserved for the scheduler"),
            ("RANK", "set by torchrun for each rank"),
            ("MASTER_ADDR", "set by torchrun for each rank"),
            ("TORCHELASTIC_RUN_ID", "set by torchrun for each rank"),
            ("LD_PRELOAD", "changes which code runs"),
            ("PYTHONPATH", "changes which code runs"),
            ("PYTHONHOME", "changes which code runs"),
            ("BASH_ENV", "changes which code runs"),
        ],
    )
    def test_rejects_reserved_names(self, name: str, reason: str) -> None:
        (problem,) = forbidden_variables(spec_with({name: "x", "FINE": "y"}))
        assert str(problem) == f"environment.variables.{name}: {reason}; a spec may not set this variable"


class TestPlanLaunch:
    def test_environment_is_inherited_requested_and_tagged_variables_only(self) -> None:
        plan = plan_launch(document({"MY_FLAG": "1"}), folder=FOLDER, python="/py", inherited={"PATH": "/bin"})
        assert plan.environment == {"PATH": "/bin", "MY_FLAG": "1", "TRAINYARD_ATTEMPT": "a1b2"}
        assert (plan.tag, plan.ranks, plan.python) == ("ty-main-a1b2", 2, "/py")

    def test_the_spec_overrides_inherited_variables(self) -> None:
        plan = plan_launch(document({"TZ": "Asia/Tokyo"}), folder=FOLDER, inherited={"TZ": "UTC"})
        assert plan.environment["TZ"] == "Asia/Tokyo"

    def test_only_the_caller_sets_the_search_path(self) -> None:
        plan = plan_launch(document(), folder=FOLDER, inherited={}, search_path=[Path("/src"), Path("/more")])
        assert plan.environment["PYTHONPATH"] == "/src:/more"

    def test_counts_the_ranks_of_all_nodes(self) -> None:
        plan = plan_launch(document(nodes=3, time_limit_minutes=5), folder=FOLDER, inherited={})
        assert (plan.ranks, plan.time_limit_minutes) == (6, 5)

    def test_reserved_variables_are_never_planned(self) -> None:
        with pytest.raises(ValueError, match=r"environment\.variables\.LD_PRELOAD: changes which code runs"):
            plan_launch(document({"LD_PRELOAD": "/x.so"}), folder=FOLDER, inherited={})

    def test_the_script_quotes_hostile_values(self, tmp_path: Path) -> None:
        hostile = "x'; touch pwned; echo \\'\" $(touch pwned) `touch pwned` #"
        packages = tmp_path / "it's src"
        (packages / "worker").mkdir(parents=True)
        (packages / "worker" / "launcher.py").write_text(
            "import os, sys\nprint(sys.argv[1], os.environ['MY_FLAG'], sep='|')\n"
        )
        plan = plan_launch(
            document({"MY_FLAG": hostile}),
            folder=tmp_path,
            python=sys.executable,
            inherited={"PATH": "/usr/bin:/bin"},
            search_path=[packages],
        )
        done = subprocess.run(["sh"], input=plan.script, capture_output=True, text=True, check=True, timeout=30)
        assert done.stdout == f"{tmp_path}|{hostile}\n"
        assert not (tmp_path / "pwned").exists()
        assert shlex.quote(str(tmp_path)) in plan.script
