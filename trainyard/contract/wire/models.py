"""Registered models as the API takes and returns them."""

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, StringConstraints

from trainyard.contract.base import (
    EXAMPLE_LATER,
    AnyFloat,
    PositiveInt,
    Resource,
    ShortText,
    Step,
    Strict,
    Timestamp,
    example,
)
from trainyard.contract.validation_messages import ALIAS_PATTERN, MODEL_NAME_PATTERN

NEWEST = "latest"
"""Stands for the newest version, and so cannot be an alias."""

ModelName = Annotated[str, StringConstraints(pattern=MODEL_NAME_PATTERN)]
Alias = Annotated[str, StringConstraints(pattern=ALIAS_PATTERN)]


class ModelVersionRequest(Strict):
    """The body of `POST /v1/models/{model_name}/versions`."""

    job_id: Annotated[str, StringConstraints(max_length=64)]
    checkpoint: Literal["best", "latest"] | Step | None = Field(default=None, examples=["best"])
    """A checkpoint of a job that has ended. Absent: the job's export."""
    aliases: Annotated[list[Alias], Field(max_length=20)] = Field(default_factory=list, examples=[["prod"]])
    """Aliases that name this version from now on."""
    description: ShortText | None = None
    """Replaces the description of the model."""


class AliasRequest(Strict):
    """The body of `PUT /v1/models/{model_name}/aliases/{alias}`."""

    version: PositiveInt = Field(examples=[1])


class ModelParent(Resource):
    """The checkpoint of another job from which the job of a version started."""

    job_id: str
    step: int


class ModelVersionResource(Resource):
    """A version of a registered model: the export or a checkpoint of a job."""

    object: Literal["model_version"] = "model_version"
    model: str = Field(examples=["chat"])
    version: int = Field(examples=[2])
    aliases: list[str] = Field(default_factory=list, examples=[["prod"]])
    job_id: str
    job_name: str = Field(examples=["chat-lora"])
    task: str = Field(examples=["causal_lm"])
    checkpoint_id: str | None = None
    """None: the version is the job's export."""
    step: int | None = Field(default=None, examples=[400])
    digest: str
    """SHA-256 of `export.json`, which has the digests of the other files, or of the checkpoint's manifest."""
    metrics: dict[str, AnyFloat] = Field(default_factory=dict, examples=[{"eval/loss": 0.25}])
    """Metrics of the checkpoint, or else the job's latest metrics."""
    base: str | None = Field(default=None, examples=["/shared/models/llama-3.2-1b"])
    """The folder of the base model, if a model of a folder was trained."""
    is_adapter: bool = Field(default=False, examples=[True])
    """Whether the export holds adapters without their base."""
    data: dict[str, Any] | None = Field(default=None, examples=[{"source": "jsonl", "path": "/shared/data/chat.jsonl"}])
    """The spec's `data`."""
    parent: ModelParent | None = None
    created_by: str
    created_at: Timestamp


_MODEL: dict[str, JsonValue] = {
    "name": "chat",
    "description": "Answers questions about the cluster",
    "updated_at": EXAMPLE_LATER,
    "latest_version": 2,
    "aliases": {"prod": 2},
}


class ModelResource(Resource):
    """A registered model."""

    model_config = example(**_MODEL)

    object: Literal["model"] = "model"
    name: str
    description: str = ""
    created_by: str
    created_at: Timestamp
    updated_at: Timestamp
    latest_version: int | None = None
    """The newest version. None: all versions were deleted."""
    aliases: dict[str, int] = Field(default_factory=dict)
    """Versions by alias."""


class ModelDetail(ModelResource):
    """A registered model with its versions."""

    model_config = example(**_MODEL, versions=[{}])

    versions: list[ModelVersionResource] = Field(default_factory=list)
    """Newest first."""
