"""From a launch document to the launch plan that is submitted. Pure functions."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from service.as_owner.accounts import Account
from service.scheduler.base import LaunchPlan
from trainyard.contract.spec.environment import ATTEMPT_VARIABLE, is_set_for_ranks, matches_any
from trainyard.contract.wire.launch import LaunchDocument

_NEEDED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_*", "TZ")
"""The variables that every program needs. Not VIRTUAL_ENV: the interpreter of the nodes is named by its path and may be
another."""
_OF_THE_ACCOUNT = ("TMPDIR", "VIRTUAL_ENV")
"""The variables that belong to the account of the service, and not to the owner of a job."""


def inherited_environment(
    environ: Mapping[str, str],
    *,
    machine: Sequence[str] = (),
    listed: Sequence[str] = (),
    account: Account | None = None,
) -> dict[str, str]:
    """The part of the service's environment that a job inherits.

    Args:
        machine: `Backend.inherited`.
        listed: Names and prefixes of TRAINYARD_JOB_ENVIRONMENT.
        account: The Unix account as which the job runs; None: the service's account.
    """
    common = (*_NEEDED, *(name for name in machine if account is None or name not in _OF_THE_ACCOUNT))
    inherited = {
        name: value
        for name, value in environ.items()
        if matches_any(name, common) or (matches_any(name, listed) and not is_set_for_ranks(name))
    }
    return inherited | (account.environment if account else {})


def plan_launch(
    document: LaunchDocument,
    *,
    folder: Path,
    python: str = sys.executable,
    inherited: Mapping[str, str],
    search_path: Sequence[Path] = (),
    uid: int | None = None,
) -> LaunchPlan:
    """The plan for one attempt. The environment has none of the spec's variables, which are for the ranks alone.

    Args:
        folder: The attempt's folder, which contains the document as `launch.json`.
        python: The interpreter on the nodes.
        inherited: The result of `inherited_environment`.
        search_path: Where the job's interpreter finds the worker if it is not installed (a source tree).
        uid: The Unix account as which the attempt runs; None: the service's account.
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
