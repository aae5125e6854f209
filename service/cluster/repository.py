"""All SQL about the cluster's snapshot."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.db.models import Cluster
from trainyard.contract.wire.cluster import ClusterResource, ClusterSnapshot


class ClusterRepository:
    """Snapshots within one session."""

    def __init__(self, session: Session):
        self._session = session

    def polled_at(self, backend: str) -> datetime | None:
        """Return the time of the last query of the scheduler by any service."""
        return self._session.scalar(sa.select(Cluster.polled_at).where(Cluster.backend == backend))

    def store(self, database: Database, backend: str, now: datetime, result: ClusterSnapshot | str) -> None:
        """Store a snapshot, or an error; after an error the newest snapshot remains."""
        if isinstance(result, str):
            row: dict[str, Any] = {"polled_at": now, "error": result}
            first = row | {"backend": backend, "snapshot": {}}
        else:
            row = {"polled_at": now, "taken_at": now, "snapshot": result.model_dump(mode="json"), "error": None}
            first = row | {"backend": backend}
        statement = database.insert(Cluster).values(first)
        self._session.execute(statement.on_conflict_do_update(index_elements=[Cluster.backend], set_=row))

    def resource(self, backend: str, now: datetime) -> ClusterResource:
        """Return the newest snapshot and its age; an empty one before the first."""
        row = self._session.get(Cluster, backend)
        if row is None:
            return ClusterResource(backend=backend)
        age = None if row.taken_at is None else (now - row.taken_at).total_seconds()
        return ClusterResource.model_validate(
            {**row.snapshot, "backend": backend, "taken_at": row.taken_at, "age_seconds": age, "error": row.error}
        )
