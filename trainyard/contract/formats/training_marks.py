"""Fields of messages that state whether they are learned: `weight` of OpenAI, `train` of axolotl, `loss` of
ms-swift."""

from collections.abc import Mapping
from typing import Any

from trainyard.contract.formats.records import BadRecordError

MARKS = {"weight": "0 or 1", "train": "true or false", "loss": "true or false"}
"""The fields, and the values that they may have, for messages. Chat templates do not get them."""
DETAILS = "train_detail"
"""Parts of a message that are learned, which no encoder here supports."""
REMEDY = "Remove the field, or that line."


def training_mark(message: Mapping[str, Any], role: str, name: str) -> bool | None:
    """Return whether a message is learned according to its own fields; None if it has none of them.

    Args:
        role: Its role for chat templates.
        name: Its position in words, such as `message 2`.

    Raises:
        BadRecordError: The fields have other values, contradict each other, or request something unsupported.
    """
    stated: dict[str, bool] = {}
    for field, values in MARKS.items():
        value = message.get(field)
        if value is None:
            continue
        # Tables have whole numbers and truth values as fractions too.
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            raise BadRecordError(f"has a `{field}` of {name} that is not {values}")
        stated[field] = value == 1
    if message.get(DETAILS):
        raise BadRecordError(f"has a `{DETAILS}` of {name}; only whole messages can be learned or left out", REMEDY)
    if len(set(stated.values())) > 1:
        fields = " and a ".join(f"`{field}`" for field in stated)
        raise BadRecordError(f"has a {fields} of {name} that contradict each other")
    if role != "assistant" and True in stated.values():
        raise BadRecordError(
            f"asks by `{next(iter(stated))}` to learn {name}, which is of the role `{role}`; only messages of the "
            "assistant are learned",
            REMEDY,
        )
    return next(iter(stated.values()), None)


def left_out_text(message: Mapping[str, Any]) -> str:
    """Return by which field a message is left out, for messages."""
    if message.get("weight") is not None:
        return "weight 0"
    return "`train: false`" if message.get("train") is not None else "`loss: false`"
