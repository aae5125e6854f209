"""The runs table: changes of the names and tags of jobs, keys of queries, and saved views."""

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StringConstraints

from trainyard.contract.base import EXAMPLE_LATER, DisplayName, Resource, Strict, Timestamp, example
from trainyard.contract.job_query import MAX_KEY, MAX_QUERY

MAX_NOTES = 20_000
"""Characters of a job's notes."""
MAX_EDITED_TAGS = 100
"""Maximum number of tags that a request changes."""
MAX_VIEW_COLUMNS = 100

TagName = Annotated[
    str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f-\x9f\u200b\u2028-\u202e\ufeff]+$")
]
TagText = Annotated[
    str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\u200b\u2028-\u202e\ufeff]*$")
]
NotesText = Annotated[str, StringConstraints(max_length=MAX_NOTES, pattern=r"^[^\x00]*$")]
# No name is allowed that breaks the pattern; the schema states it beside the pattern, not beside the null.
EditedTags = Annotated[
    dict[TagName, TagText | None], Field(max_length=MAX_EDITED_TAGS, json_schema_extra={"additionalProperties": False})
]


class JobChanges(Strict):
    """The body of `PATCH /v1/jobs/{id}`. Omitted fields do not change."""

    name: DisplayName | None = None
    project: DisplayName | Literal[""] | None = None
    """An empty text removes the job from its project."""
    tags: EditedTags | None = Field(default=None, examples=[{"baseline": ""}])
    """Tags to add, each with a text that may be empty, or with null to remove. Other tags stay."""
    notes: NotesText | None = Field(default=None, examples=["**Best.**"])
    """Notes in Markdown; an empty text removes them."""
    archived: StrictBool | None = None
    """Whether lists leave out the job unless archived jobs are requested. Only jobs that have ended can be archived."""


class JobKeyResource(Resource):
    """A key that queries, sorts and columns of jobs can use."""

    object: Literal["job_key"] = "job_key"
    key: str = Field(examples=["optimizer.lr"])
    kind: Literal["column", "spec", "parameter", "tag", "metric"] = Field(examples=["spec"])
    description: str | None = None


class ViewRequest(Strict):
    """The body of `POST /v1/views` and `PUT /v1/views/{id}`."""

    model_config = example(
        columns=["name", "optimizer.lr", "eval/loss"],
        group="optimizer.lr",
        sort="eval/loss",
        where="tag = baseline and status = succeeded",
    )

    name: DisplayName = Field(examples=["Best baselines"])
    shared: StrictBool = Field(default=False, examples=[True])
    """Whether other users see the view. Only its owner and administrators change it."""
    project: DisplayName | None = None
    """The project whose page shows the view. In a private project only its members see a shared view."""
    where: Annotated[str, StringConstraints(max_length=MAX_QUERY, pattern=r"^[^\x00]*$")] = ""
    sort: Annotated[str, StringConstraints(max_length=MAX_KEY + 1, pattern=r"^[^\x00]*$")] = ""
    columns: tuple[Annotated[str, StringConstraints(min_length=1, max_length=MAX_KEY, pattern=r"^[^\x00]*$")], ...] = (
        Field(default=(), max_length=MAX_VIEW_COLUMNS)
    )
    group: Annotated[str, StringConstraints(max_length=MAX_KEY, pattern=r"^[^\x00]*$")] = ""
    """The keys by whose values the page groups jobs, separated by commas; a comma within a key is doubled."""
    page: Annotated[str, StringConstraints(max_length=4000, pattern=r"^[\x20-\x7e]*$")] = ""
    """Further state of the view in the dashboard, as a query string: widths, pinned columns and charts."""


class ViewResource(Resource):
    """A saved view of the runs table."""

    object: Literal["view"] = "view"
    id: str = Field(examples=["view_01kdvdna00az9cxjnszk8v8abh"])
    name: str = Field(examples=["Best baselines"])
    shared: bool
    """Whether other users see the view."""
    project: str | None = Field(default=None, examples=["zoo"])
    where: str = Field(default="", examples=["tag = baseline and status = succeeded"])
    sort: str = Field(default="", examples=["eval/loss"])
    columns: tuple[str, ...] = Field(default=(), examples=[["name", "optimizer.lr", "eval/loss"]])
    group: str = Field(default="", examples=["optimizer.lr"])
    page: str = Field(default="", examples=[""])
    created_by: str
    created_at: Timestamp
    updated_at: Timestamp = Field(examples=[EXAMPLE_LATER])
