"""The sections of a training spec that name texts and conversations: files, uploads, and mixtures of sources."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trainyard.contract.base import Float, PositiveInt, Strict
from trainyard.contract.problems import Problem
from trainyard.contract.spec.text_sources import (
    FORMAT_FIELDS,
    AnyMixtureSource,
    EvaluationSet,
    EvaluationSetName,
    FileDigest,
    FileId,
    FileSource,
    Paths,
    TextSource,
    UploadedSource,
    listed_paths,
)

MAX_EVALUATION_SETS = 16
MAX_SOURCES = 64
DEFAULT_BAD_LINES = 100


class TextData(Strict):
    """The options of all sources of texts. Each kind of source is a subclass, which states the location of the
    examples."""

    on_bad_line: Literal["refuse", "skip"] = "refuse"
    """Handling of lines and rows that hold no example: `refuse` ends the run with the number of the first; `skip` skips
    them, and an event reports them."""
    max_bad_lines: PositiveInt = DEFAULT_BAD_LINES
    """With `skip`: number of bad lines of a source above which the run ends."""
    eval_fraction: Annotated[Float, Field(ge=0, lt=1)] = 0.0
    """Fraction of the examples of each source held out for evaluation, chosen by their number alone. A mixture then has
    an evaluation set for each source. 0: none."""
    packing: bool = True
    """Pack several examples into a row, without attention between them. `batch` counts rows. Preferences are never
    packed."""
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
        """The sources of the examples for evaluation by the fields that name them; `eval_fraction` adds none."""
        raise NotImplementedError

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """The names of the evaluation sets; empty if there is none, or a single set without a name."""
        raise NotImplementedError

    @property
    def described_sources(self) -> dict[str, TextSource]:
        """The sources with their own format and columns, by their sections."""
        return {field.rpartition(".")[0]: source for field, source in self.training_sources.items()}

    @property
    def has_evaluation(self) -> bool:
        """Whether any example is for evaluation."""
        return self.eval_fraction > 0 or bool(self.evaluation_sources)

    def training_part(self) -> "TextData":
        """Return the section with the defaults of all fields that do not change the training examples."""
        return self.model_copy(update={"on_bad_line": "refuse", "max_bad_lines": DEFAULT_BAD_LINES})


class _EvaluationSets(TextData):
    eval_sets: Annotated[dict[EvaluationSetName, EvaluationSet], Field(max_length=MAX_EVALUATION_SETS)] = Field(
        default_factory=dict
    )
    """Several sets of examples for evaluation, by name: paths, which are read like the training examples, or a source
    with its own format, such as `{source: file, id: file_...}`. Each set has its own metrics, such as `eval/loss/books`
    for the set `books`; `eval/loss` is the mean over all sets."""

    @property
    def evaluation_sources(self) -> dict[str, TextSource]:
        sets = {f"data.eval_sets.{name}": self._read_alike(given) for name, given in self.eval_sets.items()}
        return self._single_evaluation() | sets

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        return tuple(self.eval_sets)

    @property
    def described_sources(self) -> dict[str, TextSource]:
        named = {f"data.eval_sets.{name}": given for name, given in self.eval_sets.items()}
        return super().described_sources | {
            section: given for section, given in named.items() if isinstance(given, TextSource)
        }

    def _single_evaluation(self) -> dict[str, TextSource]:
        """Return the source of the only evaluation set, which has no name, by its field."""
        raise NotImplementedError

    def _read_alike(self, given: EvaluationSet) -> TextSource:
        """Return a set as a source: paths are read like the first source of the training examples."""
        if isinstance(given, TextSource):
            return given
        first = next(iter(self.training_sources.values()), FileSource(path=given))
        kind = first.source if isinstance(first, FileSource) else "jsonl"
        return FileSource(source=kind, path=given, format=first.format, columns=first.columns)

    def training_part(self) -> TextData:
        return super().training_part().model_copy(update={"eval_sets": {}})


class _EvaluationFiles(_EvaluationSets):
    eval_path: Paths | None = None
    """Files with the examples for evaluation, read like the training examples; with a mixture, like its first source.
    Absent: no evaluation, unless `eval_sets` or `eval_fraction` is set."""

    def _single_evaluation(self) -> dict[str, TextSource]:
        return {} if self.eval_path is None else {"data.eval_path": self._read_alike(self.eval_path)}

    def training_part(self) -> TextData:
        return super().training_part().model_copy(update={"eval_path": None})


class TextFiles(_EvaluationFiles, FileSource):
    """Files of texts, prompts with completions, or conversations."""

    @property
    def training_sources(self) -> dict[str, TextSource]:
        return {"data.path": self}


class UploadedFiles(_EvaluationSets, UploadedSource):
    """JSONL files that were uploaded (`trainyard files upload`, `POST /v1/files`)."""

    eval_id: FileId | None = None
    """The file with the examples for evaluation, read like the training examples. Absent: no evaluation, unless
    `eval_sets` or `eval_fraction` is set."""
    eval_digest: FileDigest | None = None
    """SHA-256 of its content. Absent: set at submission."""

    @property
    def training_sources(self) -> dict[str, TextSource]:
        return {"data.id": self}

    def _single_evaluation(self) -> dict[str, TextSource]:
        if self.eval_id is None:
            return {}
        source = UploadedSource(id=self.eval_id, digest=self.eval_digest, format=self.format, columns=self.columns)
        return {"data.eval_id": source}

    def training_part(self) -> TextData:
        """Return the section with the same values for the same training examples: the id of a file does not matter."""
        update = {"eval_id": None, "eval_digest": None} | ({"id": ""} if self.digest else {})
        return super().training_part().model_copy(update=update)


class TextMixture(_EvaluationFiles):
    """Several sources of texts, drawn from by their weights."""

    source: Literal["mixture"] = "mixture"
    sources: Annotated[tuple[AnyMixtureSource, ...], Field(max_length=MAX_SOURCES)]
    """The sources. An epoch has as many rows as all of them together, of which each source contributes its share by
    weight, rounded to whole rows. A source that is smaller than its share repeats within an epoch; a larger source
    continues in the next epoch where it stopped."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources, in their order."""
        return tuple(source.name or f"source_{number}" for number, source in enumerate(self.sources, 1))

    @property
    def training_sources(self) -> dict[str, TextSource]:
        fields = ("id" if isinstance(source, UploadedSource) else "path" for source in self.sources)
        return {
            f"data.sources.{index}.{field}": source
            for index, (field, source) in enumerate(zip(fields, self.sources, strict=True))
        }

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        return self.names if self.eval_fraction else super().evaluation_sets

    def training_part(self) -> TextData:
        sources = tuple(
            source.model_copy(update={"id": ""}) if isinstance(source, UploadedSource) and source.digest else source
            for source in self.sources
        )
        return super().training_part().model_copy(update={"sources": sources})


