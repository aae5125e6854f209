"""Getting into a running job: where its ranks run, and the command that starts a program beside them. It changes
nothing."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from service.auth.principals import Principal
from service.auth.unix_accounts import AccountLookup
from service.core.errors import ConflictError, InvalidRequestError
from service.core.untrusted_files import UntrustedFiles, files_of_attempt
from service.db.engine import Database
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.jobs.service import require_change
from service.scheduler.launch_document import ranks_per_node, source_tree
from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.spec.stored_spec import parse_stored_spec
from trainyard.contract.wire.job_access import AccessRequest, AccessResource, NodeRanks

_PROGRAM = "worker.environment.companion"
_WITH_PROCESSES = frozenset({"running", "pausing", "cancelling", "lost"})
_MAX_FILE = 64 * 1024
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
"""The name of a node in an option of a command."""


@dataclass(frozen=True)
class _Running:
    """A job whose ranks may run."""

    job: Job
    attempt: Attempt
    nodes: int
    ranks: int
    """Processes of ranks, on all nodes."""


def read_access(
    database: Database,
    principal: Principal,
    job_id: str,
    request: AccessRequest,
    *,
    runs: Path,
    python: str,
    accounts: AccountLookup,
    now: datetime,
) -> AccessResource:
    """Return the data with which a client starts a program beside the ranks of a job.

    Args:
        python: The interpreter of the launchers on the nodes.

    Raises:
        NotFoundError: the job does not exist.
        PermissionDeniedError: the caller may not change the job.
        ConflictError: the job is not running, or its ranks have not started.
        InvalidRequestError: the job has no such rank.
    """
    running = _load(database, principal, job_id, now)
    if request.rank is not None and request.rank >= running.ranks:
        message = f"names rank {request.rank}, but the ranks are 0 to {running.ranks - 1}"
        raise InvalidRequestError(message, param="rank", code="unknown_rank")
    job, attempt = running.job, running.attempt
    folder = RunLayout(runs / job.id).attempt(attempt.folder_name)
    files = files_of_attempt(folder.root, job.unix_uid)
    nodes = [_read_placement(files, folder, node, running.ranks) for node in range(running.nodes)]
    chosen = [node for node in nodes if node and (request.rank is None or request.rank in node.ranks)]
    if not chosen or (request.rank is None and len(chosen) < running.nodes):
        raise ConflictError(
            f"the ranks of job {job.id} have not started yet; its launchers' logs show what they do: trainyard logs "
            f"{job.id} --rank launch",
            code="ranks_not_started",
        )
    uid = os.getuid() if job.unix_uid is None else job.unix_uid
    account = accounts.by_uid(uid, frozenset())
    return AccessResource(
        job_id=job.id,
        attempt=attempt.number,
        scheduler=attempt.scheduler,
        scheduler_id=attempt.scheduler_id,
        account=account.name if account else str(uid),
        uid=uid,
        folder=str(folder.root),
        command=node_command(python, source_tree(), folder.root),
        nodes=chosen,
    )


def node_command(python: str, search_path: Sequence[Path], folder: Path) -> list[str]:
    """Return the program that enters an attempt on a node, without the command to run there."""
    # The scheduler may pass on the environment of the caller's shell.
    imports = [f"PYTHONPATH={os.pathsep.join(map(str, search_path))}"] if search_path else ["-u", "PYTHONPATH"]
    return ["/usr/bin/env", "-u", "PYTHONHOME", *imports, python, "-P", "-m", _PROGRAM, str(folder)]


def _load(database: Database, principal: Principal, job_id: str, now: datetime) -> _Running:
    with database.read() as session:
        jobs = JobRepository(session, now)
        job = jobs.get(job_id)
        require_change(principal, job)
        attempt = jobs.get_attempt(job.attempt_id) if job.attempt_id else None
    claimed = attempt is not None and attempt.claimed_at is not None and attempt.ended_at is None
    if attempt is None or not claimed or job.status not in _WITH_PROCESSES:
        raise ConflictError(
            f"job {job.id} has status {job.status}: a shell or a command needs a job that is running",
            code="job_not_running",
        )
    spec = parse_stored_spec(job.spec)
    per_node = ranks_per_node(spec)
    nodes = spec.gpus // per_node
    return _Running(job, attempt, nodes, nodes * (1 if spec.has_one_process_per_node else per_node))


def _read_placement(files: UntrustedFiles, folder: AttemptLayout, node: int, ranks: int) -> NodeRanks | None:
    """Return the placement that a node recorded. None: it is missing or cannot be right; the job can write there."""
    try:
        document = json.loads(files.read(folder.placement(node), 0, _MAX_FILE))
        name, listed = document["node"], document["ranks"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    valid = isinstance(listed, list) and all(type(rank) is int and 0 <= rank < ranks for rank in listed)
    return NodeRanks(name=name, ranks=listed) if valid and isinstance(name, str) and _NODE.fullmatch(name) else None
