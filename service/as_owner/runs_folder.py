"""The folder of all runs where jobs run as their owners: each makes a run folder there, and enters no other's."""

import os
import stat
from pathlib import Path

import structlog

from service.core.errors import ServiceError
from trainyard.contract.layout import DATA_CACHE

MODE = 0o3733
"""Anybody makes entries, which get the service's group; nobody lists them, or removes or renames others' entries."""

OWN_FOLDERS = {"code": 0o711, "files": 0o711, DATA_CACHE: 0o1733, ".trash": 0o700}
"""The service's folders among the runs, with their modes. Whoever knows the digest of uploaded code, or of a data file,
can read it. In the cache, each account makes a folder of its own, which no other can write."""

log = structlog.get_logger("service")


def prepare_runs_folder(runs: Path, state: Path) -> None:
    """Make the folder of the runs unless it exists, and check that owners of jobs can use it and cannot misuse it.

    Args:
        state: The service's own folder.

    Raises:
        ServiceError: the message states the remedy.
    """
    if runs.is_relative_to(state):
        raise ServiceError(
            f"TRAINYARD_RUN_AS=owner needs a TRAINYARD_RUNS_DIR outside of TRAINYARD_STATE_DIR ({state}), which only "
            "the service can enter"
        )
    if not runs.parent.is_dir():
        raise ServiceError(f"TRAINYARD_RUNS_DIR={runs}: {runs.parent} does not exist; users must be able to enter it")
    runs.mkdir(exist_ok=True)
    status = runs.lstat()
    if not is_usable(status):
        if not stat.S_ISDIR(status.st_mode) or not _is_ours(status) or any(runs.iterdir()):
            remedy = f"chown {os.getuid()}:{os.getegid()} {runs}; chmod {MODE:o} {runs}"
            raise ServiceError(
                f"TRAINYARD_RUNS_DIR={runs}: where jobs run as their owners, it must be a folder of the service's "
                f"account and group with mode {MODE:o}: {remedy}"
            )
        runs.chmod(MODE)
    for name, mode in OWN_FOLDERS.items():
        _prepare_own_folder(runs / name, mode)


def _prepare_own_folder(folder: Path, mode: int) -> None:
    """Make a folder of the service among the runs, before anybody else makes it.

    Raises:
        ServiceError: it is a link or belongs to another account.
    """
    folder.mkdir(exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ServiceError(f"{folder} belongs to uid {status.st_uid}, and the service needs the name: rm -r {folder}")
    folder.chmod(mode)


def is_usable(status: os.stat_result) -> bool:
    """Return whether a folder has the owner, the group and the mode that the runs of several accounts need."""
    return stat.S_ISDIR(status.st_mode) and _is_ours(status) and stat.S_IMODE(status.st_mode) == MODE


def closed_parents(runs: Path) -> list[Path]:
    """Return the folders on the way to the runs that others cannot enter, unless an access control list lets them."""
    return [folder for folder in runs.parents if not folder.stat().st_mode & stat.S_IXOTH]


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and status.st_gid in (os.getegid(), *os.getgroups())
