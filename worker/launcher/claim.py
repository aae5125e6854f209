"""Claims the attempt: with the service, or by an exclusive file where the service cannot be reached."""

import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trainyard.contract.layout import AttemptLayout, RunLayout, create_exclusive
from trainyard.contract.validation_messages import NODE_LIST_PATTERN
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import Claim
from worker.core.fence import RunFence
from worker.reporting.service_client import RefusedError, RejectedError, ServiceClient, ServiceError, UnavailableError

log = logging.getLogger(__name__)

_WAIT_SECONDS = 5.0
_SECRETS_WAIT_SECONDS = 120.0
"""How long the claim waits for the service if the ranks need secrets, which only the claim's response contains."""
_POLL_SECONDS = 0.5
_FILE_SECONDS = 30.0
"""How long a network filesystem may take to show node 0's claim to the other nodes."""


@dataclass(frozen=True)
class ClaimResult:
    """A successful claim."""

    execution: int
    claim: Claim
    known_to_service: bool
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The values of the spec's secrets that the service has."""


def claim_attempt(
    layout: AttemptLayout,
    launch: LaunchDocument,
    client: ServiceClient,
) -> ClaimResult | None:
    """Claim the attempt; return None if another run has claimed it, and then change nothing."""
    claim = Claim(
        nonce=secrets.token_hex(16),
        host=socket.gethostname(),
        pid=os.getpid(),
        scheduler_id=os.environ.get("SLURM_JOB_ID"),
        nodes=_nodes(os.environ),
    )
    try:
        wait = _SECRETS_WAIT_SECONDS if launch.spec.environment.secrets else _WAIT_SECONDS
        response = client.post_until(time.monotonic() + wait, "claim", claim.model_dump_json())
    except UnavailableError as error:
        log.warning("service unreachable, claiming the attempt by file: %s", error)
        return _by_file(layout, launch, claim)
    except (RefusedError, RejectedError) as error:
        log.warning("the claim of attempt %s was refused: %s", launch.attempt_id, error)
        return None
    if not _create_claim_file(layout, claim):
        log.warning("attempt %s was claimed by another run while the service was unreachable", launch.attempt_id)
        return None
    execution = int(response.get("execution", launch.execution))
    return ClaimResult(execution, claim, known_to_service=True, secrets=response.get("secrets", {}))


def repeat_claim(
    layout: AttemptLayout, launch: LaunchDocument, client: ServiceClient, *, now: Callable[[], float] = time.monotonic
) -> Mapping[str, str]:
    """On the other nodes, repeat node 0's claim, which is granted again; return the secrets in the response.

    Raises:
        ServiceError: The service cannot be reached, refuses the claim, or no longer has the secrets.
        OSError: Node 0's claim cannot be read.
    """
    if not launch.spec.environment.secrets:
        return {}
    deadline = now() + _FILE_SECONDS
    while not layout.claim.exists() and now() < deadline:
        # Listing the folder makes a network filesystem refresh its cache.
        os.listdir(layout.root)
        time.sleep(_POLL_SECONDS)
    claim = Claim.model_validate_json(layout.claim.read_bytes())
    response = client.post_until(now() + _SECRETS_WAIT_SECONDS, "claim", claim.model_dump_json())
    claimed = ClaimResult(launch.execution, claim, known_to_service=True, secrets=response.get("secrets", {}))
    if reason := missing_secrets(launch, claimed):
        raise ServiceError(reason)
    return claimed.secrets


def missing_secrets(launch: LaunchDocument, claimed: ClaimResult) -> str | None:
    """Return why the ranks cannot get the spec's secrets; None if they can."""
    missing = [name for name in launch.spec.environment.secrets if name not in claimed.secrets]
    if not missing:
        return None
    if not claimed.known_to_service:
        return "environment.secrets: the service, which has the secrets, cannot be reached"
    names = ", ".join(missing)
    return (
        f"environment.secrets: {names} was deleted or cannot be decrypted; store it again with "
        f"`trainyard secrets set {missing[0]}` and retry the job"
    )


def _nodes(environ: Mapping[str, str]) -> str | None:
    """Return the job's node list from Slurm, or this node's name if the list is too long to show."""
    names = (environ.get("SLURM_JOB_NODELIST", ""), environ.get("SLURMD_NODENAME", ""))
    return next((name for name in names if re.match(NODE_LIST_PATTERN, name)), None)


def _by_file(layout: AttemptLayout, launch: LaunchDocument, claim: Claim) -> ClaimResult | None:
    current = RunFence(RunLayout(layout.root.parent.parent), launch.attempt_id).current()
    if current is None or current.attempt_id != launch.attempt_id:
        log.warning("attempt %s is not the job's current one", launch.attempt_id)
        return None
    if not _create_claim_file(layout, claim):
        log.warning("attempt %s has been claimed by another run", launch.attempt_id)
        return None
    return ClaimResult(launch.execution, claim, known_to_service=False)


def _create_claim_file(layout: AttemptLayout, claim: Claim) -> bool:
    return create_exclusive(layout.claim, claim.model_dump_json())
