"""The sources of texts and conversations: files, uploaded files, and the formats of their examples."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from trainyard.contract.base import CONTROL_FREE_PATTERN, Path, PositiveFloat, Strict
from trainyard.contract.validation_messages import DIGEST_PATTERN, FILE_ID_PATTERN

MAX_PATHS = 1000

EvaluationSetName = Annotated[str, StringConstraints(max_length=32, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""Name of a set of examples for evaluation. It is the end of the names of its metrics."""

FileKind = Literal["jsonl", "parquet", "arrow", "dataset"]
PairFormat = Literal["preference", "openai_preference"]
TextFormat = Literal[
    "auto",
    "text",
    "completion",
    "chat",
    "sharegpt",
    "alpaca",
    PairFormat,
    "unpaired_preference",
    "labelled_text",
    "text_pair",
]

FORMAT_FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "completion": ("prompt", "completion", "tools"),
    "chat": ("messages", "tools"),
    "sharegpt": ("conversations", "tools"),
    "alpaca": ("instruction", "input", "output"),
    "preference": ("prompt", "chosen", "rejected", "tools"),
    "openai_preference": ("input", "preferred_output", "non_preferred_output"),
    "unpaired_preference": ("prompt", "completion", "label", "tools"),
    "labelled_text": ("text", "label"),
    "text_pair": ("anchor", "positive", "negative"),
}
"""The fields that each format reads, by which `columns` names them."""

CHAT_FORMATS = frozenset({"chat", "sharegpt"})
"""The formats that need a chat template."""

PAIR_FORMATS = frozenset({"preference", "openai_preference"})
"""The formats of pairs of a chosen and a rejected answer."""
PREFERENCE_FORMATS = PAIR_FORMATS | {"unpaired_preference"}
"""The formats for objectives that learn from preferences."""

FileId = Annotated[str, StringConstraints(pattern=FILE_ID_PATTERN)]
FileDigest = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]
ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=CONTROL_FREE_PATTERN)]


def _paths_tag(value: Any) -> str:
    return "one path" if isinstance(value, str) else "list of paths"


Paths = Annotated[
    Annotated[Path, Tag("one path")] | Annotated[tuple[Path, ...], Field(max_length=MAX_PATHS), Tag("list of paths")],
    Discriminator(_paths_tag),
]
"""A file, a glob pattern of files, or a list of these."""


def listed_paths(paths: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths and patterns of a `Paths` field as a list."""
    return (paths,) if isinstance(paths, str) else paths


class TextSource(Strict):
    """How the examples of a source are read; subclasses state their location."""

    format: TextFormat = "auto"
    """`text`: {text}; `completion`: {prompt, completion}, texts or lists of messages; `chat`: {messages: [{role,
    content}], tools}; `sharegpt`: {conversations: [{from, value}]}; `alpaca`: {instruction, input, output}; `auto`: the
    format of the first example, and a record that has the fields of two formats is refused. With all but `text`, the
    loss covers only the completion, the output, or the assistant's messages. For `objective: dpo`, `orpo` and `simpo`:
    `preference`: {prompt, chosen, rejected}, each a text or a list of messages; `openai_preference`: {input,
    preferred_output, non_preferred_output}; for `kto`: `unpaired_preference`: {prompt, completion, label}. For task
    `sequence_classification`: `labelled_text`: {text, label}; for `text_embedding`: `text_pair`: {anchor, positive,
    negative}. `docs/data.md` describes each."""
    columns: Annotated[dict[ColumnName, ColumnName], Field(max_length=16)] = Field(default_factory=dict)
    """Maps fields of the format to columns of the data, where the names differ: `{prompt: question}`."""


class FileSource(TextSource):
    """Files of examples."""

    source: FileKind = "jsonl"
    """`jsonl`: a JSON object on each line, or a JSON array of objects; `parquet`; `arrow`: IPC files or streams;
    `dataset`: folders saved by `datasets.save_to_disk`."""
    path: Paths
    """The file, a glob pattern such as `/data/part-*.jsonl`, or a list of these, below the service's allowed roots.
    Files are read in the order of the list; a pattern is read in the order of file names."""


class UploadedSource(TextSource):
    """A JSONL file that was uploaded (`trainyard files upload`, `POST /v1/files`)."""

    source: Literal["file"] = "file"
    id: FileId
    """The file with the examples: `file_...`."""
    digest: FileDigest | None = None
    """SHA-256 of its content. Absent: set at submission, so that the job always reads the same examples."""


class Weighted(Strict):
    """Fields of a source of a mixture beside its examples."""

    weight: PositiveFloat = 1.0
    """Share of this source in each epoch, relative to the weights of the others."""
    name: EvaluationSetName | None = None
    """Its name in events and in the metrics of evaluations. Absent: `source_1` for the first, and so on."""


class MixtureSource(Weighted, FileSource):
    """Files as a source of a mixture."""


class UploadedMixtureSource(Weighted, UploadedSource):
    """An uploaded file as a source of a mixture."""


UPLOADED, FILES = "source: file", "source: jsonl"
"""Tags of sources in unions; `trainyard.contract.problems` leaves them out of the paths of fields."""


def _source_tag(value: Any) -> str:
    if isinstance(value, Mapping):
        return UPLOADED if value.get("source") == "file" else FILES
    return UPLOADED if isinstance(value, UploadedSource) else FILES


def _evaluation_tag(value: Any) -> str:
    return _source_tag(value) if isinstance(value, Mapping | TextSource) else _paths_tag(value)


AnyMixtureSource = Annotated[
    Annotated[MixtureSource, Tag(FILES)] | Annotated[UploadedMixtureSource, Tag(UPLOADED)], Discriminator(_source_tag)
]
EvaluationSet = Annotated[
    Annotated[Path, Tag("one path")]
    | Annotated[tuple[Path, ...], Field(max_length=MAX_PATHS), Tag("list of paths")]
    | Annotated[FileSource, Tag(FILES)]
    | Annotated[UploadedSource, Tag(UPLOADED)],
    Discriminator(_evaluation_tag),
]
"""Files, by their paths, or as a source of its own kind and format."""
