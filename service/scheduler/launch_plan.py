"""From a launch document to the launch plan that is submitted. Pure functions."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from service.as_owner.accounts import Account
from service.scheduler.base import LaunchPlan
from trainyard.contract.spec.environment import ATTEMPT_VARIABLE, matches_any
from trainyard.contract.wire.launch import LaunchDocument

_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "VIRTUAL_ENV", "TMPDIR"),
    *("LANG", "LC_*", "TZ"),
    *("CUDA_*", "NCCL_*", "GLOO_*"),
)
"""Variables that a job inherits from the service."""


def inherited_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of the service's environment that jobs inherit, without its secrets and settings."""
    return {name: value for name, value in environ.items() if matches_any(name, _INHERITED)}


def owner_environment(inherited: Mapping[str, str], account: Account) -> dict[str, str]:
    """The inherited environment of a job that runs as its owner, without what is the service's own."""
    ours = ("TMPDIR", "VIRTUAL_ENV")
    return {name: value for name, value in inherited.items() if name not in ours} | account.environment


def plan_launch(
    document: LaunchDocument,
    *,
    folder: Path,
    python: str = sys.executable,
    inherited: Mapping[str, str],
    search_path: Sequence[Path] = (),
    uid: int | None = None,
) -> LaunchPlan:
    """The plan for one attempt. The environment has nothing of the spec, whose variables are for the ranks alone.

    Args:
        folder: The attempt's folder, which contains the document as `launch.json`.
        python: The interpreter on the nodes.
        inherited: The result of `inherited_environment`.
        search_path: Where the job's interpreter finds the worker if it is not installed (a source tree).
        uid: The Unix account as which the attempt runs; None: that of the service.
    """
    # Without it, the submitter on this host and the launcher would import modules from the attempt's folder.
    environment = {**inherited, ATTEMPT_VARIABLE: document.attempt_id, "PYTHONSAFEPATH": "1"}
    if search_path:
        environment["PYTHONPATH"] = ":".join(map(str, search_path))
    return LaunchPlan(
        tag=document.tag,
        folder=folder,
        ranks=document.nodes * document.ranks_per_node,
        nodes=document.nodes,
        environment=environment,
        script=_script(document, folder, python, environment),
        time_limit_minutes=document.time_limit_minutes,
        python=python,
        uid=uid,
    )


def _script(document: LaunchDocument, folder: Path, python: str, environment: Mapping[str, str]) -> str:
    """The launch as shell text, for display only."""
    ranks = document.nodes * document.ranks_per_node
    arguments = [f"{name}={shlex.quote(environment[name])}" for name in sorted(environment)]
    arguments.append(f"{shlex.quote(python)} -m worker.launcher {shlex.quote(str(folder))}")
    return "\n".join(
        [
            "#!/bin/sh",
            f"# {document.tag}: attempt {document.attempt} of job {document.job_id}, {ranks} rank(s)",
            f"cd {shlex.quote(str(folder))}",
            "exec env -i " + " \\\n    ".join(arguments),
            "",
        ]
    )
