"""Checks on a node, before the ranks start, that the environment's Python runs and has the worker's packages."""

import logging
import os
import socket
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.spec.environment import rank_variables
from trainyard.contract.wire.launch import LaunchDocument
from worker.environment.bounded_process import run_bounded
from worker.environment.preparation import SITE_SETUP
from worker.environment.prepare import EnvironmentRejectedError, InterruptedPreparationError
from worker.environment.rank_command import RankEnvironment
from worker.environment.requirements import (
    needed_packages,
    parse_packages,
    project_requirements,
    unmet_requirements,
)

log = logging.getLogger(__name__)

CHECK_SECONDS = 120.0
"""Maximum seconds of the check. A Python on a slow network filesystem may take a minute to start."""
CONTAINER_CHECK_SECONDS = 270.0
"""Maximum seconds in a container. With the preparation, less than the ten minutes until a silent attempt is lost."""


def check_python(
    layout: AttemptLayout,
    launch: LaunchDocument,
    environment: RankEnvironment,
    environ: Mapping[str, str],
    *,
    python: str,
    seconds: float = CHECK_SECONDS,
    interrupted: Callable[[], bool] = lambda: False,
) -> None:
    """Run the probe in the environment of the ranks. It gets no secrets.

    Args:
        python: The interpreter, for the message.

    Raises:
        EnvironmentRejectedError: The Python does not run, or lacks packages that the worker needs.
        InterruptedPreparationError: The job is requested to stop.
    """
    name = _defining_field(launch)
    needed = needed_packages(launch.spec, project_requirements())
    host = socket.gethostname()
    public = launch.spec.model_copy(update={"environment": launch.spec.environment.model_copy(update={"secrets": ()})})
    command = environment.command(
        ["-c", _probe(), *(one.name for one in needed)], {**environ, **rank_variables(public, {})}, layout.root
    )
    try:
        ended = run_bounded(
            command.argv,
            variables=command.variables,
            folder=layout.root,
            log=None,
            seconds=seconds,
            interrupted=interrupted,
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise EnvironmentRejectedError(f"{name}: {python} cannot be executed on {host}: {reason}") from None
    if ended.interrupted:
        raise InterruptedPreparationError
    packages = parse_packages(ended.tail) if ended.returncode == 0 else None
    if packages is None:
        end = "did not answer in time" if ended.timed_out else f"ended with exit code {ended.returncode}"
        raise EnvironmentRejectedError(f"{name}: {python} {end} on {host}; its output ends with:\n{ended.tail[-2000:]}")
    if lacking := unmet_requirements(packages, needed, python):
        raise EnvironmentRejectedError(f"{name}: {lacking}")
    version = ".".join(map(str, packages.python))
    log.info("the ranks run in %s (Python %s)", " ".join(command.argv[:1]), version)


def _defining_field(launch: LaunchDocument) -> str:
    """Return the field that defines the Python of the ranks, for messages."""
    fields = launch.spec.environment.code_fields
    return fields[0] if fields else SITE_SETUP


def _probe() -> str:
    """Return the text of the probe."""
    spec = find_spec("worker.environment.probe")
    assert spec is not None
    assert spec.origin is not None
    with open(os.fspath(spec.origin)) as file:
        return file.read()
