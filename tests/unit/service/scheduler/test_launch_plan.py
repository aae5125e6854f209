"""The launch plan: environment, ranks and script of an attempt."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from service.as_owner.accounts import Account
from service.scheduler.backends import BACKENDS
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


HOSTILE = {
    name: value
    for names, value in (
        ("NCCL_SOCKET_IFNAME NCCL_IB_HCA NCCL_NET NCCL_NET_PLUGIN NCCL_DEBUG NCCL_P2P_DISABLE NCCL_CONF_FILE", "nope0"),
        ("NCCL_PROTO NCCL_ALGO GLOO_SOCKET_IFNAME GLOO_DEVICE_TRANSPORT TP_SOCKET_IFNAME", "nope0"),
        ("CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_HOME CUDA_MPS_PIPE_DIRECTORY", "nope"),
        ("NVIDIA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES", "none"),
        ("PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE PYTHONWARNINGS PYTHONOPTIMIZE", "/nonexistent"),
        ("LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT BASH_ENV ENV PROMPT_COMMAND", "/nonexistent/hostile.so"),
        ("OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES MKL_NUM_THREADS KMP_AFFINITY GOMP_CPU_AFFINITY", "-7"),
        ("SLURM_JOB_ID SLURM_NTASKS SLURM_PROCID SLURM_MEM_PER_NODE SLURM_EXPORT_ENV SLURM_CPU_BIND", "77"),
        ("SBATCH_ACCOUNT SBATCH_PARTITION SBATCH_EXPORT SBATCH_QOS SBATCH_TIMELIMIT SBATCH_EXCLUSIVE", "nope"),
        ("SRUN_CPUS_PER_TASK SRUN_EXPORT_ENV SUBMITIT_EXECUTOR", "9999"),
        ("TORCH_HOME TORCH_LOGS TORCH_DISTRIBUTED_DEBUG TORCHELASTIC_RUN_ID PYTORCH_CUDA_ALLOC_CONF", "nope"),
        ("RANK WORLD_SIZE MASTER_ADDR MASTER_PORT", "99"),
        ("TMPDIR TMP VIRTUAL_ENV XDG_CACHE_HOME HF_HOME", "/nonexistent"),
        ("http_proxy HTTPS_PROXY ALL_PROXY no_proxy", "http://127.0.0.1:9"),
        ("AWS_SECRET_ACCESS_KEY DATABASE_URL TRAINYARD_DATABASE_URL TRAINYARD_ATTEMPT XPATH path", "x"),
    )
    for name in names.split()
}
"""What the shell of an administrator may have, and no job on a cluster may get."""
NEEDED = {"PATH": "/bin", "HOME": "/home/ada", "USER": "ada", "LOGNAME": "ada", "LANG": "C", "LC_ALL": "C", "TZ": "UTC"}
ADA = Account(1001, 1001, "ada", "/home/ada")


class TestInherited:
    def test_jobs_on_a_cluster_get_nothing_of_the_shell_of_the_service(self) -> None:
        assert len(HOSTILE) > 60
        assert inherited_environment({**HOSTILE, **NEEDED}, machine=BACKENDS["slurm"].inherited) == NEEDED

    def test_jobs_on_this_machine_get_what_describes_it(self) -> None:
        inherited = inherited_environment({**HOSTILE, **NEEDED}, machine=BACKENDS["local"].inherited)
        added = inherited.keys() - NEEDED
        assert {"CUDA_VISIBLE_DEVICES", "NCCL_P2P_DISABLE", "TMPDIR", "VIRTUAL_ENV"} <= added
        assert all(name.startswith(("CUDA_", "NCCL_")) for name in added - {"TMPDIR", "VIRTUAL_ENV"})

    def test_an_administrator_lists_further_ones(self) -> None:
        listed = ("NCCL_*", "http_proxy", "TMPDIR", "CUDA_*", "SLURM_*", "TRAINYARD_*", "MASTER_*")
        added = inherited_environment({**HOSTILE, **NEEDED}, listed=listed).keys() - NEEDED
        assert {"NCCL_IB_HCA", "http_proxy", "TMPDIR", "CUDA_HOME"} <= added
        assert not [name for name in added if name.startswith(("SLURM_", "TRAINYARD_", "MASTER_", "CUDA_VIS"))]

    def test_jobs_of_owners_get_their_account_and_no_folder_of_the_service(self) -> None:
        machine = BACKENDS["local"].inherited
        inherited = inherited_environment({**HOSTILE, "HOME": "/root"}, machine=machine, account=ADA)
        assert inherited.items() >= ADA.environment.items()
        assert not {"TMPDIR", "VIRTUAL_ENV"} & inherited.keys()
        assert inherited_environment(HOSTILE, listed=("TMPDIR",), account=ADA)["TMPDIR"] == HOSTILE["TMPDIR"]


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
