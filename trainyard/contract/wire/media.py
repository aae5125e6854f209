"""Images and other media that programs log: the reports of workers, and the resources of the API."""

from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from trainyard.contract.base import (
    EXAMPLE_JOB,
    EXAMPLE_TIME,
    Document,
    Float,
    NonNegativeInt,
    PositiveInt,
    Resource,
    SanitizedText,
    Step,
    Timestamp,
    example,
)
from trainyard.contract.wire.reports import MetricKey, SpoolRecords

MAX_MEDIA = 32
"""Items of a report."""
MAX_JOB_MEDIA = 20_000
"""Items of a job."""
MAX_MEDIA_KEYS = 1000
"""Keys of a job."""
MAX_BINS = 512
MAX_CAPTION = 2000
MAX_PATH = 1000

MediaType = Literal["image", "table", "histogram", "html", "audio", "video", "object3d", "text", "file"]


def _check_path(path: str) -> str:
    if path != str(PurePosixPath(path)) or path.startswith("/") or ".." in path.split("/") or path == ".":
        raise ValueError("must be a path relative to the artifacts, such as images/1.png")
    return path


MediaPath = Annotated[SanitizedText, StringConstraints(min_length=1, max_length=MAX_PATH), AfterValidator(_check_path)]


class Histogram(Document):
    """How many values were between an edge and the next."""

    bins: Annotated[tuple[Float, ...], Field(min_length=2, max_length=MAX_BINS + 1)]
    """The edges, ascending; `values` has one item less."""
    values: Annotated[tuple[Float, ...], Field(min_length=1, max_length=MAX_BINS)]

    @model_validator(mode="after")
    def _check_bins(self) -> "Histogram":
        if len(self.bins) != len(self.values) + 1 or any(one > other for one, other in pairwise(self.bins)):
            raise ValueError("bins must be ascending, and one more than values")
        return self


class MediaItem(Document):
    """One medium at a step: a file of the job's artifacts, or a histogram."""

    key: MetricKey
    """The name under which the program logged it."""
    step: Step
    position: Annotated[NonNegativeInt, Field(le=9999)] = 0
    """The place in the list that was logged at the step."""
    type: MediaType
    caption: Annotated[SanitizedText, StringConstraints(max_length=MAX_CAPTION)] | None = None
    path: MediaPath | None = None
    """The file, relative to the `artifacts` folder."""
    histogram: Histogram | None = None
    width: PositiveInt | None = None
    height: PositiveInt | None = None
    format: Annotated[SanitizedText, StringConstraints(max_length=20)] | None = None
    time: Timestamp

    @model_validator(mode="after")
    def _check_content(self) -> "MediaItem":
        has = (self.path is not None, self.histogram is not None)
        if has != ((False, True) if self.type == "histogram" else (True, False)):
            raise ValueError("a histogram must have `histogram`, and anything else `path`")
        return self


class MediaReport(Document):
    """Media of an execution."""

    model_config = example(items=[{"key": "samples", "step": 10, "type": "image", "path": "images/10.png"}])

    execution: PositiveInt
    items: Annotated[tuple[MediaItem, ...], Field(max_length=MAX_MEDIA)]
    source: SpoolRecords | None = Field(default=None, exclude_if=lambda value: value is None)
    """The records that have the items. If several items have the same key, step and position, the item of the highest
    record stays, and within a record the last. Between two spools, and without `source`, the first stays."""

    @model_validator(mode="after")
    def _check_source(self) -> "MediaReport":
        if self.source is not None and self.source.count() != len(self.items):
            raise ValueError(f"`source` counts {self.source.count()} items; the report has {len(self.items)}")
        return self


class MediaResource(Resource):
    """One medium at a step."""

    object: Literal["media"] = "media"
    id: str = Field(examples=["17"])
    key: str = Field(examples=["samples"])
    step: int = Field(examples=[10])
    execution: int
    position: int = Field(examples=[0])
    """The place in the list that was logged at the step."""
    type: MediaType = Field(examples=["image"])
    caption: str | None = Field(examples=["a cat"])
    path: str | None = Field(examples=["wandb/run-1/media/images/samples_10_0123456789abcdef0123.png"])
    """The file, as used in `/v1/jobs/{id}/artifacts/{path}`; null for a histogram."""
    histogram: dict[str, Any] | None = Field(examples=[None])
    """`bins`, the edges, and `values`, the count in each bin."""
    width: int | None = Field(examples=[64])
    height: int | None = Field(examples=[64])
    format: str | None = Field(examples=["png"])
    time: Timestamp = Field(examples=[EXAMPLE_TIME])


class MediaKeyResource(Resource):
    """The media of a job under a key."""

    object: Literal["media_key"] = "media_key"
    key: str = Field(examples=["samples"])
    type: MediaType = Field(examples=["image"])
    """The type of the media; any of them, if a program logged several types under the key."""
    count: int = Field(examples=[3])
    first_step: int = Field(examples=[0])
    last_step: int = Field(examples=[20])


class MediaKeysResource(Resource):
    """The keys of a job's media, by name."""

    object: Literal["list"] = "list"
    data: list[MediaKeyResource]


class JobMediaKeys(Resource):
    """The keys of the media of one of several jobs, by name."""

    object: Literal["job_media_keys"] = "job_media_keys"
    job_id: str = Field(examples=[EXAMPLE_JOB])
    data: list[MediaKeyResource]


class ComparedMediaKeys(Resource):
    """The keys of the media of several jobs, in the order of the request."""

    object: Literal["list"] = "list"
    data: list[JobMediaKeys]


class JobMediaSteps(Resource):
    """The steps at which one of several jobs has media under a key, ascending."""

    object: Literal["job_media_steps"] = "job_media_steps"
    job_id: str = Field(examples=[EXAMPLE_JOB])
    steps: list[int] = Field(examples=[[0, 10, 20]])


class ComparedMediaSteps(Resource):
    """The steps of media of several jobs, in the order of the request."""

    object: Literal["list"] = "list"
    data: list[JobMediaSteps]
