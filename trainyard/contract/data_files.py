"""Uploaded data files: their limits, and where the service and the workers find them."""

from pathlib import Path

MAX_SINGLE_UPLOAD_BYTES = 64 * 1024 * 1024
"""Size up to which one request can upload a file, and of each part of a larger one."""
MAX_OPENAI_FILE_BYTES = 512 * 1024 * 1024
"""Size of a file that a client of OpenAI's API uploads, as there: its client sends it in one request."""
MAX_LINE_BYTES = 4 * 1024 * 1024
"""Size of one line of a file."""


def data_file(runs: Path, digest: str) -> Path:
    """Return the path of a file's content: below the runs directory, which all nodes share."""
    return runs / "files" / f"{digest.removeprefix('sha256:')}.jsonl"


def partial_file(runs: Path, upload_id: str) -> Path:
    """Return the path of what was received of a file."""
    return runs / "files" / f".{upload_id}"
