"""Checkpoints, exports and artifacts as the API lists them, and disk use by user."""

from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field

from trainyard.contract.base import AnyFloat, Resource, Timestamp

_CHECKPOINT_INDEX = ".metadata"
"""The hidden file that PyTorch writes in a checkpoint."""


def is_hidden(path: str) -> bool:
    """Return whether a part of the path begins with a dot, as in `.git/config`; not the index of a checkpoint.

    Downloads of whole folders leave such files out, because programs run or trust files with such names.
    """
    *folders, name = PurePosixPath(path).parts or ("",)
    return any(part.startswith(".") for part in folders) or (name.startswith(".") and name != _CHECKPOINT_INDEX)


class CheckpointResource(Resource):
    """A complete checkpoint of a job."""

    object: Literal["checkpoint"] = "checkpoint"
    id: str = Field(examples=["ckpt_01kdvdna00yhj80arqj5k8gms6"])
    job_id: str
    step: int
    size_bytes: int
    digest: str
    world_size: int
    execution: int
    metrics: dict[str, AnyFloat] = Field(default_factory=dict, examples=[{"eval/loss": 0.25}])
    path: str = Field(examples=["/shared/runs/job_01kdvdna00az9cxjnszk8v8abh/checkpoints/step-0000000200"])
    seconds: float | None = Field(default=None, examples=[12.5])
    """How long the save took, until it was on disk. None: unknown."""
    created_at: Timestamp
    latest: bool = Field(default=False, examples=[True])
    """Whether it is the newest checkpoint, from which the job would continue."""
    best: bool = Field(default=False, examples=[False])
    """Whether it is the best by `checkpoint.keep_best`, else by `eval/loss`."""


class FileResource(Resource):
    """A file of a checkpoint or an export."""

    object: Literal["file"] = "file"
    path: str = Field(examples=["model.safetensors"])
    """Path relative to the folder, as used in `.../files/{path}`."""
    size_bytes: int
    modified_at: Timestamp


class ArtifactResource(Resource):
    """A file that a run wrote to its `artifacts` folder."""

    object: Literal["artifact"] = "artifact"
    path: str = Field(examples=["trace/rank-0.json"])
    """Path relative to the `artifacts` folder, as used in `/v1/jobs/{id}/artifacts/{path}`."""
    size_bytes: int
    modified_at: Timestamp


class CodeResource(Resource):
    """An uploaded archive of code."""

    object: Literal["code"] = "code"
    digest: str


class UserUsage(Resource):
    """Disk use of a user's jobs."""

    name: str
    jobs: int
    disk_bytes: int


class UsageResource(Resource):
    """Disk use by user and in total, measured in the background."""

    object: Literal["usage"] = "usage"
    users: list[UserUsage] = Field(examples=[[{"disk_bytes": 3400000000, "jobs": 12, "name": "admin"}]])
    disk_bytes: int = Field(examples=[3400000000])
    free_bytes: int = Field(examples=[120000000000])
    """Free bytes on the filesystem of the run directories."""
    quota_bytes_per_user: int | None = Field(default=None, examples=[50000000000])
    """Quota of each user; a user at the quota cannot submit jobs. None: no quota."""
