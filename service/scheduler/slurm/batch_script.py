"""From an attempt's document to the batch script that sbatch gets: pure, and submitit's own text.

No text of a person enters it: only numbers, names that an allow-list has passed, and paths that the service made.
submitit's quoting is for a shell, and sbatch reads its options otherwise.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import _make_sbatch_string

from service.core.setting_parsers import parse_sbatch_options
from service.scheduler.base import LaunchPlan
from service.scheduler.slurm.files import call_file, submitit_folder
from trainyard.contract.spec.sections import Resources
from trainyard.contract.wire.launch import LaunchDocument

_NAME = re.compile(r"[A-Za-z0-9_.:,=\[\]&*|-]{1,128}")
_PATH = re.compile(r"/[A-Za-z0-9_./+@=,-]*")


def is_plain_path(path: Path) -> bool:
    """Whether a path can stand in a batch script as it is."""
    return _PATH.fullmatch(str(path)) is not None


def batch_script(document: LaunchDocument, plan: LaunchPlan, *, extra: str = "") -> str:
    """The batch script of one attempt, to the letter as it is submitted.

    Args:
        extra: the administrator's own options.

    Raises:
        ValueError: something in it is not what acceptance must have let through.
    """
    for path in (plan.folder, Path(plan.python)):
        if not is_plain_path(path):
            raise ValueError(f"{path} cannot stand in a batch script: letters, digits and _./+@=,- only")
    folder = submitit_folder(plan.folder)
    command = f"{plan.python} -u -m submitit.core._submit {folder}"
    text: str = _make_sbatch_string(command=command, folder=folder, **_options(document, plan, extra))
    return text


def _options(document: LaunchDocument, plan: LaunchPlan, extra: str) -> dict[str, Any]:
    """Of submitit's SlurmExecutor, by its own names."""
    resources, ranks = document.spec.resources, document.ranks_per_node
    options: dict[str, Any] = {
        "job_name": plan.tag,
        "nodes": document.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": ranks * (resources.cpus_per_gpu or 1),
        "time": document.time_limit_minutes,
        "mem": f"{ranks * resources.memory_gb_per_gpu}G" if resources.memory_gb_per_gpu else None,
        "gres": _gres(resources, ranks) if document.accelerator == "cuda" else None,
        "partition": resources.partition,
        "account": resources.account,
        "qos": resources.qos,
        "constraint": resources.constraint,
        "exclude": _excluded(resources, document.excluded_nodes),
        "wckey": None,
        "setup": _setup(plan.folder),
        # A rank's death must not leave its peers waiting. `--export` because srun would take sbatch's for its own.
        "srun_args": ["--kill-on-bad-exit=1", "--export=ALL"],
        # ALL of a submitter that holds the plan's environment and nothing else. A list of names, NONE and NIL make
        # Slurm load the account's login environment on the node beside it.
        "additional_parameters": {
            **parse_sbatch_options(extra),
            "export": "ALL",
            "no-requeue": True,
            "signal": _warning(document),
        },
    }
    _check(options)
    return options


def _warning(document: LaunchDocument) -> str:
    """Slurm's warning before the time limit, which it sends up to a minute early, and to the ranks themselves.

    A limit that the worker knows it keeps by its own finer clock: the warning must come after that, or not at all
    (SIGCONT does nothing).
    """
    lead = int(document.lead)
    if document.limit_minutes is None:
        return f"USR2@{lead}"
    return f"USR2@{lead - 75}" if lead > 90 else f"CONT@{lead}"


def _gres(resources: Resources, ranks: int) -> str:
    return f"gpu:{resources.gpu_type}:{ranks}" if resources.gpu_type else f"gpu:{ranks}"


def _excluded(resources: Resources, failed: Sequence[str]) -> str | None:
    parts = [*([] if resources.exclude is None else [resources.exclude]), *failed]
    return ",".join(parts) if parts else None


def _setup(folder: Path) -> list[str]:
    """submitit names the pickled call by the job's id after sbatch has answered, which a crash may prevent."""
    named = f"{submitit_folder(folder)}/${{SLURM_JOB_ID}}_submitted.pkl"
    return [
        f'[ -e "{named}" ] || ln -s {call_file(folder)} "{named}" 2>/dev/null || true',
        'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"',
    ]


def _check(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if isinstance(value, str) and not _NAME.fullmatch(value):
            raise ValueError(f"{name}: {value!r} may not stand in a batch script")
