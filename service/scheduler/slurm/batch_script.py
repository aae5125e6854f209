"""From a launch document to the batch script, whose text is made by submitit. Pure functions.

The script contains no free text of users: only numbers, values that match a pattern, and paths made by the service.
submitit quotes for a shell, but sbatch parses its options differently: a backslash escapes between single quotes, too.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import _make_sbatch_string

from service.scheduler.base import LaunchPlan
from service.scheduler.slurm.dialect import Dialect
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.spec.sbatch_options import option_problems, overriding_option
from trainyard.contract.spec.sections import Resources
from trainyard.contract.wire.launch import LaunchDocument

_NAME = re.compile(r"[A-Za-z0-9_.:,=\[\]&*|-]{1,1024}")
_PATH = re.compile(r"/[A-Za-z0-9_./+@=,-]*")


def is_plain_path(path: Path) -> bool:
    """Whether a path can appear in a batch script without quoting."""
    return _PATH.fullmatch(str(path)) is not None


def batch_script(document: LaunchDocument, plan: LaunchPlan, *, dialect: Dialect | None = None) -> str:
    """The exact batch script that is submitted for an attempt.

    Args:
        dialect: How the site wants requests to be made; None: as a Slurm without rules of its own.

    Raises:
        ValueError: a value may not appear in a batch script.
    """
    for path in (plan.folder, Path(plan.python)):
        if not is_plain_path(path):
            raise ValueError(f"{path} may not appear in a batch script: only letters, digits and _./+@=,- are allowed")
    folder = AttemptLayout(plan.folder).submitit
    command = f"{plan.python} -u -m submitit.core._submit {folder}"
    text: str = _make_sbatch_string(command=command, folder=folder, **_options(document, plan, dialect or Dialect()))
    return text


def _options(document: LaunchDocument, plan: LaunchPlan, dialect: Dialect) -> dict[str, Any]:
    """The options of submitit's SlurmExecutor, by its names."""
    resources, ranks = document.spec.resources, document.ranks_per_node
    request = dialect.request(resources, nodes=document.nodes, ranks=ranks, uses_gpus=document.accelerator == "cuda")
    options: dict[str, Any] = {
        "job_name": plan.tag,
        "nodes": document.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": ranks * (resources.cpus_per_gpu or 1),
        "time": document.time_limit_minutes,
        "partition": resources.partition,
        "account": resources.account,
        "qos": resources.qos,
        "constraint": resources.constraint,
        "exclude": _excluded(resources, document.excluded_nodes),
        "wckey": None,
        "setup": _setup(plan.folder),
        # One rank's exit must end its peers. `--export`, since srun would otherwise use sbatch's value.
        "srun_args": ["--kill-on-bad-exit=1", "--export=ALL", *dialect.srun_arguments()],
        # The submitter's environment is exactly the plan's. With a list of names, NONE or NIL, Slurm would also load
        # the account's login environment on the node.
        "additional_parameters": {
            **_further_options(resources, dialect.sbatch_options),
            **request,
            **({"propagate": dialect.propagate} if dialect.propagate else {}),
            "export": "ALL",
            "no-requeue": True,
            "signal": _signal_option(document),
        },
    }
    _check({**options, **request})
    return options


def _signal_option(document: LaunchDocument) -> str:
    """The signal that Slurm sends before the time limit, up to a minute early and directly to the ranks.

    A limit that the worker knows is enforced by its own, finer clock, so the signal must come later than that, or be
    harmless (SIGCONT).
    """
    lead = int(document.lead)
    if document.limit_minutes is None:
        return f"USR2@{lead}"
    return f"USR2@{lead - 75}" if lead > 90 else f"CONT@{lead}"


def _further_options(resources: Resources, fixed: Mapping[str, str | bool]) -> dict[str, str | bool]:
    """The options of the spec and of the administrator, which take precedence over the spec's.

    Raises:
        ValueError: a value may not appear in a batch script.
    """
    if problems := option_problems(resources.options):
        raise ValueError(f"{problems[0]}; this may not appear in a batch script")
    own = {name: value for name, value in resources.options.items() if overriding_option(name, fixed) is None}
    own.pop("gres", None)
    return {**own, **fixed}


def _excluded(resources: Resources, failed: Sequence[str]) -> str | None:
    parts = [*([] if resources.exclude is None else [resources.exclude]), *failed]
    return ",".join(parts) if parts else None


def _setup(folder: Path) -> list[str]:
    """Link the pickled call to the name that submitit gives it after sbatch has returned, which a crash may prevent."""
    named = f"{AttemptLayout(folder).submitit}/${{SLURM_JOB_ID}}_submitted.pkl"
    return [
        f'[ -e "{named}" ] || ln -s {AttemptLayout(folder).pickled_call} "{named}" 2>/dev/null || true',
        'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"',
    ]


def _check(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if isinstance(value, str) and not _NAME.fullmatch(value):
            raise ValueError(f"{name}: {value!r} may not appear in a batch script")
