"""Parameters, tags and notes from trackers. Pure functions."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from trainyard.contract.base import sanitize
from trainyard.contract.wire.reports import MAX_PARAMETER_TEXT

_MAX_DEPTH = 8
"""Levels of nested parameters; deeper values are stored as JSON."""
_TRAINER_NAMES = {"per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs"}


def trainer_steps(parameters: Mapping[str, Any]) -> int | None:
    """Return the length of the run in the arguments of Hugging Face's Trainer; None if they do not have it.

    Programs give `max_steps` other meanings, such as an episode's length, so it needs the Trainer's names beside it.
    """
    steps = str(parameters.get("max_steps"))
    is_trainer = parameters.keys() >= _TRAINER_NAMES
    return int(steps) if is_trainer and re.fullmatch(r"[1-9]\d{0,14}", steps) else None


def stored_text(value: object) -> str:
    """Return the text to store: without characters that databases refuse, and cut."""
    return str(sanitize(str(value)))[:MAX_PARAMETER_TEXT]


def leaves_of(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterable[tuple[tuple[str, ...], Any]]:
    """Yield the scalars of nested mappings with the keys that lead to them."""
    for key, value in values.items():
        path = (*above, str(key))
        if isinstance(value, Mapping) and value and len(path) <= _MAX_DEPTH:
            yield from leaves_of(value, path)
        elif isinstance(value, bool | int | float) or value is None:
            yield path, value
        else:
            yield path, stored_text(value if isinstance(value, str) else json.dumps(value, default=str))
