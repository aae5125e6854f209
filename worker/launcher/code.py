"""Unpacks the user's code for an attempt: the uploaded archive is checked and unpacked before any rank starts."""

import hashlib
import logging
import os
import shutil
import tarfile
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.spec.user_code import MAX_CODE_BYTES, code_archive, runs_uploaded_file
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import FinishRecord
from worker.launcher.exit_record import rejected

log = logging.getLogger(__name__)


class CodeError(Exception):
    """The code cannot be used, for the reason in the message."""


def prepare_code(layout: AttemptLayout, launch: LaunchDocument, execution: int) -> FinishRecord | None:
    """Unpack the spec's code into the attempt's folder, which all nodes see.

    Returns:
        The exit record if that failed; it is already written.
    """
    if launch.spec.code is None:
        return None
    try:
        runs = RunLayout(layout.root.parent.parent).root.parent
        unpack(code_archive(runs, launch.spec.code), launch.spec.code, layout.code)
        argv = launch.spec.argv
        if argv and runs_uploaded_file(argv) and not (layout.code / argv[0]).is_file():
            raise CodeError(f"argv: there is no file `{argv[0]}` in the uploaded folder")
    except (CodeError, OSError) as error:
        log.error("the code cannot be used: %s", error)
        return rejected(layout, execution, str(error), type_="CodeError")
    return None


def unpack(archive: Path, digest: str, folder: Path, *, limit: int = MAX_CODE_BYTES) -> None:
    """Unpack regular files and folders of the archive, and nothing outside `folder`.

    Raises:
        CodeError: The digest differs, or the archive holds anything else.
    """
    if not archive.is_file():
        raise CodeError(f"code: the archive {digest} is missing in {archive.parent}; submit the job again")
    if f"sha256:{_sha256(archive)}" != digest:
        raise CodeError(f"code: {archive} is damaged: its digest differs from {digest}")
    # A previous launcher may have been killed while it unpacked.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with tarfile.open(archive, mode="r:") as tar:
            members = tar.getmembers()
            for member in members:
                if not (member.isfile() or member.isdir()) or member.issparse():
                    raise CodeError(f"code: {member.name!r} is neither a regular file nor a folder")
            if sum(member.size for member in members) > limit:
                raise CodeError(f"code: it unpacks to more than {limit} bytes")
            for member in members:
                _write(tar, member, folder.absolute())
    except tarfile.TarError as error:
        raise CodeError(f"code: {archive} is not an uncompressed tar: {error}") from None


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write one member. Not with tarfile's filters, which Debian 12's Python lacks; `folder` contains no links."""
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
    path.chmod(0o755 if member.mode & 0o100 else 0o644)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
