"""All SQL about the cluster's snapshot and the maintenance mode."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.db.models import Cluster, MaintenanceMode
from trainyard.contract.wire.cluster import ClusterResource, ClusterSnapshot, MaintenanceResource


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


class MaintenanceRepository:
    """The maintenance mode within one session."""

    def __init__(self, session: Session, instance: str):
        self._session = session
        self._instance = instance

    def resource(self) -> MaintenanceResource:
        """Return whether it is on, since when and by whom."""
        row = self._session.get(MaintenanceMode, self._instance)
        if row is None:
            return MaintenanceResource(active=False)
        return MaintenanceResource(active=True, since=row.since, started_by=row.started_by, message=row.message)

    def start(self, database: Database, message: str, by: str, now: datetime) -> None:
        """Turn it on, or replace its message; time and user remain those of the start."""
        row = {"instance": self._instance, "since": now, "started_by": by, "message": message}
        statement = database.insert(MaintenanceMode).values(row)
        key = [MaintenanceMode.instance]
        self._session.execute(statement.on_conflict_do_update(index_elements=key, set_={"message": message}))

    def end(self) -> None:
        """Turn it off."""
        self._session.execute(sa.delete(MaintenanceMode).where(MaintenanceMode.instance == self._instance))
