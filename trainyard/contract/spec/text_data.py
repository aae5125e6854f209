"""The sections of a training spec that name texts and conversations: files, and mixtures of sources."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from trainyard.contract.base import CONTROL_FREE_PATTERN, Float, Path, PositiveFloat, PositiveInt, Strict
from trainyard.contract.problems import Problem

MAX_EVALUATION_SETS = 16
MAX_SOURCES = 64
MAX_PATHS = 1000
DEFAULT_BAD_LINES = 100

EvaluationSetName = Annotated[str, StringConstraints(max_length=32, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""Name of a set of examples for evaluation. It is the end of the names of its metrics."""

FileKind = Literal["jsonl", "parquet", "arrow", "dataset"]
PairFormat = Literal["preference", "openai_preference"]
TextFormat = Literal["auto", "text", "completion", "chat", "sharegpt", "alpaca", PairFormat, "unpaired_preference"]

FORMAT_FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "completion": ("prompt", "completion"),
    "chat": ("messages", "tools"),
    "sharegpt": ("conversations", "tools"),
    "alpaca": ("instruction", "input", "output"),
    "preference": ("prompt", "chosen", "rejected", "tools"),
    "openai_preference": ("input", "preferred_output", "non_preferred_output"),
    "unpaired_preference": ("prompt", "completion", "label", "tools"),
}
"""The fields that each format reads, by which `columns` names them."""

CHAT_FORMATS = frozenset({"chat", "sharegpt"})
"""The formats that need a chat template."""

PAIR_FORMATS = frozenset({"preference", "openai_preference"})
"""The formats of pairs of a chosen and a rejected answer."""
PREFERENCE_FORMATS = PAIR_FORMATS | {"unpaired_preference"}
"""The formats for objectives that learn from preferences."""

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
    """How the examples of one source are read; subclasses say where they are."""

    format: TextFormat = "auto"
    """`text`: {text}; `completion`: {prompt, completion}; `chat`: {messages: [{role, content}], tools}; `sharegpt`:
    {conversations: [{from, value}]}; `alpaca`: {instruction, input, output}; `auto`: the format of the first example.
    With all but `text`, the loss covers only the completion, the output, or the assistant's messages. For
    `objective: dpo`, `orpo` and `simpo`: `preference`: {prompt, chosen, rejected}, each a text or a list of messages;
    `openai_preference`: {input, preferred_output, non_preferred_output}; for `kto`: `unpaired_preference`:
    {prompt, completion, label}.
    `docs/data.md` describes each."""
    columns: Annotated[dict[ColumnName, ColumnName], Field(max_length=16)] = Field(default_factory=dict)
    """The names of the data's columns by the fields of the format, where they differ: `{prompt: question}`."""


class FileSource(TextSource):
    """Files of examples."""

    source: FileKind = "jsonl"
    """`jsonl`: one JSON object on each line; `parquet`; `arrow`: IPC files or streams; `dataset`: folders saved by
    `datasets.save_to_disk`."""
    path: Paths
    """The file, a glob pattern such as `/data/part-*.jsonl`, or a list of these, below the service's allowed roots.
    The files are read in the order of the list, and those of a pattern in the order of their names."""


class MixtureSource(FileSource):
    """One source of a mixture."""

    weight: PositiveFloat = 1.0
    """Share of this source in each epoch, relative to the weights of the others."""
    name: EvaluationSetName | None = None
    """Its name in events and in the metrics of evaluations. Absent: `source_1` for the first, and so on."""


class TextData(Strict):
    """The options of all sources of texts. A kind of source is a subclass: what differs is where the examples are."""

    on_bad_line: Literal["refuse", "skip"] = "refuse"
    """What to do about lines and rows that hold no example: end the run with the number of the first, or `skip` them,
    which an event reports."""
    max_bad_lines: PositiveInt = DEFAULT_BAD_LINES
    """With `skip`: bad lines of one source above which the run ends."""
    eval_fraction: Annotated[Float, Field(ge=0, lt=1)] = 0.0
    """Fraction of the examples of each source held out for evaluation, chosen by their number alone. A mixture then has
    an evaluation set for each source. 0: none."""
    packing: bool = True
    """Pack several examples into one row, without attention between them. `batch` counts rows. Preferences are
    never packed."""
    max_length: PositiveInt | None = None
    """Maximum tokens of a row. Absent: the context length of the model, at most 2048."""
    shuffle: bool = True
    """Shuffle the examples in each epoch, with an order derived from `seed`."""

    @property
    def training_sources(self) -> dict[str, TextSource]:
        """The sources of the training examples by the fields that name them."""
        raise NotImplementedError

    @property
    def evaluation_sources(self) -> dict[str, TextSource]:
        """The sources of the examples for evaluation by the fields that name them; without those of `eval_fraction`."""
        raise NotImplementedError

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """The names of the evaluation sets; empty if there is none, or one without a name."""
        raise NotImplementedError

    @property
    def has_evaluation(self) -> bool:
        """Whether any example is for evaluation."""
        return self.eval_fraction > 0 or bool(self.evaluation_sources)

    def training_part(self) -> "TextData":
        """Return the section with the defaults of all fields that do not change the training examples."""
        return self.model_copy(update={"on_bad_line": "refuse", "max_bad_lines": DEFAULT_BAD_LINES})


