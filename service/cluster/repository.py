"""All SQL about the cluster's snapshot, the faults of nodes and the maintenance mode."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.cluster.exclusions import WINDOW, Exclusions, exclusions
from service.core.errors import NotFoundError
from service.db.engine import Database
from service.db.models import Cluster, MaintenanceMode, NodeFault
from service.db.repository import Repository
from trainyard.contract.wire.cluster import ClusterResource, ClusterSnapshot, MaintenanceResource

_MAX_FAULT_AGE = timedelta(days=1)


class ClusterRepository(Repository):
    """Snapshots within a session."""

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
        """Return the newest snapshot and its age; an empty snapshot before the first."""
        row = self._session.get(Cluster, backend)
        if row is None:
            return ClusterResource(backend=backend)
        age = None if row.taken_at is None else (now - row.taken_at).total_seconds()
        return ClusterResource.model_validate(
            {**row.snapshot, "backend": backend, "taken_at": row.taken_at, "age_seconds": age, "error": row.error}
        )

    def members(self, backend: str) -> Mapping[str, Sequence[str]]:
        """Return the nodes of each partition, as of the newest snapshot."""
        row = self._session.get(Cluster, backend)
        nodes: Mapping[str, Sequence[str]] = row.snapshot.get("members", {}) if row else {}
        return nodes


class NodeFaultRepository:
    """The faults of nodes over all jobs, within a session."""

    def __init__(self, session: Session, now: datetime):
        self._session = session
        self._now = now

    def add(self, fault: NodeFault) -> None:
        """Store a fault; delete faults that are older than a day."""
        self._session.execute(sa.delete(NodeFault).where(NodeFault.created_at < self._now - _MAX_FAULT_AGE))
        self._session.add(fault)

    def exclusions(self, backend: str) -> Exclusions:
        """Return the nodes that all jobs avoid now."""
        recent = sa.select(NodeFault).where(NodeFault.created_at > self._now - 2 * WINDOW)
        faults = self._session.scalars(recent.order_by(NodeFault.created_at, NodeFault.attempt_id)).all()
        members = ClusterRepository(self._session).members(backend) if faults else {}
        return exclusions(faults, members, self._now)

    def include(self, node: str) -> None:
        """Let jobs use a node again: its faults are forgotten. Raises NotFoundError: the node has none."""
        faults = self._session.scalars(sa.select(NodeFault).where(NodeFault.node == node)).all()
        if not faults:
            raise NotFoundError(f"no attempt failed on a node {node!r} today", code="node_not_found", param="node")
        for fault in faults:
            self._session.delete(fault)


class MaintenanceRepository:
    """The maintenance mode within a session."""

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
        """Turn it on, or replace its message; time and user of the start remain."""
        row = {"instance": self._instance, "since": now, "started_by": by, "message": message}
        statement = database.insert(MaintenanceMode).values(row)
        key = [MaintenanceMode.instance]
        self._session.execute(statement.on_conflict_do_update(index_elements=key, set_={"message": message}))

    def end(self) -> None:
        """Turn it off."""
        self._session.execute(sa.delete(MaintenanceMode).where(MaintenanceMode.instance == self._instance))
