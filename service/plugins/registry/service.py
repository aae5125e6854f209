"""The requests of users about registered models: list, register a version, move aliases, delete."""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from service.auth.principals import Principal
from service.checkpoints.ranking import best_criterion, best_step
from service.core.errors import ConflictError, InvalidRequestError, NotFoundError, PermissionDeniedError
from service.core.resources import resource_of
from service.core.untrusted_files import UntrustedFiles
from service.db.engine import Database
from service.db.models import Checkpoint, Job, ModelVersion, RegisteredModel
from service.db.paging import PageRequest
from service.jobs.repository import JobRepository, checkpoint_at
from service.jobs.schemas import shown_metrics
from service.jobs.service import require_change
from service.plugins.registry.repository import RegistryRepository
from trainyard.contract.kinds.tasks import LOOP_TASKS
from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.export import needs_classes
from trainyard.contract.wire.exported import EXPORT_NOTE
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.contract.wire.manifest import Manifest
from trainyard.contract.wire.models import NEWEST, ModelDetail, ModelResource, ModelVersionRequest, ModelVersionResource

MAX_MODELS = 1000
"""Maximum number of registered models per user."""
MAX_VERSIONS = 500
"""Maximum number of versions of a model, which are listed together."""
MAX_ALIASES = 20
"""Maximum number of aliases of a model."""
_MAX_NOTE_BYTES = 2**20
_MAX_MANIFEST_BYTES = 2**25
"""Maximum size of a manifest, which may have the names of many classes."""
_OF_THE_MACHINE = ("perf/", "memory/", "comm/")
"""Metrics that say nothing about the model."""


@dataclass(frozen=True)
class _Target:
    """The model of a job that is registered."""

    checkpoint_id: str | None
    step: int | None
    digest: str
    metrics: dict[str, Any]


