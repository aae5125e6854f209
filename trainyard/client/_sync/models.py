# Generated from _async/models.py by installation/sync_client.py; do not edit.
"""Calls about registered models."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from trainyard.client._sync.transport import Transport
from trainyard.client.request import JSON, Request, model, no_result, paged, segment, without_none
from trainyard.contract.wire.models import ModelDetail, ModelResource, ModelVersionResource


def _model_path(name: str, *rest: str) -> str:
    return "/".join(("/v1/models", segment(name, "model"), *rest))


def _body(**fields: Any) -> bytes:
    return json.dumps(without_none(**fields)).encode()


class ModelCalls(Transport):
    """Calls about registered models."""

    def models(self) -> Iterator[ModelResource]:
        """Iterate over the registered models by name, without their versions."""
        return self._pages(paged("/v1/models", ModelResource))

    def model(self, name: str) -> ModelDetail:
        """Return a registered model with its versions, newest first."""
        return self._send(Request("GET", _model_path(name), model(ModelDetail)))

    def register_model(
        self,
        name: str,
        job_id: str,
        *,
        checkpoint: str | int | None = None,
        aliases: Sequence[str] = (),
        description: str | None = None,
    ) -> ModelVersionResource:
        """Register a model of a job as the next version of a name; the same model keeps its version.

        Args:
            checkpoint: `best`, `latest` or a step, of a job that has ended; default: the job's export.
            aliases: aliases such as `prod` that name this version from now on.
            description: replaces the description of the model.
        """
        chosen = int(checkpoint) if isinstance(checkpoint, str) and checkpoint.isdecimal() else checkpoint
        content = _body(job_id=job_id, checkpoint=chosen, aliases=list(aliases), description=description)
        path = _model_path(name, "versions")
        return self._send(Request("POST", path, model(ModelVersionResource), headers=JSON, content=content))

    def set_model_alias(self, name: str, alias: str, version: int) -> ModelDetail:
        """Let an alias name a version of a model."""
        path = _model_path(name, "aliases", segment(alias, "alias"))
        request = Request("PUT", path, model(ModelDetail), headers=JSON, content=_body(version=version))
        return self._send(request)

    def delete_model_alias(self, name: str, alias: str) -> None:
        """Delete an alias of a model."""
        self._send(Request("DELETE", _model_path(name, "aliases", segment(alias, "alias")), no_result))

    def delete_model_version(self, name: str, version: int) -> None:
        """Delete a version that no alias names. Its files belong to its job."""
        self._send(Request("DELETE", _model_path(name, "versions", str(version)), no_result))

    def delete_model(self, name: str) -> None:
        """Delete a registered model with its versions and aliases. The files belong to the jobs."""
        self._send(Request("DELETE", _model_path(name), no_result))
