"""Data accounts: how many records of each source of a run became examples, rows and learned tokens."""

from typing import Any, Literal

from pydantic import Field

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots
from trainyard.contract.base import NonNegativeInt, PositiveInt, Resource, example

DATA_ACCOUNT = "data_account"
"""Type of the worker event with the account of a source; its data is a `DataAccount`."""
MAX_SOURCES_OF_JOB = 128
"""Accounts of a job, at most: more than a spec has sources and evaluation sets."""
MAX_PLANNED_RECORDS = 100_000
PLANNED_RECORDS = 1000
"""Records of each source that a plan reads unless another number is requested."""
PLANNED_SECONDS = 60.0
"""Seconds for which a plan reads unless another number is requested."""
MAX_PLANNED_SECONDS = 3600.0

_EXAMPLE: dict[str, Any] = {
    "section": "data.path",
    "format": "chat",
    "records": 1200,
    "examples": 1198,
    "bad_records": 2,
    "reasons": [{"problem": "is not JSON", "records": 2, "first": "/data/chats.jsonl, line 17"}],
    "counts": {"answers": 2400, "answers_trained": 2400},
    "tokens": 240000,
    "learned_tokens": 90000,
    "longest": 900,
    "max_length": 2048,
    "rows": 130,
    "summary": ["1,200 records read: 1,198 examples of format chat"],
    "shown": [
        {
            "number": 1,
            "texts": [
                {
                    "name": "text",
                    "parts": [
                        {"text": "<|user|>Hi<|assistant|>", "learned": False},
                        {"text": "Hello", "learned": True},
                    ],
                    "tokens": 9,
                    "learned_tokens": 2,
                }
            ],
        }
    ],
}


class TextPart(Resource):
    """Consecutive tokens, either all learned or none; or a gap where tokens are left out."""

    text: str = Field(examples=["Hello"])
    learned: bool = False
    omitted_tokens: NonNegativeInt = 0
    """Tokens that are not shown here; the text is then empty."""


class ExampleText(Resource):
    """The tokens of an example, as text."""

    name: Literal["text", "chosen", "rejected", "answer", "anchor", "positive", "negative"] = "text"
    """The part of the example; a preference has two parts."""
    label: str | None = None
    """The label of a text or answer; None without a label."""
    parts: list[TextPart]
    tokens: NonNegativeInt = Field(examples=[9])
    learned_tokens: NonNegativeInt = Field(examples=[2])


class ExampleShown(Resource):
    """One example of a source."""

    number: PositiveInt
    """Its number among the examples of the source."""
    texts: list[ExampleText]


class BadRecordReason(Resource):
    """Why records hold no example."""

    problem: str = Field(examples=["is not JSON"])
    """The problem, with positions replaced by `N`, so that records with the same problem are counted together."""
    records: PositiveInt
    first: str = ""
    """The file and the line or row of the first of them."""
    hint: str = ""
    """The remedy."""


class TemplateFacts(Resource):
    """Results of a probe of the model's chat template. Texts are empty where it shows nothing."""

    turn_end: str = Field(default="", examples=["<|im_end|>"])
    """The special token that ends an answer."""
    end_token: str = Field(default="", examples=["<|endoftext|>"])
    """The end token of the tokenizer."""
    system_prompt: str = ""
    """The system message that the template adds to conversations that have none."""
    generation_start: str = Field(default="", examples=["<|im_start|>assistant\n"])
    """The generation prompt."""
    opens_thought: str = Field(default="", examples=["<think>"])
    """The text of the generation prompt after the header."""
    strips_reasoning: bool = False
    """Whether the template leaves out the reasoning of earlier answers."""
    arguments: Literal["object", "text", "unknown"] = "object"
    """The form in which the template takes the arguments of tool calls."""
    marks_answers: bool = False
    """Whether the template marks the learned parts itself, by `{% generation %}`."""
    learned_header: str = ""
    """The header of an answer, if it is learned too, since the template has no generation prompt."""
    fixed_date: str = Field(default="", examples=["26 July 2024"])
    """The date that replaces the current date, if the template writes the current date."""


