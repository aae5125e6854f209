"""Prepares the environment of the ranks on each node before torchrun starts, or ends the attempt if that fails."""

import contextlib
import logging
import os
from dataclasses import replace

from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import ExitReason, FinishRecord
from worker.core.disk_space import DISK_ERRORS
from worker.environment.check import CHECK_SECONDS, CONTAINER_CHECK_SECONDS, check_python
from worker.environment.containers.plan import write_plan
from worker.environment.containers.rank_process import PYTHON
from worker.environment.packages import provide_helper, provide_hook, provide_worker
from worker.environment.prepare import (
    PREPARATION_SECONDS,
    EnvironmentRejectedError,
    InterruptedPreparationError,
    names_environment,
    prepare,
)
from worker.environment.prepared import write_prepared
from worker.environment.select import select_environment
from worker.launcher.exit_record import not_started, rejected
from worker.launcher.nodes import AttemptContext

log = logging.getLogger(__name__)

_INTERRUPTED = "the job was requested to stop while the environment of its ranks was prepared"


def preparation_seconds(launch: LaunchDocument) -> float:
    """Return how long node 0 may prepare the environment before the other nodes learn that the attempt runs."""
    return PREPARATION_SECONDS + _check_seconds(launch) if names_environment(launch) else 0.0


def _check_seconds(launch: LaunchDocument) -> float:
    """Return how long the check of the ranks' Python may take. The first container of a node loads its image."""
    return CHECK_SECONDS if launch.spec.environment.container is None else CONTAINER_CHECK_SECONDS


def prepare_environment(context: AttemptContext, execution: int) -> FinishRecord | None:
    """Prepare this node for its ranks, and check that they can start. Without an environment, do nothing.

    Returns:
        The exit record if the ranks cannot start; it is already written.
    """
    layout, launch = context.layout, context.launch
    if context.node.is_first and launch.spec.task_kind.runs_program:
        # The hook records the exception that ends the program. Without it, the exception is read from the log.
        with contextlib.suppress(OSError):
            provide_hook(layout.packages)
    if not names_environment(launch):
        return None
    try:
        _prepare(context)
    except EnvironmentRejectedError as error:
        log.error("%s", error)
        return rejected(layout, execution, str(error), type_="EnvironmentRejected")
    except InterruptedPreparationError:
        log.warning("%s", _INTERRUPTED)
        return not_started(layout, execution, _INTERRUPTED, type_="Interrupted", reason="preempted")
    except OSError as error:
        log.exception("the environment cannot be prepared")
        reason: ExitReason = "disk_full" if error.errno in DISK_ERRORS else "error"
        message = f"the environment of the ranks cannot be prepared: {error}"
        return not_started(layout, execution, message, type_=type(error).__name__, reason=reason)
    return None


def _prepare(context: AttemptContext) -> None:
    layout, launch, node, interrupted = context.layout, context.launch, context.node, context.interrupted
    in_container = launch.spec.environment.container is not None
    if node.is_first and launch.spec.task_kind.runs_program:
        provide_helper(layout.packages)
    elif node.is_first and not in_container:
        provide_worker(layout.packages)
    prepared = prepare(layout, launch, layout.node_log(node.index), os.environ, interrupted=interrupted)
    prepared = replace(prepared, search_path=(str(layout.packages),))
    if in_container:
        plan = write_plan(layout, launch, node.index, prepared.changes.assigned, os.environ)
        prepared = replace(prepared, interpreter=PYTHON, container=str(plan))
    check_python(
        layout,
        launch,
        select_environment(launch.spec, prepared, {}),
        os.environ,
        python=prepared.interpreter,
        seconds=_check_seconds(launch),
        interrupted=interrupted,
    )
    write_prepared(layout.rank_environment(node.index), prepared)
