"""Messages between the command `export` and the process that converts a checkpoint, a JSON document per line."""

from collections.abc import Mapping
from typing import Any, Literal

from trainyard.contract.base import NonNegativeInt, Resource, Step
from trainyard.contract.kinds.tasks import task_kind

ExportDtype = Literal["fp32", "bf16"]
ExportKind = Literal["model", "adapter", "trained"]


def needs_classes(spec: Mapping[str, Any]) -> bool:
    """Return whether the export of a checkpoint of this spec needs the names of the classes, which manifests of former
    releases lack."""
    task = task_kind(spec["task"])
    return task.classifies and (task.reads_texts or (spec.get("data") or {}).get("source") == "images")


class ExportRequest(Resource):
    """A checkpoint to convert, and the target folder."""

    job_id: str
    step: Step
    spec: dict[str, Any]
    """The job's accepted spec."""
    checkpoint: str
    """Its folder."""
    output: str
    """An existing, empty folder."""
    dtype: ExportDtype | None = None
    """Type of the weights. None: as in the export of a run, bf16 for adapters merged into a base that was held in fewer
    bits, else fp32."""
    merge: bool = False
    """Merge adapters into the weights of the base model, even if the spec does not."""
    base: str | None = None
    """The folder of the base model on this machine, if it differs from the spec's."""


class ExportUpdate(Resource):
    """Progress, the result, or the error that ended the conversion."""

    phase: Literal["verifying", "reading", "merging", "writing", "done", "failed"]
    bytes_done: NonNegativeInt = 0
    """Bytes of tensors that were read so far."""
    bytes_total: NonNegativeInt = 0
    kind: ExportKind | None = None
    """Kind of the export; set when it is done."""
    dtype: ExportDtype | None = None
    """Type of its weights; set when it is done."""
    message: str = ""
    """The error, with a hint."""
