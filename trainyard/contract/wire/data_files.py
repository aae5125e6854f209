"""Uploaded data files, and uploads in parts."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints
from pydantic.config import JsonDict

from trainyard.contract.base import EXAMPLE_DIGEST, DisplayName, PositiveInt, Resource, Strict, Timestamp, example
from trainyard.contract.validation_messages import DIGEST_PATTERN

FileFormat = Literal[
    "text",
    "completion",
    "chat",
    "sharegpt",
    "alpaca",
    "preference",
    "openai_preference",
    "unpaired_preference",
    "labelled_text",
    "text_pair",
]
"""The formats of `data.format` in a spec."""
FileName = DisplayName

_EXAMPLE: JsonDict = {
    "object": "data_file",
    "id": "file_01kdvdna00yhj80arqj5k8gms6",
    "name": "chat.jsonl",
    "format": "chat",
    "size_bytes": 481000,
    "examples": 1200,
    "digest": "sha256:" + "0" * 64,
    "created_by": "alice",
    "created_at": "2026-01-01T12:00:00.000Z",
}


class DataFileResource(Resource):
    """A JSONL file or a JSON array that was uploaded and checked. Files with the same content share its space."""

    object: Literal["data_file"] = "data_file"
    id: str = Field(examples=["file_01kdvdna00yhj80arqj5k8gms6"])
    """For `data.id` of a spec."""
    name: str = Field(examples=["chat.jsonl"])
    format: FileFormat = Field(examples=["chat"])
    """The format that all lines have."""
    size_bytes: int
    examples: int = Field(examples=[1200])
    """Number of lines that are not blank, or of items."""
    digest: str
    """SHA-256 of the content."""
    created_by: str = Field(examples=["alice"])
    created_at: Timestamp


class UploadRequest(Strict):
    """A file to be uploaded in parts."""

    model_config = example(digest=EXAMPLE_DIGEST)

    name: FileName = Field(examples=["chat.jsonl"])
    size_bytes: PositiveInt = Field(examples=[481000000])
    digest: Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)] | None = None
    """`sha256:` and the SHA-256 of the whole file, which is verified at the end. Absent: not verified; browsers cannot
    compute it for large files."""
    format: FileFormat | None = None
    """Absent: the format of the first line. Then a line that also has the fields of another format is refused."""


class UploadResource(Resource):
    """An upload in parts."""

    object: Literal["upload"] = "upload"
    id: str = Field(examples=["upl_01kdvdna00yhj80arqj5k8gms6"])
    name: str = Field(examples=["chat.jsonl"])
    format: FileFormat | None = None
    size_bytes: int = Field(examples=[481000000])
    received_bytes: int = Field(examples=[67108864])
    """Bytes that are stored, which is the offset of the next part. It survives a restart of the service."""
    digest: str | None = Field(default=None, examples=[EXAMPLE_DIGEST])
    """The announced digest."""
    created_by: str = Field(examples=["alice"])
    created_at: Timestamp
    expires_at: Timestamp = Field(examples=["2026-01-02T12:00:00.000Z"])
    """When the parts are removed, unless another part is sent before."""
    file_id: Annotated[str | None, Field(description="The file, once the upload is complete.")] = None