@dataclass(frozen=True)
class ModelRegistry:
    """The registered models of all users. A model belongs to the user who registered its first version."""

    database: Database
    files_of: Callable[[Job], UntrustedFiles]
    run_layout: Callable[[str], RunLayout]

    def list_page(self, page: PageRequest) -> tuple[list[ModelResource], bool]:
        """Return a page of models by name, without their versions, and whether more follow."""
        with self.database.read() as session:
            registry = RegistryRepository(session)
            rows, has_more = registry.list_page(page)
            numbers = registry.visible_numbers([row.name for row in rows])
        return [_model_resource(row, numbers.get(row.name, set())) for row in rows], has_more

    def read(self, name: str) -> ModelDetail:
        """Return a model with its versions. Raises NotFoundError."""
        with self.database.read() as session:
            registry = RegistryRepository(session)
            row = registry.get(name)
            return _model_detail(row, registry.list_versions(name))

    def register(
        self, principal: Principal, name: str, request: ModelVersionRequest, now: datetime
    ) -> ModelVersionResource:
        """Register the export or a checkpoint of a job as the next version; the model is created if need be.

        An export or checkpoint that is registered already keeps its number, so that the request can be repeated.

        Raises:
            NotFoundError: There is no such job or checkpoint.
            PermissionDeniedError: The job or the model belongs to another user.
            ConflictError: The job has no such model, or a limit is reached.
            InvalidRequestError: An alias is reserved.
        """
        require_change(principal)
        _check_aliases(request.aliases)
        target = self._find_target(principal, request, now)
        with self.database.write() as session:
            jobs, registry = JobRepository(session, now), RegistryRepository(session)
            job = jobs.get_for_update(jobs.get(request.job_id).pk)
            if target.checkpoint_id is not None:
                _require_ended(job)
                jobs.get_checkpoint(job, target.checkpoint_id)
            row = self._own_model(registry, principal, name, now)
            version = registry.find_version(name, job.id, target.checkpoint_id)
            if version is None:
                version = _next_version(row, registry, job, target, principal, now)
                session.add(version)
            row.aliases = _with_aliases(row, request.aliases, version.number)
            row.description = row.description if request.description is None else request.description
            row.updated_at = now
            return _version_resource(row, version)

    def set_alias(self, principal: Principal, name: str, alias: str, number: int, now: datetime) -> ModelDetail:
        """Let an alias name a version, and no other version.

        Raises:
            NotFoundError: There is no such model or version.
            PermissionDeniedError: The model belongs to another user.
        """
        require_change(principal)
        _check_aliases([alias])
        with self.database.write() as session:
            registry = RegistryRepository(session)
            row = _locked(registry, principal, name)
            registry.get_version(name, number)
            row.aliases, row.updated_at = _with_aliases(row, [alias], number), now
            return _model_detail(row, registry.list_versions(name))

    def delete_alias(self, principal: Principal, name: str, alias: str, now: datetime) -> None:
        """Raises NotFoundError, PermissionDeniedError."""
        require_change(principal)
        with self.database.write() as session:
            row = _locked(RegistryRepository(session), principal, name)
            if alias not in row.aliases:
                raise NotFoundError(f"model {name!r} has no alias {alias!r}", code="alias_not_found", param="alias")
            row.aliases = {other: number for other, number in row.aliases.items() if other != alias}
            row.updated_at = now

    def delete_version(self, principal: Principal, name: str, number: int, now: datetime) -> None:
        """Delete a version; the files belong to its job and stay.

        Raises:
            NotFoundError: There is no such model or version.
            PermissionDeniedError: The model belongs to another user.
            ConflictError: An alias names the version.
        """
        require_change(principal)
        with self.database.write() as session:
            registry = RegistryRepository(session)
            row = _locked(registry, principal, name)
            version = registry.get_version(name, number)
            if aliases := sorted(alias for alias, named in row.aliases.items() if named == number):
                moved = (
                    f"move the alias (`trainyard models alias {name} ALIAS VERSION`) or delete it (`--delete`) first"
                )
                message = f"version {number} of model {name!r} is {', '.join(aliases)}; {moved}"
                raise ConflictError(message, code="model_version_in_use")
            session.delete(version)
            row.updated_at = now

    def delete(self, principal: Principal, name: str) -> None:
        """Delete a model with its versions and aliases; the files belong to the jobs and stay.

        Raises:
            NotFoundError: There is no such model.
            PermissionDeniedError: The model belongs to another user.
        """
        require_change(principal)
        with self.database.write() as session:
            session.delete(_locked(RegistryRepository(session), principal, name))

    def _find_target(self, principal: Principal, request: ModelVersionRequest, now: datetime) -> _Target:
        with self.database.read() as session:
            jobs = JobRepository(session, now)
            job = jobs.get(request.job_id)
            require_change(principal, job)
            if job.spec["task"] not in LOOP_TASKS:
                message = f"job {job.id} of task `{job.spec['task']}` has no model that can be registered"
                raise ConflictError(message, code="no_model")
            if request.checkpoint is not None:
                _require_ended(job)
                row = _chosen(session, jobs, job, request.checkpoint)
                target = _Target(row.id, row.step, row.digest, dict(row.metrics))
        if request.checkpoint is None:
            return self._export_of(job)
        self._require_classes(job, row.step)
        return target

    def _require_classes(self, job: Job, step: int) -> None:
        """Raise ConflictError if a checkpoint makes no model because it lacks the names of the classes."""
        if not needs_classes(job.spec):
            return
        try:
            path = self.run_layout(job.id).checkpoint(step).manifest
            named = Manifest.model_validate_json(self.files_of(job).read(path, 0, _MAX_MANIFEST_BYTES)).classes
        except (OSError, ValueError):
            named = ()
        if not named:
            raise ConflictError(
                f"the checkpoint of step {step} does not hold the names of the classes, so that no model can be made "
                f"of it; register the export of job {job.id}, without a checkpoint, or a checkpoint of this release",
                code="no_model",
                param="checkpoint",
            )

    def _export_of(self, job: Job) -> _Target:
        if job.status == "succeeded":
            try:
                note = self.files_of(job).read(self.run_layout(job.id).export / EXPORT_NOTE, 0, _MAX_NOTE_BYTES)
            except OSError:
                note = b""
            if note:
                step = job.progress.get("step") if job.progress else None
                digest = f"sha256:{hashlib.sha256(note).hexdigest()}"
                metrics = {key: value for key, value in job.latest.items() if not key.startswith(_OF_THE_MACHINE)}
                return _Target(None, step, digest, shown_metrics(metrics))
        raise ConflictError(
            f"job {job.id} has status {job.status} and no export; name one of its checkpoints", code="no_export"
        )

    def _own_model(
        self, registry: RegistryRepository, principal: Principal, name: str, now: datetime
    ) -> RegisteredModel:
        """Return the model of this name, which is created unless another user has it."""
        if registry.owner_of(name) is None:
            if registry.count_owned(principal.name) >= MAX_MODELS:
                message = f"{principal.name} has {MAX_MODELS} registered models, the limit per user"
                raise ConflictError(message, code="too_many_models")
            registry.create(self.database, name, principal.name, now)
        if not registry.is_visible(name):
            raise ConflictError(f"the name {name!r} is taken by a model of another user", code="model_name_taken")
        return _locked(registry, principal, name)


