"""The operations of the helper. Each runs as the owner of a job, so a link that the owner planted leads no further
than the owner's own rights."""

import json
import os
import pkgutil
import stat
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from service.as_owner.links import link_checkpoint
from service.as_owner.removal import remove
from trainyard.contract.layout import AttemptLayout, write_atomic

Request = Mapping[str, Any]
_SBATCH_LEAD_SECONDS = 5.0
"""How long before the deadline of its request the helper ends sbatch."""
_MAX_OUTPUT = 1024 * 1024
"""Bytes of a command's output in an answer."""


def open_run_folder(request: Request) -> Path:
    """Make the run folder unless it exists, and return it.

    Raises:
        PermissionError: something of another account is in its place.
    """
    run = Path(request["runs"]) / _name(request["job"])
    try:
        # The folder above it has the setgid bit, so it gets the service's group.
        run.mkdir(mode=0o750)
    except FileExistsError:
        status = run.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise PermissionError(
                f"{run} belongs to uid {status.st_uid} and not to this account; an administrator must remove it"
            ) from None
    return run


def write(request: Request) -> dict[str, Any]:
    """Make `folders` and write `files` (path, mode, content), both relative to the run folder and in this order."""
    run = open_run_folder(request)
    for path in request["folders"]:
        (run / _relative(path)).mkdir(mode=0o750, parents=True, exist_ok=True)
    for path, mode, content in request["files"]:
        write_atomic(run / _relative(path), str(content), mode=int(mode) & 0o660)
    return {}


def link(request: Request) -> dict[str, Any]:
    """Link the files of `source`, relative to the folder of the runs, to `target` in the run folder."""
    run = open_run_folder(request)
    target = run / _relative(request["target"])
    target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    try:
        link_checkpoint(run.parent / _relative(request["source"]), target)
    except FileNotFoundError:
        return {"missing": True}
    return {}


def submit(request: Request) -> dict[str, Any]:
    """Submit an attempt by the function that the request names, and return its result.

    The scheduler's adapter names its own function, so that this package does not import the adapter.
    """
    folder = AttemptLayout(Path(request["folder"]))
    _log_to(folder.submitit)
    os.chdir(folder.root)
    os.environ.clear()
    os.environ.update(request["environment"])
    limit = min(request["limit_seconds"], request["deadline"] - time.monotonic() - _SBATCH_LEAD_SECONDS)
    result: dict[str, Any] = pkgutil.resolve_name(request["submitter"])({**request, "limit_seconds": limit})
    return result


def start(request: Request) -> dict[str, Any]:
    """Start an entry of the local queue, and return the output of its submitter."""
    folder = AttemptLayout(Path(request["folder"]))
    _log_to(folder.submitit)
    done = subprocess.run(
        [request["python"], "-m", request["module"]],
        input=json.dumps(request["entry"]).encode(),
        stdout=subprocess.PIPE,
        env=request["environment"],
        cwd=folder.root,
        start_new_session=True,
        check=False,
    )
    return {"returncode": done.returncode, "stdout": done.stdout[:_MAX_OUTPUT].decode(errors="replace")}


def run_command(request: Request) -> dict[str, Any]:
    """Run a command, such as scancel, with `text` as its input, and return its output."""
    done = subprocess.run(
        request["command"],
        env=request["environment"],
        input=request.get("text", "").encode(),
        capture_output=True,
        check=False,
    )
    stdout, stderr = (text[:_MAX_OUTPUT].decode(errors="replace") for text in (done.stdout, done.stderr))
    return {"returncode": done.returncode, "stdout": stdout, "stderr": stderr}


def remove_paths(request: Request) -> dict[str, Any]:
    """Remove paths below the run folder; `.` stands for the folder itself. See `remove`."""
    run = Path(request["runs"]) / _name(request["job"])
    paths = [None if path == "." else _relative(path) for path in request["paths"]]
    return {"left": remove(run, paths, until=request["deadline"] - 2.0)}


def _log_to(folder: Path) -> None:
    """Send standard output and error to the log of the submission."""
    folder.mkdir(exist_ok=True)
    log = os.open(folder / "submit.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o640)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)


def _name(text: str) -> str:
    """Raises ValueError: it is not the name of a single folder."""
    if not text or text in (".", "..") or "/" in text:
        raise ValueError(f"{text!r} is not the name of a folder")
    return text


def _relative(text: str) -> PurePosixPath:
    """Raises ValueError: the path does not lead below its folder."""
    path = PurePosixPath(text)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{text!r} is not a path below the run folder")
    return path


OPERATIONS: dict[str, Callable[[Request], dict[str, Any]]] = {
    "write": write,
    "link": link,
    "submit": submit,
    "start": start,
    "command": run_command,
    "remove": remove_paths,
}
