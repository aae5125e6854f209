"""Conversion of rows of the registry into the resources of the API."""

from collections.abc import Sequence
from typing import Any

from service.db.models import Job, ModelVersion, RegisteredModel
from trainyard.contract.wire.models import ModelDetail, ModelResource, ModelVersionResource


def model_resource(row: RegisteredModel, latest_version: int | None) -> ModelResource:
    return ModelResource(**_fields(row), latest_version=latest_version)


def model_detail(row: RegisteredModel, versions: Sequence[ModelVersion]) -> ModelDetail:
    """Return a model with its versions, newest first."""
    newest = versions[0].number if versions else None
    resources = [version_resource(row, version) for version in versions]
    return ModelDetail(**_fields(row), latest_version=newest, versions=resources)


def version_resource(row: RegisteredModel, version: ModelVersion) -> ModelVersionResource:
    aliases = sorted(alias for alias, number in row.aliases.items() if number == version.number)
    return ModelVersionResource(
        model=row.name,
        version=version.number,
        aliases=aliases,
        job_id=version.job_id,
        checkpoint_id=version.checkpoint_id,
        step=version.step,
        digest=version.digest,
        metrics=version.metrics,
        created_by=version.created_by,
        created_at=version.created_at,
        **version.lineage,
    )


def lineage_of(job: Job) -> dict[str, Any]:
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


def _fields(row: RegisteredModel) -> dict[str, Any]:
    return {
        "name": row.name,
        "description": row.description,
        "created_by": row.created_by,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "aliases": row.aliases,
    }