def _locked(registry: RegistryRepository, principal: Principal, name: str) -> RegisteredModel:
    row = registry.get_for_update(name)
    if principal.role == "user" and row.created_by != principal.name:
        raise PermissionDeniedError(f"model {name!r} belongs to {row.created_by}")
    return row


def _next_version(
    row: RegisteredModel, registry: RegistryRepository, job: Job, target: _Target, principal: Principal, now: datetime
) -> ModelVersion:
    if len(registry.list_versions(row.name)) >= MAX_VERSIONS:
        message = f"model {row.name!r} has {MAX_VERSIONS} versions, the limit; delete some first"
        raise ConflictError(message, code="too_many_versions")
    row.last_version += 1
    return ModelVersion(
        model=row.name,
        number=row.last_version,
        job_id=job.id,
        checkpoint_id=target.checkpoint_id,
        step=target.step,
        digest=target.digest,
        metrics=target.metrics,
        lineage=_lineage_of(job),
        created_by=principal.name,
        created_at=now,
    )


def _with_aliases(row: RegisteredModel, aliases: list[str], number: int) -> dict[str, Any]:
    changed = row.aliases | dict.fromkeys(aliases, number)
    if len(changed) > MAX_ALIASES:
        raise ConflictError(f"model {row.name!r} would have more than {MAX_ALIASES} aliases", code="too_many_aliases")
    return changed


def _check_aliases(aliases: list[str]) -> None:
    if NEWEST in aliases:
        raise InvalidRequestError(f"`{NEWEST}` always names the newest version", param="alias", code="reserved_alias")


def _chosen(session: Session, jobs: JobRepository, job: Job, reference: str | int) -> Checkpoint:
    """Return the checkpoint of a step, or the `best` or `latest` checkpoint."""
    step: int | None
    if reference == "best":
        criterion = best_criterion(job.spec["checkpoint"]["keep_best"])
        step = best_step(jobs.checkpoint_values(job, criterion.metric), criterion)
    else:
        step = max(jobs.checkpoint_steps(job), default=None) if reference == "latest" else int(reference)
    row = None if step is None else checkpoint_at(session, job, step)
    if row is None:
        raise NotFoundError(
            f"job {job.id} has no checkpoint {reference!r}", code="checkpoint_not_found", param="checkpoint"
        )
    return row


def _require_ended(job: Job) -> None:
    if job.status not in TERMINAL:
        raise ConflictError(
            f"job {job.id} has status {job.status} and may still replace its checkpoints; register one after its end",
            code="job_not_finished",
        )


def _model_resource(row: RegisteredModel, numbers: Collection[int]) -> ModelResource:
    return resource_of(ModelResource, row, aliases=_aliases(row, numbers), latest_version=max(numbers, default=None))


def _model_detail(row: RegisteredModel, versions: Sequence[ModelVersion]) -> ModelDetail:
    """Return a model with its versions, newest first."""
    newest = versions[0].number if versions else None
    resources = [_version_resource(row, version) for version in versions]
    aliases = _aliases(row, {version.number for version in versions})
    return resource_of(ModelDetail, row, aliases=aliases, latest_version=newest, versions=resources)


def _version_resource(row: RegisteredModel, version: ModelVersion) -> ModelVersionResource:
    aliases = sorted(alias for alias, number in row.aliases.items() if number == version.number)
    return resource_of(
        ModelVersionResource, version, model=row.name, version=version.number, aliases=aliases, **version.lineage
    )


def _lineage_of(job: Job) -> dict[str, Any]:
    """Return the origin of a job's model, as `ModelVersion.lineage` stores it: job, base model, data and parent."""
    spec = job.spec
    model = spec.get("model") or {}
    origin = job.origin
    merges = (spec.get("lora") or {}).get("merge", False)
    return {
        "job_name": job.name,
        "task": spec["task"],
        "base": model.get("path"),
        "is_adapter": spec.get("lora_rank") is not None and not merges,
        "data": spec.get("data"),
        "parent": {"job_id": origin["job_id"], "step": origin["step"]} if origin else None,
    }


def _aliases(row: RegisteredModel, numbers: Collection[int]) -> dict[str, int]:
    """Return the aliases of these versions: the caller may not see all."""
    return {alias: number for alias, number in row.aliases.items() if number in numbers}
