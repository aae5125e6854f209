"""The lineage of a job: its origins, and the jobs and model versions made of it."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from service.db.engine import Database
from service.db.models import (
    DataFile,
    FineTune,
    Job,
    JobDependency,
    JobLabel,
    JobValue,
    ModelVersion,
    RegisteredModel,
    ValueKey,
)
from service.db.repository import Repository
from service.jobs.dependencies import DependencyRepository
from service.jobs.repository import JobRepository
from trainyard.contract.wire.lineage import (
    FORKED_FROM,
    JobLineage,
    MadeVersion,
    RelatedDependency,
    RelatedJob,
    UsedData,
)

MAX_ANCESTORS = 20
MAX_FORKS = 200
MAX_VERSIONS = 200
_MAX_DATA = 64
_MAX_DEPTH = 8


class LineageRepository(Repository):
    """All SQL about lineage, within a session. A restricted user sees only jobs, models and files of their own."""

    def job(self, job_id: str) -> Job | None:
        return self._session.scalar(sa.select(Job).where(Job.id == job_id, Job.deletion_requested_at.is_(None)))

    def forks(self, job_id: str, limit: int) -> Sequence[Job]:
        """Return a job's forks, oldest first: their `resume_from` begins with its id, or a label names it."""
        key = sa.select(ValueKey.pk).where(ValueKey.kind == "spec", ValueKey.name == "resume_from").scalar_subquery()
        # `;` follows `:` in every collation by bytes, which this column has.
        of_job = sa.and_(JobValue.key_pk == key, JobValue.text >= f"{job_id}:", JobValue.text < f"{job_id};")
        resumed = sa.select(JobValue.job_pk).where(of_job)
        copied = sa.select(JobLabel.job_id).where(JobLabel.key == FORKED_FROM, JobLabel.value == job_id)
        query = sa.select(Job).where(sa.or_(Job.pk.in_(resumed), Job.id.in_(copied)))
        query = query.where(Job.deletion_requested_at.is_(None)).order_by(Job.id).limit(limit)
        return self._session.scalars(query).all()

    def versions(self, job_id: str, step: int | None = None) -> list[MadeVersion]:
        """Return the versions of registered models made of a job, and of its step if a step is given."""
        query = sa.select(ModelVersion, RegisteredModel.name).join(
            RegisteredModel, RegisteredModel.name == ModelVersion.model
        )
        query = query.where(ModelVersion.job_id == job_id)
        if step is not None:
            query = query.where(ModelVersion.step == step)
        rows = self._session.execute(query.order_by(ModelVersion.model, ModelVersion.number).limit(MAX_VERSIONS))
        return [MadeVersion(model=name, version=row.number, step=row.step) for row, name in rows]

    def file_names(self, ids: Sequence[str]) -> dict[str, str]:
        rows = self._session.execute(sa.select(DataFile.id, DataFile.name).where(DataFile.id.in_(ids)))
        return {file_id: name for file_id, name in rows}

    def fine_tuned(self, job_id: str) -> str | None:
        """Return the base model that a client of OpenAI's API named."""
        return self._session.scalar(sa.select(FineTune.model).where(FineTune.job_id == job_id))


def read_lineage(database: Database, job_id: str, now: datetime) -> JobLineage:
    """Return the lineage of a job. Raises NotFoundError."""
    with database.read() as session:
        job = JobRepository(session, now).get(job_id)
        lineage = LineageRepository(session)
        forks = lineage.forks(job.id, MAX_FORKS + 1)
        waits = DependencyRepository(session)
        dependents = waits.dependents_of(job, MAX_FORKS + 1)
        data = used_data(job.spec)
        names = lineage.file_names([one.file_id for one in data if one.file_id])
        origin = job.origin or {}
        return JobLineage(
            job_id=job.id,
            ancestors=_ancestors(lineage, job),
            forks=[_related(fork, _origin_in(fork, job.id), fork.id) for fork in forks[:MAX_FORKS]],
            has_more_forks=len(forks) > MAX_FORKS,
            prerequisites=[_dependency(row, row.prerequisite_id, other) for row, other in waits.prerequisites_of(job)],
            dependents=[_dependency(row, other.id, other) for row, other in dependents[:MAX_FORKS]],
            has_more_dependents=len(dependents) > MAX_FORKS,
            data=[one.model_copy(update={"file_name": names.get(one.file_id or "")}) for one in data],
            base=lineage.fine_tuned(job.id) or (job.spec.get("model") or {}).get("path"),
            base_versions=lineage.versions(origin["job_id"], origin["step"]) if origin else [],
            sweep_id=job.sweep_id,
            versions=lineage.versions(job.id),
        )


def _ancestors(lineage: LineageRepository, job: Job) -> list[RelatedJob]:
    related: list[RelatedJob] = []
    visited = {job.id}
    later: Job | None = job
    while later is not None and (origin := _source(later)) and len(related) < MAX_ANCESTORS:
        if origin["job_id"] in visited:
            break
        visited.add(origin["job_id"])
        later = lineage.job(origin["job_id"])
        related.append(_related(later, origin, origin["job_id"]))
    return related


def _source(job: Job) -> Mapping[str, Any]:
    """Return the job whose checkpoint a job starts from, or else whose spec it copied; empty without either."""
    copied = job.labels.get(FORKED_FROM)
    return job.origin or ({"job_id": copied} if copied else {})


def _origin_in(fork: Job, job_id: str) -> Mapping[str, Any]:
    """Return the checkpoint of a job from which a fork of it starts; empty if the fork took only the spec."""
    return fork.origin if fork.origin and fork.origin["job_id"] == job_id else {}


def _dependency(row: JobDependency, job_id: str, job: Job | None) -> RelatedDependency:
    """Return the job at either end of a dependency."""
    known = {"name": job.name, "status": job.status} if job else {}
    return RelatedDependency(job_id=job_id, any_end=row.any_end, **known)


def _related(job: Job | None, origin: Mapping[str, Any], job_id: str) -> RelatedJob:
    """Return a job of a fork, whose `origin` has the step."""
    return RelatedJob(
        job_id=job_id,
        name=job.name if job else None,
        status=job.status if job else None,
        step=origin.get("step"),
        continues=origin.get("continues", False),
    )


def used_data(spec: Mapping[str, Any]) -> list[UsedData]:
    """Return the data that a spec names, with the parts of mixtures. Pure."""
    return list(_sections(spec.get("data"), "data", 0))[:_MAX_DATA]


def _sections(node: Any, path: str, depth: int) -> Iterator[UsedData]:
    if isinstance(node, list) and depth < _MAX_DEPTH:
        for number, part in enumerate(node):
            yield from _sections(part, f"{path}.{number}", depth + 1)
    if not isinstance(node, Mapping) or depth >= _MAX_DEPTH:
        return
    source = str(node.get("source") or ("uploaded" if "id" in node else ""))
    for name, digest in (("id", "digest"), ("eval_id", "eval_digest")):
        file_id = node.get(name)
        if isinstance(file_id, str) and file_id:
            yield UsedData(
                field=f"{path}.{name}", source=source, text=file_id, file_id=file_id, digest=node.get(digest)
            )
    for name in ("name",) if source == "builtin" else ("path", "eval_path"):
        paths = node.get(name)
        for value in paths if isinstance(paths, list) else [paths]:
            if isinstance(value, str) and value:
                yield UsedData(field=f"{path}.{name}", source=source, text=value)
    for name, value in node.items():
        if isinstance(value, Mapping | list):
            yield from _sections(value, f"{path}.{name}", depth + 1)
