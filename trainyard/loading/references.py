"""Resolves the name of a model: a job, or a registered model with a version or an alias. Loads no torch."""

from dataclasses import replace
from pathlib import Path

from trainyard.client import Client
from trainyard.client.download import Progress, no_progress
from trainyard.client.errors import NotFoundError
from trainyard.client.references import CHECKPOINT_MARK, FINE_TUNED
from trainyard.contract.wire.models import NEWEST, ModelDetail, ModelVersionResource
from trainyard.loading.errors import LoadError
from trainyard.loading.sources import Choice, Convert, fetch, fetch_checkpoint, fetch_export


def fetch_source(
    client: Client, source: str, choice: Choice, convert: Convert, progress: Progress = no_progress
) -> Path:
    """Return a local folder with the model that a text names: `name@version`, `name@alias`, a job, or else a name.

    Raises:
        LoadError: No such model exists.
        TrainyardError: A request failed.
    """
    step = source.partition(CHECKPOINT_MARK)[2] if source.startswith(FINE_TUNED) else ""
    if step:
        choice = replace(choice, checkpoint=step)
    name, at, version = source.rpartition("@")
    if at and (registered := _find_model(client, name)) is not None:
        return _fetch_version(client, choose_version(registered, version), choice, convert, progress)
    try:
        job = client.job(source).resource
    except NotFoundError as error:
        registered = None if at else _find_model(client, source)
        if registered is None:
            raise NotFoundError(
                f"{error.message}, and no registered model of this name", status=error.status, code="model_not_found"
            ) from None
        return _fetch_version(client, choose_version(registered, NEWEST), choice, convert, progress)
    return fetch(client, job, choice, convert, progress)


def choose_version(model: ModelDetail, reference: str) -> ModelVersionResource:
    """Return the version of a number, an alias or `latest`. Raises LoadError: the model has no such version."""
    if reference == NEWEST and model.versions:
        return model.versions[0]
    for version in model.versions:
        if reference in (str(version.version), *version.aliases):
            return version
    names = [str(version.version) for version in model.versions[:10]] + sorted(model.aliases)
    raise LoadError(f"model {model.name!r} has no version {reference!r}; it has {', '.join(names) or 'none'}")


def _find_model(client: Client, name: str) -> ModelDetail | None:
    try:
        return client.model(name)
    except NotFoundError:
        return None


def _fetch_version(
    client: Client, version: ModelVersionResource, choice: Choice, convert: Convert, progress: Progress
) -> Path:
    if choice.checkpoint is not None:
        raise LoadError("a registered version is one model; a checkpoint can be chosen of a job only")
    job = client.job(version.job_id).resource
    if version.checkpoint_id is None:
        return fetch_export(client, job, expected=version.digest, progress=progress)
    checkpoint = client.checkpoint(job.id, version.checkpoint_id)
    return fetch_checkpoint(client, job, checkpoint, choice.base, convert, progress)
