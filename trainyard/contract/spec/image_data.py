"""The section of a training spec that names images: folders of classes, and Parquet files."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trainyard.contract.base import Float, PositiveInt, Strict
from trainyard.contract.problems import Problem
from trainyard.contract.spec.text_data import MAX_SOURCES
from trainyard.contract.spec.text_sources import ColumnName, Paths, Weighted, listed_paths

COLUMNS = ("image", "label")
"""The fields of a row of a Parquet file, by which `columns` names them."""
DEFAULT_BAD_IMAGES = 100


class ImageSource(Weighted):
    """Images as a source among several, which are drawn from by their weights."""

    path: Paths
    """Folders or Parquet files, as in `path` of [ImageFiles](#imagefiles)."""
    columns: Annotated[dict[ColumnName, ColumnName], Field(max_length=16)] = Field(default_factory=dict)
    """The names of the columns of its Parquet files by the fields `image` and `label`, where they differ."""


class ImageFiles(Strict):
    """Images with a class each."""

    source: Literal["images"] = "images"
    path: Paths | None = None
    """Required without `sources`. A folder with a subfolder for each class, whose files are the images; Parquet files
    by name or glob pattern, or folders saved by `datasets.save_to_disk`, with a column of images as `datasets` writes
    them and a column of labels; or a list of these, below the service's allowed roots. Images are ordered by class and
    name, rows as in their files."""
    sources: Annotated[tuple[ImageSource, ...], Field(max_length=MAX_SOURCES)] = ()
    """Several sources instead of `path`, drawn from by their weights, like a [mixture](#textmixture) of texts."""
    eval_path: Paths | None = None
    """The images for evaluation, given like `path` and read like the first source. Absent: no evaluation, unless
    `eval_fraction` is set."""
    eval_fraction: Annotated[Float, Field(ge=0, lt=1)] = 0.0
    """Fraction of the images of each source held out for evaluation, chosen by their number alone. Several sources have
    an evaluation set each. 0: none."""
    columns: Annotated[dict[ColumnName, ColumnName], Field(max_length=16)] = Field(default_factory=dict)
    """The names of the columns of Parquet files by the fields `image` and `label`, where they differ:
    `{image: picture}`."""
    on_bad_line: Literal["refuse", "skip"] = "refuse"
    """Handling of files and rows that hold no image with a class: `refuse` ends the run with the name of the first;
    `skip` skips them, and an event reports them."""
    max_bad_lines: PositiveInt = DEFAULT_BAD_IMAGES
    """With `skip`: bad files or rows of a source, and of `eval_path`, above which the run ends."""
    crop: Annotated[Float, Field(gt=0, le=1)] | None = None
    """Train on a random part of each image, with a new shape in each epoch, that has at least this fraction of the
    image's area. Absent: train on whole images, as the model's image processor makes them."""
    flip: bool = False
    """Mirror each training image with probability 0.5."""
    shuffle: bool = True
    """Shuffle the images in each epoch, with an order derived from `seed`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of `sources`, in their order."""
        return tuple(source.name or f"source_{number}" for number, source in enumerate(self.sources, 1))

    @property
    def training_sources(self) -> dict[str, ImageSource]:
        """The sources of the training images by the fields that name them."""
        single = () if self.path is None else (("data.path", ImageSource(path=self.path, columns=self.columns)),)
        return dict(single) | {f"data.sources.{index}.path": source for index, source in enumerate(self.sources)}

    @property
    def evaluation_sources(self) -> dict[str, ImageSource]:
        """The source of the images for evaluation by its field; `eval_fraction` adds none."""
        if self.eval_path is None:
            return {}
        columns = self.sources[0].columns if self.sources else self.columns
        return {"data.eval_path": ImageSource(path=self.eval_path, columns=columns)}

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """The names of the evaluation sets; empty if there is none, or a single set without a name."""
        return self.names if self.eval_fraction else ()

    @property
    def has_evaluation(self) -> bool:
        """Whether any image is for evaluation."""
        return self.eval_fraction > 0 or self.eval_path is not None

    @property
    def is_augmented(self) -> bool:
        """Whether an image differs from epoch to epoch."""
        return self.crop is not None or self.flip

    def training_part(self) -> "ImageFiles":
        """Return the section with the defaults of all fields that do not change the training images."""
        update = {"on_bad_line": "refuse", "max_bad_lines": DEFAULT_BAD_IMAGES, "eval_path": None}
        return self.model_copy(update=update)


def image_data_problems(data: ImageFiles) -> Iterator[Problem]:
    """Yield a problem for every conflict between the fields of the section."""
    if data.eval_path is not None and data.eval_fraction:
        message = "cannot be combined with `data.eval_fraction`; remove one of them"
        yield Problem(param="data.eval_path", message=message)
    if data.path is None and not data.sources:
        yield Problem(param="data.path", message="is required; name a folder or Parquet files, or set `data.sources`")
    if data.path is not None and data.sources:
        yield Problem(
            param="data.path", message="cannot be combined with `data.sources`; name it as one of the sources"
        )
    if data.columns and data.sources:
        yield Problem(param="data.columns", message="is for `data.path`; give the `columns` of each source to it")
    for index, name in enumerate(data.names):
        if name in data.names[:index]:
            message = f"is `{name}`, which is the name of another source too"
            yield Problem(param=f"data.sources.{index}.name", message=message)
    for field, source in {**data.training_sources, **data.evaluation_sources}.items():
        if not source.path:
            yield Problem(param=field, message="must have at least one path")
        if field != "data.eval_path":
            yield from _column_problems(field.rpartition(".")[0], source)


def _column_problems(section: str, source: ImageSource) -> Iterator[Problem]:
    for name in source.columns:
        if name not in COLUMNS:
            known = " and ".join(f"`{one}`" for one in COLUMNS)
            yield Problem(param=f"{section}.columns.{name}", message=f"is no field of images, which have {known}")


def image_paths(data: ImageFiles) -> Iterator[tuple[str, str]]:
    """Yield every path or pattern of the section, with the field that names it."""
    for field, source in {**data.training_sources, **data.evaluation_sources}.items():
        several = not isinstance(source.path, str)
        for index, path in enumerate(listed_paths(source.path)):
            yield (f"{field}.{index}" if several else field), path
