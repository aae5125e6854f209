"""Acceptance of many specs: the first in this process, the rest of an expensive batch in another process."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from time import thread_time
from typing import Any

from service.cluster.repository import ClusterRepository
from service.core.errors import InvalidSpecError, ServiceError
from service.core.process_pool import ProcessPool
from service.db.engine import Database
from service.db.visibility import readable_jobs
from service.specs.acceptance import AcceptedSpec, RejectedSpec, SpecAcceptance
from trainyard.contract.problems import MAX_PROBLEMS, Problem
from trainyard.contract.wire.cluster import ClusterResource

_MAX_SECONDS = 0.25
"""Processor time in the service's own process per batch. A single spec takes at most about as long again."""


@dataclass(frozen=True)
class BatchAcceptance:
    """Accepts the members of sweeps."""

    database: Database
    acceptance: SpecAcceptance
    pool: ProcessPool

    def accept_all(
        self, owner: str, documents: Sequence[dict[str, Any]], now: datetime
    ) -> Iterator[AcceptedSpec | RejectedSpec]:
        """Yield the result of each document in order; after many problems, the rest may be missing.

        Raises:
            InvalidRequestError: The batch takes too long.
            TooManyRequestsError: Another expensive batch of this user is being checked.
        """
        with self.database.read() as session:
            cluster = ClusterRepository(session).resource(self.acceptance.settings.backend, now)
            readable = readable_jobs(session, documents)
        started = thread_time()
        for number, document in enumerate(documents):
            if thread_time() - started > _MAX_SECONDS:
                rest = replace(self.acceptance, database=None)
                yield from self.pool.run(owner, accept_rest, rest, cluster, documents[number:], owner, readable)
                return
            yield _accept(self.acceptance, document, cluster, owner, readable)


def accept_rest(
    acceptance: SpecAcceptance,
    cluster: ClusterResource,
    documents: Sequence[dict[str, Any]],
    owner: str,
    readable: tuple[str, ...] | None = None,
) -> list[AcceptedSpec | RejectedSpec]:
    """Return the result of each document, up to `MAX_PROBLEMS` problems. Runs in a process of the pool."""
    results: list[AcceptedSpec | RejectedSpec] = []
    problems = 0
    for document in documents:
        results.append(_accept(acceptance, document, cluster, owner, readable))
        problems += len(results[-1].problems) if isinstance(results[-1], RejectedSpec) else 0
        if problems >= MAX_PROBLEMS:
            break
    return results


def _accept(
    acceptance: SpecAcceptance,
    document: dict[str, Any],
    cluster: ClusterResource,
    owner: str,
    readable: tuple[str, ...] | None,
) -> AcceptedSpec | RejectedSpec:
    try:
        return acceptance.accept_for(document, cluster, owner, readable)
    except InvalidSpecError as error:
        return RejectedSpec(tuple(error.problems))
    except ServiceError as error:
        return RejectedSpec((Problem(param=error.param or "", message=error.message),))