class DataAccount(Resource):
    """The account of a source: its records, examples, tokens and learned tokens."""

    model_config = example(**_EXAMPLE)

    object: Literal["data_account"] = "data_account"
    section: str = Field(examples=["data.path"])
    """The field of the spec that names the source."""
    format: str = Field(examples=["chat"])
    records: NonNegativeInt
    """Records that were read, without blank lines."""
    complete: bool = True
    """False: a plan read only the first records."""
    examples: NonNegativeInt
    bad_records: NonNegativeInt = 0
    """Records that hold no example, and are left out."""
    reasons: list[BadRecordReason] = Field(default_factory=list)
    """The most frequent reasons, at most ten."""
    unread_fields: list[str] = Field(default_factory=list, examples=[["id", "source"]])
    """Fields of the records that the model does not see, the most frequent first, at most 20. A field of messages
    follows the name of their list, as in `messages.name`."""
    counts: dict[str, NonNegativeInt] = Field(default_factory=dict, examples=[{"answers": 2400}])
    """Numbers by name, such as `answers`, `answers_trained` and `answers_stripped`; see docs/data.md."""
    tokens: NonNegativeInt = 0
    """Tokens of all examples, before any is cut."""
    learned_tokens: NonNegativeInt | None = None
    """Tokens that the model learns to predict. None: it learns labels or vectors of texts."""
    longest: NonNegativeInt = 0
    """Tokens of the longest example."""
    max_length: NonNegativeInt = 0
    """Tokens of a row at most."""
    rows: NonNegativeInt = 0
    """Rows for training, or of an evaluation set."""
    held_out_rows: NonNegativeInt = 0
    """Rows that `data.eval_fraction` holds out."""
    truncated: NonNegativeInt = 0
    """Examples that are longer than a row, of which the beginning is used."""
    too_long: NonNegativeInt = 0
    """Examples that are left out, because their learned tokens begin after the end of a row."""
    empty: NonNegativeInt = 0
    """Examples that are left out, because they have no learned token."""
    equal: NonNegativeInt = 0
    """Pairs that were left out: both answers are equal, whole or in the first `max_length` tokens."""
    template: TemplateFacts | None = None
    """None: no chat template writes the examples."""
    summary: list[str] = Field(default_factory=list, examples=[["1,200 records read"]])
    """The account as sentences."""
    shown: list[ExampleShown] = Field(default_factory=list)
    """The first, a middle and the last example."""


class DataAccounts(Resource):
    """The accounts of all sources."""

    model_config = example(data=[_EXAMPLE])

    object: Literal["data_accounts"] = "data_accounts"
    data: list[DataAccount] = Field(default_factory=list)
    """In the order of the spec: sources of training examples, then evaluation sets."""
    problem: str | None = None
    """Why a job with this spec would be refused; for plans only."""
    hint: str | None = None
    """The remedy of the problem."""


class DataRequest(Resource):
    """The request to a worker process that accounts for the data of a spec."""

    spec: dict[str, Any]
    """Resolved, as a plan returns it."""
    records: PositiveInt = PLANNED_RECORDS
    """Maximum number of records of each source."""
    seconds: float = Field(default=PLANNED_SECONDS, gt=0, le=MAX_PLANNED_SECONDS)
    """Maximum time to read."""
    roots: AllowedRoots = UNRESTRICTED_ROOTS
    """Where the files may be."""
    memory_bytes: PositiveInt | None = None
    """Maximum memory to use; None: no limit."""
    runs: str | None = None
    """The folder of all runs, with the uploaded files; None: unknown."""


class DataUpdate(Resource):
    """A line of the output of that process."""

    records: NonNegativeInt = 0
    """Records that were read so far."""
    result: DataAccounts | None = None
    """The last line."""
    failure: str | None = None
    """Why there is no result."""
    hint: str | None = None
