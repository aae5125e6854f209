"""Stores what a program logs to W&B that is neither a number nor a file: histograms."""

from typing import Any

from worker.trackers.artifacts import ArtifactFolder, ArtifactsFullError, file_part
from worker.trackers.journal import Journal


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
    try:
        artifacts.append_line(f"{folder}/histograms/{file_part(name)}.jsonl", line)
    except ArtifactsFullError as error:
        journal.state_once(execution, "artifacts", f"a histogram is left out: {error.message}")
