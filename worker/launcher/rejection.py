"""Checks and preparation of a node before torchrun starts. A failed check ends the attempt before its ranks start."""

import logging
import os
import socket
from collections.abc import Callable

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import FinishRecord
from worker.launcher import exit_record, torchrun
from worker.launcher.claim import Claimed, missing_secrets
from worker.launcher.code import await_work, prepare_code
from worker.launcher.environment import prepare_environment
from worker.launcher.node_check import node_problem
from worker.launcher.nodes import Node

log = logging.getLogger(__name__)


def reject_claimed(
    layout: AttemptLayout, launch: LaunchDocument, node: Node, claimed: Claimed, interrupted: Callable[[], bool]
) -> FinishRecord | None:
    """On node 0, return the exit record if the claimed attempt cannot run; it is already written."""
    if reason := missing_secrets(launch, claimed):
        log.error("%s", reason)
        write = exit_record.rejected if claimed.known_to_service else exit_record.not_started
        return write(layout, claimed.execution, reason, type_="SecretsError")
    return prepare_code(layout, launch, claimed.execution) or reject_node(
        layout, launch, node, claimed.execution, interrupted
    )


def reject_node(
    layout: AttemptLayout, launch: LaunchDocument, node: Node, execution: int, interrupted: Callable[[], bool]
) -> FinishRecord | None:
    """On every node, return the exit record if this node cannot run the spec; it is already written."""
    if reason := torchrun.unsupported(launch):
        log.error("%s", reason)
        return exit_record.rejected(layout, execution, reason)
    # The local backend has no other machine.
    name = os.environ.get("SLURMD_NODENAME")
    if name and (problem := node_problem(launch, os.environ)) is not None:
        log.error("%s", problem)
        return exit_record.node_not_ready(layout, execution, name, problem)
    if launch.spec.task_kind.runs_program and not await_work(layout):
        message = f"did not start: {socket.gethostname()} does not see {layout.work} as node 0 does"
        log.error("%s", message)
        return exit_record.not_started(layout, execution, message, type_="StaleFolder")
    return prepare_environment(layout, launch, node, execution, interrupted)
