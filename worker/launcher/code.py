"""Unpacks the user's code for an attempt: the uploaded archive is checked and unpacked before any rank starts."""

import errno
import hashlib
import io
import logging
import os
import shutil
import tarfile
import time
from pathlib import Path, PurePosixPath

from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.spec.user_code import FOLDER_PROGRAM, MAX_CODE_BYTES, code_archive, runs_uploaded_file
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import ExitReason, FinishRecord
from worker.core.disk_space import DISK_ERRORS
from worker.core.program_output import enter_work, sees_work, take_output
from worker.launcher.exit_record import not_started, rejected

log = logging.getLogger(__name__)


_MAX_MEMBERS = 100_000
_MAX_NAME = 1024
_SHOWN_NAME = 100
_MAX_DEPTH = 64
_WORK_SECONDS = 120.0
"""Twice the default time for which NFS clients cache the attributes of a folder."""
_POLL_SECONDS = 0.2
_MALFORMED = (tarfile.TarError, ValueError, ArithmeticError, LookupError, RecursionError)
"""tarfile's errors for malformed headers; only the first is documented. Consecutive extended headers recurse."""
_NAME_ERRORS = frozenset({errno.EEXIST, errno.EILSEQ, errno.EINVAL, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR})
"""Errors of a filesystem that the names of an archive cause, in each attempt again. All others may pass."""


class CodeError(Exception):
    """The code cannot be used, for the reason in the message."""


class _Archive(io.BufferedReader):
    """An archive whose headers may state any size: Python allocates as many bytes as a read requests."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self._size = path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        rest = max(0, self._size - self.tell())
        return super().read(rest if size is None or size < 0 else min(size, rest))


def prepare_code(layout: AttemptLayout, launch: LaunchDocument, execution: int) -> FinishRecord | None:
    """Make the working directory, which all nodes see, from the spec's code and a program's output in earlier attempts.

    A launcher that the scheduler starts again for this attempt leaves the directory as the program left it.

    Returns:
        The exit record if this failed; it is already written.
    """
    is_script = launch.spec.task_kind.runs_program
    if is_script and layout.output.is_file():
        return _make_work(layout, launch.spec, execution)
    try:
        _unpack_code(layout, launch)
    except CodeError as error:
        log.error("the code cannot be used: %s", error)
        return rejected(layout, execution, str(error), type_="CodeError")
    except OSError as error:
        log.error("the code cannot be unpacked: %s", error)
        reason: ExitReason = "disk_full" if error.errno in DISK_ERRORS else "error"
        message = f"the code cannot be unpacked: {error}"
        return not_started(layout, execution, message, type_=type(error).__name__, reason=reason)
    return _make_work(layout, launch.spec, execution) if is_script else None


def _make_work(layout: AttemptLayout, spec: TrainingSpec, execution: int) -> FinishRecord | None:
    try:
        if not layout.output.is_file():
            take_output(layout, spec.keep, spec.start_folder)
        enter_work(layout)
    except OSError as error:
        message = f"the working directory of the attempt before cannot be moved: {error}"
        log.error("%s", message)
        return not_started(layout, execution, message, type_=type(error).__name__)
    return None


def await_work(layout: AttemptLayout) -> bool:
    """Wait, on every node, until the job's working directory belongs to this attempt; return False after a timeout."""
    deadline = time.monotonic() + _WORK_SECONDS
    while not sees_work(layout):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _unpack_code(layout: AttemptLayout, launch: LaunchDocument) -> None:
    spec = launch.spec
    if spec.code is None:
        layout.code.mkdir(exist_ok=True)
    else:
        runs = RunLayout(layout.root.parent.parent).root.parent
        unpack(code_archive(runs, spec.code), spec.code, layout.code)
    start = layout.code / spec.start_folder
    try:
        start.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise CodeError(f"`{spec.start_folder}`, in which the program starts, is a file of the uploaded code") from None
    argv = spec.argv
    if (
        spec.code is not None
        and argv
        and runs_uploaded_file(argv, runs_command=spec.runs_command)
        and not any((start / path).is_file() for path in (argv[0], f"{argv[0]}/{FOLDER_PROGRAM}"))
    ):
        folder = f"folder `{spec.start_folder}` of the uploaded code" if spec.start_folder else "uploaded folder"
        raise CodeError(f"there is no file `{argv[0]}` in the {folder}")


def unpack(archive: Path, digest: str, folder: Path, *, limit: int = MAX_CODE_BYTES) -> None:
    """Unpack regular files and folders of the archive, and nothing outside `folder`.

    Raises:
        CodeError: The digest differs, or the archive holds anything else.
        OSError: The archive cannot be read, or a file cannot be written.
    """
    if not archive.is_file():
        raise CodeError(f"code: the archive {digest} is missing in {archive.parent}; submit the job again")
    if f"sha256:{_sha256(archive)}" != digest:
        raise CodeError(f"code: {archive} is damaged: its digest differs from {digest}")
    # A previous launcher may have been killed while it unpacked.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with _Archive(archive) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            members = _members(tar, limit)
            for member in members:
                _write(tar, member, folder.absolute())
    except _MALFORMED as error:
        raise CodeError(f"code: {archive} is not an uncompressed tar: {error}") from None
    except OSError as error:
        if error.errno in _NAME_ERRORS:
            raise CodeError(f"code: {archive} cannot be unpacked: {error}") from None
        raise


def _members(tar: tarfile.TarFile, limit: int) -> list[tarfile.TarInfo]:
    """Return the members, all of which can be unpacked.

    Raises:
        CodeError: A member is neither a file nor a folder, or the archive exceeds a bound.
    """
    members: list[tarfile.TarInfo] = []
    remaining_bytes = limit
    for member in tar:
        members.append(member)
        remaining_bytes -= member.size
        parts = PurePosixPath(member.name).parts
        if not (member.isfile() or member.isdir()) or member.issparse():
            raise CodeError(f"code: {member.name[:_SHOWN_NAME]!r} is neither a regular file nor a folder")
        if member.size < 0 or remaining_bytes < 0:
            raise CodeError(f"code: it unpacks to more than {limit} bytes")
        if len(members) > _MAX_MEMBERS:
            raise CodeError(f"code: it contains more than {_MAX_MEMBERS} files and folders")
        if "\0" in member.name or len(member.name) > _MAX_NAME or len(parts) > _MAX_DEPTH:
            name = member.name[:_SHOWN_NAME]
            raise CodeError(f"code: the name {name!r}... has a NUL, or is too long or too deep")
    return members


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write a member, without tarfile's filters, which Debian 12's Python lacks. `folder` contains no links."""
    path = Path(os.path.normpath(folder / member.name.lstrip("/")))
    if not path.is_relative_to(folder):
        raise CodeError(f"code: {member.name!r} would be unpacked outside the folder")
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    content = tar.extractfile(member)
    assert content is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        shutil.copyfileobj(content, file)
    if member.mode & 0o100:
        # Make it executable for each account that may read it.
        mode = path.stat().st_mode
        path.chmod(mode | (mode & 0o444) >> 2)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
