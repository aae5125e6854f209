"""Claims the attempt: with the service, or by an exclusive file where the service cannot be reached."""

import json
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainyard.contract.layout import AttemptLayout, RunLayout, create_exclusive
from trainyard.contract.validation_messages import NODE_LIST_PATTERN
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import Claim
from worker.reporting.service_client import RefusedError, RejectedError, ServiceClient, UnavailableError

log = logging.getLogger(__name__)

_WAIT_SECONDS = 5.0


@dataclass(frozen=True)
class Claimed:
    """A successful claim."""

    execution: int
    claim: Claim
    known_to_service: bool


def claim_attempt(
    layout: AttemptLayout,
    launch: LaunchDocument,
    client: ServiceClient,
    *,
    now: Callable[[], float] = time.monotonic,
) -> Claimed | None:
    """Claim the attempt; return None if another run has claimed it, and then change nothing."""
    claim = Claim(
        nonce=secrets.token_hex(16),
        host=socket.gethostname(),
        pid=os.getpid(),
        scheduler_id=os.environ.get("SLURM_JOB_ID"),
        nodes=_nodes(os.environ),
    )
    try:
        answer = client.post_until(now() + _WAIT_SECONDS, "claim", claim.model_dump_json())
    except UnavailableError as error:
        log.warning("service unreachable, claiming the attempt by file: %s", error)
        return _by_file(layout, launch, claim)
    except (RefusedError, RejectedError) as error:
        log.warning("the claim of attempt %s was refused: %s", launch.attempt_id, error)
        return None
    if not _create_claim_file(layout, claim):
        log.warning("attempt %s was claimed by another run while the service was unreachable", launch.attempt_id)
        return None
    return Claimed(int(answer.get("execution", launch.execution)), claim, known_to_service=True)


def _nodes(environ: Mapping[str, str]) -> str | None:
    """Return the job's node list from Slurm, or this node's name if the list is too long to show."""
    names = (environ.get("SLURM_JOB_NODELIST", ""), environ.get("SLURMD_NODENAME", ""))
    return next((name for name in names if re.match(NODE_LIST_PATTERN, name)), None)


def _by_file(layout: AttemptLayout, launch: LaunchDocument, claim: Claim) -> Claimed | None:
    if not _is_current(RunLayout(layout.root.parent.parent), launch):
        log.warning("attempt %s is not the job's current one", launch.attempt_id)
        return None
    if not _create_claim_file(layout, claim):
        log.warning("attempt %s has been claimed by another run", launch.attempt_id)
        return None
    return Claimed(launch.execution, claim, known_to_service=False)


def _create_claim_file(layout: AttemptLayout, claim: Claim) -> bool:
    return create_exclusive(layout.claim, claim.model_dump_json())


def _is_current(run: RunLayout, launch: LaunchDocument) -> bool:
    try:
        document = json.loads(run.current.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("attempt_id") == launch.attempt_id
