"""Input and outputs of a builtin model that reads no text; a part of its export."""

from typing import Annotated, Literal

from pydantic import Field

from trainyard.contract.base import Float, PositiveInt, Resource


class ImageInput(Resource):
    """Images as the data set has them; a model gets them divided by `high`."""

    kind: Literal["image"] = "image"
    channels: PositiveInt
    height: PositiveInt
    width: PositiveInt
    high: Float
    """The largest value of a pixel in the data set, where the smallest is 0. The model was trained on 0 to 1."""
    classes: tuple[str, ...]
    """Names of the first outputs. The model may have more, which it was not trained to use."""


class VectorInput(Resource):
    """Vectors of numbers, which a model gets unchanged."""

    kind: Literal["vector"] = "vector"
    size: PositiveInt
    outputs: PositiveInt


ModelInput = Annotated[ImageInput | VectorInput, Field(discriminator="kind")]

DIGITS = ImageInput(channels=1, height=8, width=8, high=16.0, classes=tuple("0123456789"))
"""scikit-learn's handwritten digits."""