def evaluation_set(field: str) -> str:
    """Return the name of the evaluation set that a field of the section names; empty for a set without a name."""
    return field.removeprefix("data.eval_sets.") if field.startswith("data.eval_sets.") else ""


def text_data_problems(data: TextData) -> Iterator[Problem]:
    """Yield a problem for every conflict between the fields of the section."""
    single = [field for field in data.evaluation_sources if not field.startswith("data.eval_sets.")]
    if single and data.evaluation_sets and not data.eval_fraction:
        message = f"cannot be combined with `{single[0]}`; name that file as one of the sets"
        yield Problem(param="data.eval_sets", message=message)
    for field in data.evaluation_sources if data.eval_fraction else ():
        yield Problem(param=field, message="cannot be combined with `data.eval_fraction`; remove one of them")
        break
    yield from _empty_lists(data)
    for section, source in data.described_sources.items():
        yield from _column_problems(section, source)
    if isinstance(data, TextMixture):
        for index, name in enumerate(data.names):
            if name in data.names[:index]:
                message = f"is `{name}`, which is the name of another source too"
                yield Problem(param=f"data.sources.{index}.name", message=message)


def _empty_lists(data: TextData) -> Iterator[Problem]:
    # Pydantic would call a list too short if all of its items are invalid.
    if isinstance(data, TextMixture) and not data.sources:
        yield Problem(param="data.sources", message="must have at least one source")
        return
    for field, source in _fields_of(data):
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
    for field, source in _fields_of(data):
        if isinstance(source, FileSource):
            several = not isinstance(source.path, str)
            for index, path in enumerate(listed_paths(source.path)):
                yield (f"{field}.{index}" if several else field), path


def uploads_of(data: TextData) -> Iterator[tuple[str, UploadedSource]]:
    """Yield every uploaded file of the section, with the field of its id."""
    for field, source in _fields_of(data):
        if isinstance(source, UploadedSource):
            yield field, source


def _fields_of(data: TextData) -> Iterator[tuple[str, TextSource]]:
    """Yield every source with the field that states the location of its examples."""
    described = data.described_sources
    for field, source in {**data.training_sources, **data.evaluation_sources}.items():
        name = "id" if isinstance(source, UploadedSource) else "path"
        yield (f"{field}.{name}" if field in described else field), source
