"""Whether a checkpoint is of the model that is to go on from it."""

from collections.abc import Iterable, Mapping
from typing import Any

from trainyard.contract.layout import CheckpointLayout
from worker.core.errors import RefusedError

Shapes = Mapping[str, tuple[int, ...]]

_MODEL = "model."
_SHOWN = 5
_HINT = (
    "The model and what is trained (model, lora_rank, lora.targets, trainable) must stay what they were. "
    "To change them, start a new job."
)


def check_same_model(checkpoint: CheckpointLayout, state: Mapping[str, Any]) -> None:
    """Compare names and shapes before anything is loaded.

    Raises:
        RefusedError: naming what differs.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    metadata = FileSystemReader(checkpoint.root).read_metadata().state_dict_metadata
    saved = {name: tuple(getattr(entry, "size", ())) for name, entry in metadata.items()}
    found = {name.removeprefix(_MODEL): shape for name, shape in saved.items() if name.startswith(_MODEL)}
    wanted = {name: tuple(getattr(tensor, "shape", ())) for name, tensor in state["model"].items()}
    if problem := difference(found, wanted):
        raise RefusedError(f"the checkpoint of step {checkpoint.step} is of another model: {problem}", _HINT)


def difference(saved: Shapes, wanted: Shapes) -> str | None:
    """What differs, in words; None where nothing does."""
    shared = saved.keys() & wanted.keys()
    shapes = [f"{name} ({saved[name]} and not {wanted[name]})" for name in shared if saved[name] != wanted[name]]
    parts = (
        ("it lacks", wanted.keys() - saved.keys()),
        ("it has", saved.keys() - wanted.keys()),
        ("of other shapes are", shapes),
    )
    return "; ".join(f"{what} {_some(names)}" for what, names in parts if names) or None


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more
