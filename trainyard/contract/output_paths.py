"""The files and folders in a program's working directory that its next attempt gets, and that are artifacts."""

from collections.abc import Iterable
from pathlib import PurePosixPath

OUTPUT_ARTIFACTS = "output"
"""The name in a job's artifacts below which they are listed."""

USUAL_OUTPUT = (
    "checkpoints",
    "lightning_logs",
    "logs",
    "multirun",
    "out",
    "output",
    "outputs",
    "results",
    "runs",
    "trainer_output",
    "wandb",
)
"""Folders into which common programs and libraries write by default."""

_CHECKPOINTS = frozenset(
    {".bin", ".ckpt", ".h5", ".joblib", ".keras", ".msgpack", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".pth"}
    | {".safetensors", ".distcp", ".tar"}
)


def output_paths(keep: Iterable[str], folder: str = "") -> tuple[str, ...]:
    """Return the paths that a spec names and the usual paths, without paths below another of them.

    Args:
        folder: The folder in which the program starts, which has these paths. The root of the code has the usual ones
            too.
    """
    paths = sorted({*named_paths((*keep, *USUAL_OUTPUT), folder), *USUAL_OUTPUT})
    return tuple(path for path in paths if not is_output(path, (other for other in paths if other != path)))


def named_paths(keep: Iterable[str], folder: str) -> list[str]:
    """Return paths in the folder in which the program starts, relative to the root of the code."""
    return [f"{folder}/{path}" if folder else path for path in keep]


def is_output(path: str, paths: Iterable[str]) -> bool:
    """Return whether a path in the working directory is one of `paths` or below any of them."""
    return any(path == one or path.startswith(f"{one}/") for one in paths)


def is_checkpoint_file(name: str) -> bool:
    """Return whether a file holds parameters or a state, by its name. Logs, which grow between checkpoints, do not."""
    return PurePosixPath(name).suffix in _CHECKPOINTS
