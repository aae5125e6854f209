"""The section of a training spec that names images: folders of classes, and Parquet files."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trainyard.contract.base import Float, PositiveInt, Strict
from trainyard.contract.problems import Problem
from trainyard.contract.spec.text_sources import ColumnName, Paths, listed_paths

COLUMNS = ("image", "label")
"""The fields of a row of a Parquet file, by which `columns` names them."""
DEFAULT_BAD_IMAGES = 100


class ImageFiles(Strict):
    """Images with a class each."""

    source: Literal["images"] = "images"
    path: Paths
    """A folder with a subfolder for each class, whose files are the images; Parquet files by name or glob pattern, with
    a column of images as `datasets` writes them and one of labels; or a list of these, below the service's allowed
    roots. Images are ordered by class and name, rows as in their files."""
    eval_path: Paths | None = None
    """The same with the images for evaluation. Absent: no evaluation, unless `eval_fraction` is set."""
    eval_fraction: Annotated[Float, Field(ge=0, lt=1)] = 0.0
    """Fraction of the images held out for evaluation, chosen by their number alone. 0: none."""
    columns: Annotated[dict[ColumnName, ColumnName], Field(max_length=16)] = Field(default_factory=dict)
    """The names of the columns of Parquet files by the fields `image` and `label`, where they differ:
    `{image: picture}`."""
    on_bad_line: Literal["refuse", "skip"] = "refuse"
    """What to do about files and rows that hold no image with a class: end the run with the name of the first, or
    `skip` them, which an event reports."""
    max_bad_lines: PositiveInt = DEFAULT_BAD_IMAGES
    """With `skip`: bad files or rows of `path`, and of `eval_path`, above which the run ends."""
    crop: Annotated[Float, Field(gt=0, le=1)] | None = None
    """Train on a random part of each image, of another shape in each epoch, that has at least this fraction of its
    area. Absent: on whole images, as the model's image processor makes them."""
    flip: bool = False
    """Mirror each image in training with a probability of one half."""
    shuffle: bool = True
    """Shuffle the images in each epoch, with an order derived from `seed`."""

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
    for field, paths in _path_fields(data):
        if not paths:
            yield Problem(param=field, message="must have at least one path")
    for name in data.columns:
        if name not in COLUMNS:
            known = " and ".join(f"`{one}`" for one in COLUMNS)
            yield Problem(param=f"data.columns.{name}", message=f"is no field of images, which have {known}")


def image_paths(data: ImageFiles) -> Iterator[tuple[str, str]]:
    """Yield every path or pattern of the section, with the field that names it."""
    for field, paths in _path_fields(data):
        several = not isinstance(paths, str)
        for index, path in enumerate(listed_paths(paths)):
            yield (f"{field}.{index}" if several else field), path


def _path_fields(data: ImageFiles) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    yield "data.path", data.path
    if data.eval_path is not None:
        yield "data.eval_path", data.eval_path
