"""Stores what a program logs to W&B that is neither a number nor a file: histograms."""

import re
from typing import Any

from worker.trackers.artifacts import ArtifactFolder, ArtifactsFullError
from worker.trackers.journal import Journal

_NOT_IN_FILE_NAME = re.compile(r"[^A-Za-z0-9_.\-]")
_MAX_FILE_NAME = 200


def store_object(
    artifacts: ArtifactFolder,
    folder: str,
    execution: int,
    journal: Journal,
    logged: tuple[str, int | None, dict[str, Any]],
) -> None:
    """Append a histogram to the file of its name. Anything else is left out, which an event of the job states once.

    Args:
        folder: The run's folder of artifacts.
        logged: The name, the step and the value.

    Raises:
        OSError: It could not be written.
    """
    name, step, value = logged
    kind = str(value.get("_type"))[:80]
    if kind != "histogram":
        message = f"W&B's {kind!a} is not stored by Trainyard; such values, as that of {name[:80]!a}, are left out"
        journal.state_once(execution, f"wandb_type_{kind[:40]}", message)
        return
    line = {"name": name, "step": step, "bins": value.get("bins"), "values": value.get("values")}
    file = _NOT_IN_FILE_NAME.sub("_", name).lstrip(".")[:_MAX_FILE_NAME] or "_"
    try:
        artifacts.append_line(f"{folder}/histograms/{file}.jsonl", line)
    except ArtifactsFullError as error:
        journal.state_once(execution, "artifacts", f"a histogram is left out: {error.message}")
