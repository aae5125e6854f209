"""A job's artifacts by the paths that its program gave to MLflow."""

import re
from collections.abc import Sequence
from pathlib import Path

from service.checkpoints.safe_files import list_files
from service.core.untrusted_files import UntrustedFiles
from service.plugins.mlflow.schemas import Document
from trainyard.contract.wire.files import FileResource

_OF_RUN = re.compile(r"mlflow/[^/]+/[^/]+/artifacts/(?P<path>.+)", re.DOTALL)
"""Where the launcher stores a program's logged files: `mlflow/<experiment>/<run>/artifacts/<path>`."""


def list_folder(files: UntrustedFiles, root: Path, folder: str) -> Document:
    """Return the direct entries of a folder; nothing if it is a file or does not exist.

    Args:
        root: The job's folder of artifacts.
        folder: Its path as MLflow's client knows it; empty: the root.
    """
    prefix = f"{folder}/" if folder else ""
    children: dict[str, Document] = {}
    for path, file in _by_logged_path(list_files(files, root, hidden=False)).items():
        if path.startswith(prefix):
            name, slash, _ = path[len(prefix) :].partition("/")
            child: Document = {"path": name, "is_dir": True}
            children[name] = child if slash else {"path": name, "is_dir": False, "file_size": file.size_bytes}
    return {"files": [children[name] for name in sorted(children)]}


def stored_path(files: UntrustedFiles, root: Path, path: str) -> str:
    """Return where a file is below the job's folder of artifacts, by its path as MLflow's client knows it."""
    file = _by_logged_path(list_files(files, root, hidden=False)).get(path)
    return path if file is None else file.path


def _by_logged_path(listed: Sequence[FileResource]) -> dict[str, FileResource]:
    """Return the files by the path that the program gave to MLflow; others by their own.

    A program that resumes logs to a new run, and its files replace the earlier files. So the newest file is shown.
    """
    logged: dict[str, FileResource] = {}
    for file in sorted(listed, key=lambda file: (_OF_RUN.fullmatch(file.path) is not None, file.modified_at)):
        match = _OF_RUN.fullmatch(file.path)
        logged[match["path"] if match else file.path] = file
    return logged
