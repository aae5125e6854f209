"""The user's code for an attempt: the uploaded archive, checked and unpacked once, before any rank starts."""

import hashlib
import logging
import os
import shutil
import socket
import tarfile
from datetime import UTC, datetime
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.contract.spec.user_code import MAX_CODE_BYTES, code_archive, runs_uploaded_file
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import Failure, FinishRecord

log = logging.getLogger(__name__)


class CodeError(Exception):
    """The code cannot be used; the message says why."""


def prepare_code(layout: AttemptLayout, launch: LaunchDocument, execution: int) -> FinishRecord | None:
    """Unpack the spec's code into the attempt's folder, which all nodes see.

    Returns:
        Where that failed, the finish record that says so, already written.
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
        failure = Failure(host=socket.gethostname(), type="CodeError", message=str(error), final=True)
        record = FinishRecord(execution=execution, reason="rejected", failure=failure, time=datetime.now(UTC))
        write_atomic(layout.finish(execution), record.model_dump_json())
        return record
    return None


def unpack(archive: Path, digest: str, folder: Path, *, limit: int = MAX_CODE_BYTES) -> None:
    """Regular files and folders of the archive, and nothing outside `folder`, whatever the archive says.

    Raises:
        CodeError: it is not the archive of that digest, or holds anything else.
    """
    if not archive.is_file():
        raise CodeError(f"code: the archive {digest} is gone from {archive.parent}; submit the job again")
    if f"sha256:{_sha256(archive)}" != digest:
        raise CodeError(f"code: {archive} is damaged: its digest is not {digest}")
    # What a launcher before this one left when it was killed.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with tarfile.open(archive, mode="r:") as tar:
            members = tar.getmembers()
            for member in members:
                if not (member.isfile() or member.isdir()) or member.issparse():
                    raise CodeError(f"code: {member.name!r} is neither a file nor a folder")
            if sum(member.size for member in members) > limit:
                raise CodeError(f"code: it unpacks to more than {limit} bytes")
            for member in members:
                _write(tar, member, folder.absolute())
    except tarfile.TarError as error:
        raise CodeError(f"code: {archive} is not an uncompressed tar: {error}") from None


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """By hand: Debian 12's Python is older than tarfile's filters. Nothing in `folder` is a link, so names tell all."""
    path = Path(os.path.normpath(folder / member.name.lstrip("/")))
    if not path.is_relative_to(folder):
        raise CodeError(f"code: {member.name!r} would land outside the folder")
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
