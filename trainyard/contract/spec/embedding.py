"""The section of a training spec for models that embed texts."""

from typing import Annotated, Literal

from pydantic import Field

from trainyard.contract.base import PositiveFloat, Strict

MAX_GROUP = 4096


class Embedding(Strict):
    """How task `text_embedding` makes vectors of texts, and compares them."""

    pooling: Literal["mean", "first", "last"] = "mean"
    """The vector of a text: the mean over its tokens, or the first (CLS) or last token; scaled to length 1."""
    temperature: PositiveFloat = 0.05
    """Divisor of the cosine similarities in the loss."""
    group_size: Annotated[int, Field(ge=2, le=MAX_GROUP, strict=True)] = 8
    """Pairs that are compared with each other, drawn anew in each epoch: the positives of the others are the negatives
    of an anchor. `batch` counts groups."""
