"""Uploaded data files: their limits, and where the service and the workers find them."""

from pathlib import Path

MAX_SINGLE_UPLOAD_BYTES = 64 * 1024 * 1024
"""Maximum size of a file that a single request uploads, and of each part of a larger file."""
MAX_OPENAI_FILE_BYTES = 512 * 1024 * 1024
"""Maximum size of a file uploaded through OpenAI's API, same as at OpenAI: its client sends the file in one request."""
MAX_LINE_BYTES = 4 * 1024 * 1024
"""Maximum size of a line of a file."""


def data_file(runs: Path, digest: str) -> Path:
    """Return the path of a file's content: below the runs directory, which all nodes share."""
    return runs / "files" / f"{digest.removeprefix('sha256:')}.jsonl"


def partial_file(runs: Path, upload_id: str) -> Path:
    """Return the path of the bytes of a file that were received so far."""
    return runs / "files" / f".{upload_id}"
