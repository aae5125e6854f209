"""export.json: the kind and origin of an export, and the digests of its files. Written last."""

from typing import Any, Literal

from pydantic import Field

from trainyard.contract.base import Resource, Step
from trainyard.contract.model_input import ModelInput
from trainyard.contract.wire.export import ExportDtype, ExportKind
from trainyard.contract.wire.manifest import ManifestFile

EXPORT_NOTE = "export.json"
MODEL_CARD = "README.md"
CLASSES = "classes.json"
"""Beside adapters of a model that classifies: the names of its outputs, a list of texts."""


class TextVectors(Resource):
    """How an embedding model turns a text into a vector."""

    pooling: Literal["mean", "first", "last"]
    max_length: int
    """Tokens of a text after which it is cut."""
    width: int
    """Numbers of a vector."""


class ExportNote(Resource):
    """The description of an export. Descriptions of former releases lack the fields with defaults."""

    kind: ExportKind
    task: str
    model: dict[str, Any] | None = None
    """The spec's `model`; None: the job's own code defines it."""
    seed: int
    """The seed from which the frozen parameters of a builtin model are drawn again."""
    step: Step
    job_id: str | None = None
    dtype: ExportDtype = "fp32"
    averaged: bool = False
    """Whether the weights are the average of the weights."""
    trainable: list[str] = Field(default_factory=list)
    base_dtype: str | None = None
    """Type in which the run held a frozen base, if it was not fp32."""
    base_digest: str | None = None
    """Digest of the base that adapters or trained tensors belong to."""
    input: ModelInput | None = None
    """The input that a model that reads no text expects."""
    vectors: TextVectors | None = None
    """How an embedding model turns a text into a vector."""
    files: dict[str, ManifestFile] = Field(default_factory=dict)
    """Every other file of the export."""