class _EvaluationFiles(TextData):
    eval_path: Paths | None = None
    """Files with the examples for evaluation, read as the training examples are; those of a mixture as its first source
    is. Absent: no evaluation, unless `eval_sets` or `eval_fraction` is set."""
    eval_sets: Annotated[dict[EvaluationSetName, Paths], Field(max_length=MAX_EVALUATION_SETS)] = Field(
        default_factory=dict
    )
    """Files with several sets of examples for evaluation, by name, instead of `eval_path`. Each set has metrics of its
    own, such as `eval/loss/books` for the set `books`; `eval/loss` is the mean over all sets."""

    @property
    def evaluation_paths(self) -> dict[str, str | tuple[str, ...]]:
        """The files for evaluation by the fields that name them."""
        single = {} if self.eval_path is None else {"data.eval_path": self.eval_path}
        return single | {f"data.eval_sets.{name}": path for name, path in self.eval_sets.items()}

    def training_part(self) -> TextData:
        return super().training_part().model_copy(update={"eval_path": None, "eval_sets": {}})


class TextFiles(_EvaluationFiles, FileSource):
    """Files of texts, prompts with completions, or conversations."""

    @property
    def training_sources(self) -> dict[str, TextSource]:
        return {"data.path": self}

    @property
    def evaluation_sources(self) -> dict[str, TextSource]:
        return _read_like(self, self.evaluation_paths)

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        return tuple(self.eval_sets)


class TextMixture(_EvaluationFiles):
    """Several sources of texts, drawn from by their weights."""

    source: Literal["mixture"] = "mixture"
    sources: Annotated[tuple[MixtureSource, ...], Field(max_length=MAX_SOURCES)]
    """The sources. An epoch has as many rows as all of them together, of which each source contributes its share by
    weight, rounded to whole rows. A source that is smaller than its share repeats within an epoch; one that is larger
    continues in the next epoch where it stopped."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources, in their order."""
        return tuple(source.name or f"source_{number}" for number, source in enumerate(self.sources, 1))

    @property
    def training_sources(self) -> dict[str, TextSource]:
        return {f"data.sources.{index}.path": source for index, source in enumerate(self.sources)}

    @property
    def evaluation_sources(self) -> dict[str, TextSource]:
        return _read_like(self.sources[0], self.evaluation_paths) if self.sources else {}

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        return self.names if self.eval_fraction else tuple(self.eval_sets)


def _read_like(source: FileSource, paths: Mapping[str, str | tuple[str, ...]]) -> dict[str, TextSource]:
    return {
        field: FileSource(source=source.source, path=path, format=source.format, columns=source.columns)
        for field, path in paths.items()
    }


def text_data_problems(data: TextData) -> Iterator[Problem]:
    """Yield a problem for every conflict between the fields of the section."""
    if isinstance(data, _EvaluationFiles):
        if data.eval_path is not None and data.eval_sets:
            message = "cannot be combined with `data.eval_path`; name that file as one of the sets"
            yield Problem(param="data.eval_sets", message=message)
        for field in data.evaluation_paths if data.eval_fraction else ():
            yield Problem(param=field, message="cannot be combined with `data.eval_fraction`; remove one of them")
            break
    yield from _empty_lists(data)
    for field, source in data.training_sources.items():
        yield from _column_problems(field.rpartition(".")[0], source)
    if isinstance(data, TextMixture):
        for index, name in enumerate(data.names):
            if name in data.names[:index]:
                message = f"is `{name}`, which is the name of another source too"
                yield Problem(param=f"data.sources.{index}.name", message=message)


def _empty_lists(data: TextData) -> Iterator[Problem]:
    # By pydantic, a list would also be too short if all of its items are invalid.
    if isinstance(data, TextMixture) and not data.sources:
        yield Problem(param="data.sources", message="must have at least one source")
        return
    for field, source in {**data.training_sources, **data.evaluation_sources}.items():
        if isinstance(source, FileSource) and not source.path:
            yield Problem(param=field, message="must have at least one path")


def _column_problems(section: str, source: TextSource) -> Iterator[Problem]:
    formats = FORMAT_FIELDS if source.format == "auto" else {source.format: FORMAT_FIELDS[source.format]}
    known = list(dict.fromkeys(field for fields in formats.values() for field in fields))
    for field in source.columns:
        if field not in known:
            names = ", ".join(f"`{name}`" for name in known)
            message = f"is no field of format `{source.format}`; it has {names}"
            yield Problem(param=f"{section}.columns.{field}", message=message)


def paths_of(data: TextData) -> Iterator[tuple[str, str]]:
    """Yield every path or pattern of the section, with the field that names it."""
    for field, source in {**data.training_sources, **data.evaluation_sources}.items():
        if isinstance(source, FileSource):
            several = not isinstance(source.path, str)
            for index, path in enumerate(listed_paths(source.path)):
                yield (f"{field}.{index}" if several else field), path
