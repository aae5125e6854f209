"""Finds the class of each output of a continued adapter's head; peft stores the head without names."""

import json
from collections.abc import Sequence
from pathlib import Path

from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.wire.exported import CLASSES
from worker.core.errors import RefusedError
from worker.data.data_files import opened_path


def known_classes(base: tuple[str, ...], adapter: str | None, roots: AllowedRoots) -> tuple[str, ...]:
    """Return the names of the classes that a model has, in the order of its outputs.

    Args:
        base: The classes of the base model; empty if it has none.
        adapter: The folder of the adapter that is continued, whose `classes.json` names the outputs of its head.

    Raises:
        RefusedError: The file cannot be read.
    """
    if adapter is None or not (Path(adapter) / CLASSES).is_file():
        return base
    with opened_path("lora.adapter", str(Path(adapter) / CLASSES), roots) as file:
        try:
            names = json.load(file)
        except (ValueError, RecursionError):
            names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RefusedError(f"lora.adapter: {adapter} has a {CLASSES} that is no JSON list of names")
    return tuple(names)


def check_classes(adapter: str | None, known: Sequence[str], classes: Sequence[str]) -> None:
    """Compare the classes of the data with the classes of a continued adapter.

    Args:
        known: The result of `known_classes`.
        classes: The classes of the data, in their order.

    Raises:
        RefusedError: An output may be for another class.
    """
    # Classes that are numbers always have the same order.
    numbers = [str(number) for number in range(len(classes))]
    if adapter is None or list(classes) in (list(known), numbers):
        return
    raise RefusedError(
        f"lora.adapter: the head of {adapter} is not known to have the {len(classes)} classes of the data in order",
        f"Write the names of its outputs, in their order, to {CLASSES} in that folder, as a JSON list.",
    )
