"""Prepares a node for its ranks: runs the preparation once, and reads back which variables it changed."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.launch import LaunchDocument
from worker.environment.bounded_process import Ended, run_bounded
from worker.environment.preparation import (
    MODULES,
    Result,
    Step,
    modules_files,
    preparation_text,
    read_result,
    steps,
)
from worker.environment.prepared import Prepared, changes_between, preparation_variables

log = logging.getLogger(__name__)

PREPARATION_SECONDS = 300.0
_BASH = "/bin/bash"
_MAX_RESULT = 4 * 1024 * 1024
_MAX_TAIL = 2000


class EnvironmentRejectedError(Exception):
    """The environment of the spec cannot be used on this node, for the reason in the message."""


class InterruptedPreparationError(Exception):
    """The job was requested to stop while it was prepared."""


def names_environment(launch: LaunchDocument) -> bool:
    """Return whether the ranks need another Python or environment than the service's."""
    return bool(launch.spec.environment.code_fields or launch.site_setup)


def prepare(
    layout: AttemptLayout,
    launch: LaunchDocument,
    log_path: Path,
    environ: Mapping[str, str],
    *,
    seconds: float = PREPARATION_SECONDS,
    interrupted: Callable[[], bool] = lambda: False,
) -> Prepared:
    """Run the preparation on this node.

    Args:
        log_path: The log to which its output is appended.
        environ: The launcher's environment.
        seconds: How long it may take.
        interrupted: Whether the job is requested to stop.

    Raises:
        EnvironmentRejectedError: A step failed, or took too long.
        InterruptedPreparationError: The job is requested to stop.
    """
    environment = launch.spec.environment
    before = preparation_variables(environ)
    modules_init = _modules_init(launch, before) if environment.modules else ""
    made = steps(environment, launch.site_setup, modules_init)
    log.info("preparing the environment of the ranks: %s", ", ".join(dict.fromkeys(step.field for step in made)))
    result, ended = _run(preparation_text(made), before, layout.root, log_path, seconds, interrupted)
    if ended.interrupted:
        raise InterruptedPreparationError
    if not result.complete or ended.timed_out:
        raise EnvironmentRejectedError(_describe_failure(made, result, ended, seconds))
    python = environment.python or result.python or sys.executable
    return Prepared(python, changes_between(before, result.variables))


def _modules_init(launch: LaunchDocument, environ: Mapping[str, str]) -> str:
    if launch.modules_init:
        return launch.modules_init
    file = next((path for path in modules_files(environ) if path.is_file()), None)
    if file is None:
        raise EnvironmentRejectedError(
            f"{MODULES}: {socket.gethostname()} has no file that defines the command `module`; an administrator can "
            "name one with TRAINYARD_MODULES_INIT"
        )
    return str(file)


def _run(
    text: str,
    variables: Mapping[str, str],
    folder: Path,
    log_path: Path,
    seconds: float,
    interrupted: Callable[[], bool],
) -> tuple[Result, Ended]:
    """Run the text. It is passed as a file in memory: no other program sees it, and its length has no limit."""
    with (
        os.fdopen(os.memfd_create("preparation"), "w+b") as script,
        os.fdopen(os.memfd_create("environment"), "w+b") as result,
    ):
        script.write(text.encode())
        script.flush()
        script.seek(0)
        ended = run_bounded(
            [_BASH, "--noprofile", "--norc", f"/dev/fd/{script.fileno()}", str(result.fileno())],
            variables=variables,
            folder=folder,
            log=log_path,
            seconds=seconds,
            pass_fds=(script.fileno(), result.fileno()),
            interrupted=interrupted,
        )
        result.seek(0)
        return read_result(result.read(_MAX_RESULT)), ended


def _describe_failure(made: list[Step], result: Result, ended: Ended, seconds: float) -> str:
    """Return which field failed, and with which output."""
    last = made[result.step] if result.step < len(made) else Step("environment", "reading the variables", "")
    if ended.timed_out:
        verdict = f"did not end within {seconds:.0f} seconds"
    elif ended.returncode == 0:
        verdict = "ended the shell, so that the variables of the ranks are unknown"
    elif ended.returncode < 0:
        verdict = f"was ended by signal {-ended.returncode}"
    else:
        verdict = f"failed with exit code {ended.returncode}"
    output = f"; its output ends with:\n{ended.tail[-_MAX_TAIL:]}" if ended.tail else ""
    description = last.description if len(last.description) <= 200 else last.description[:200] + "...`"
    return f"{last.field}: {description} {verdict} on {socket.gethostname()}{output}"
