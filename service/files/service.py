"""The requests of users about data files: upload, read, delete, and use in a spec."""

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from service.audit.log import set_audit_target
from service.auth.principals import Principal
from service.core.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    QuotaExceededError,
    UnavailableError,
)
from service.core.failpoints import Failpoint, no_failpoint
from service.core.ids import new_id
from service.core.resources import resource_of
from service.core.settings import Settings
from service.core.thread_slots import ThreadSlots
from service.db.engine import Database
from service.db.models import DataFile, Upload
from service.db.paging import PageRequest
from service.files.repository import FileRepository
from service.files.store import Incoming, Parts, PartWriter, has_content
from service.files.upload_checks import UploadCheck, UploadChecks
from service.jobs.service import require_change
from trainyard.contract.data_files import MAX_SINGLE_UPLOAD_BYTES, data_file
from trainyard.contract.sizes import format_size
from trainyard.contract.wire.data_files import DataFileResource, FileFormat, UploadRequest, UploadResource


@dataclass(frozen=True)
class FileService:
    """The data files of all users."""

    database: Database
    settings: Settings
    failpoint: Failpoint = no_failpoint
    """The failpoints at which a test can end the process."""
    check_slots: ThreadSlots = field(default_factory=lambda: ThreadSlots(each=1, total=3))
    """For requests that check lines, which use much processor time."""
    _checks: UploadChecks = field(default_factory=UploadChecks)

    @property
    def runs(self) -> Path:
        return self.settings.runs

    def receive(
        self,
        principal: Principal,
        now: datetime,
        format: FileFormat | None = None,
        *,
        limit: int = MAX_SINGLE_UPLOAD_BYTES,
    ) -> Incoming:
        """Return an object that receives a file from one request, unless the user's quota is used up.

        Raises:
            PermissionDeniedError: The user may only read.
            QuotaExceededError: The user's files hold the quota.
        """
        require_change(principal)
        self._check_quota(principal.name, 1)
        return Incoming(self.runs, new_id("upl", now), format, limit=min(limit, self.settings.file_limit_bytes))

    def add(self, principal: Principal, incoming: Incoming, name: str, now: datetime) -> DataFile:
        """Store a received file.

        Raises:
            InvalidRequestError: The last line cannot be used, or there is no example.
            QuotaExceededError: The user's files would exceed the quota.
        """
        self._check_quota(principal.name, incoming.size)
        digest, format = incoming.store()
        row = _new_file(name, principal.name, incoming.size, incoming.examples, digest, format, now)
        with self.database.write() as session:
            set_audit_target(row.id)
            FileRepository(session).add(row)
        return row

    def get(self, file_id: str) -> DataFile:
        """Return a file that the caller can see. Raises NotFoundError."""
        with self.database.read() as session:
            return FileRepository(session).get(file_id)

    def has_content(self, row: DataFile) -> bool:
        """Return whether the content is on the disk. It is not removed before the retention has passed from now."""
        return has_content(self.runs, row.digest)

    def list_page(self, page: PageRequest, created_by: str | None) -> tuple[list[DataFile], bool]:
        """Return a page of the files that the caller can see, and whether more follow."""
        with self.database.read() as session:
            return FileRepository(session).list_page(page, created_by=created_by)

    def delete(self, principal: Principal, file_id: str) -> None:
        """Delete a file. Its content stays while other files or unfinished jobs use it.

        Raises:
            PermissionDeniedError: The file belongs to another user, or the caller may only read.
        """
        with self.database.write() as session:
            files = FileRepository(session)
            row = files.get(file_id)
            require_change(principal)
            if principal.role != "admin" and row.created_by != principal.name:
                raise PermissionDeniedError(f"file {row.id} belongs to {row.created_by}")
            session.delete(row)

    def start(self, principal: Principal, request: UploadRequest, now: datetime) -> Upload:
        """Start an upload in parts.

        Raises:
            InvalidRequestError: The file is too large.
            QuotaExceededError: The user's files would exceed the quota.
        """
        require_change(principal)
        if request.size_bytes > self.settings.file_limit_bytes:
            limit = f"{format_size(self.settings.file_limit_bytes)} (TRAINYARD_MAX_FILE_GB)"
            message = (
                f"has {format_size(request.size_bytes)}, but a file may have {limit}; name its path in a spec instead"
            )
            raise InvalidRequestError(message, param="size_bytes", code="file_too_large")
        self._check_quota(principal.name, request.size_bytes)
        row = Upload(id=new_id("upl", now), created_by=principal.name, created_at=now, updated_at=now)
        row.name, row.format, row.digest, row.size_bytes = (
            *(request.name, request.format, request.digest),
            request.size_bytes,
        )
        with self.database.write() as session:
            set_audit_target(row.id)
            FileRepository(session).add(row)
        return row

    def upload(self, principal: Principal, upload_id: str) -> Upload:
        """Return an upload of the user, or for administrators of any user. Raises NotFoundError."""
        with self.database.read() as session:
            return FileRepository(session).upload(upload_id, principal.owner_filter)

    def uploads_page(self, principal: Principal, page: PageRequest) -> tuple[list[Upload], bool]:
        """Return a page of the user's unfinished uploads; for administrators, of all users."""
        with self.database.read() as session:
            return FileRepository(session).uploads_page(page, principal.owner_filter)

    def open_part(self, principal: Principal, upload_id: str, offset: int, now: datetime) -> PartWriter:
        """Return the writer of a part. Raises ConflictError: the upload is complete, or continues at another offset."""
        self._changeable(principal, upload_id)
        with self.database.write() as session:
            row = FileRepository(session).lock_upload(upload_id)
            if row.file_id is not None:
                raise ConflictError(f"upload {row.id} is complete", code="upload_complete")
            row.updated_at = now
            size = row.size_bytes
        return Parts(self.runs, upload_id).open(offset, size, self._checks.of(self.runs, row).write_lock)

    def check_received(self, principal: Principal, upload_id: str) -> None:
        """Check the received lines so far, for a limited time.

        Raises:
            InvalidRequestError: A line cannot be used. The parts are removed then.
        """
        row = self._changeable(principal, upload_id)
        if row.file_id is None:
            self._advance(principal, row)

    def complete(self, principal: Principal, upload_id: str, now: datetime) -> DataFile:
        """Check the rest of a received file and make it a data file; the same again returns the same file.

        Raises:
            UnavailableError: The check takes longer than a request may. The same request continues it.
            ConflictError: Bytes are missing.
            InvalidRequestError: A line cannot be used, or the digest differs. The parts are removed then.
        """
        if (row := self._changeable(principal, upload_id)).file_id is not None:
            return self.get(row.file_id)
        with self._checks.of(self.runs, row).lock:
            try:
                return self._complete(principal, row, now)
            except (ConflictError, FileNotFoundError):
                # Another request, perhaps of another process, may have completed or removed it since.
                if (row := self.upload(principal, upload_id)).file_id is None:
                    raise
                return self.get(row.file_id)

    def _complete(self, principal: Principal, row: Upload, now: datetime) -> DataFile:
        parts = Parts(self.runs, row.id)
        if (received := parts.received) != row.size_bytes:
            message = f"only {received} of {row.size_bytes} bytes have been received; send the rest first"
            raise ConflictError(message, param="received_bytes", code="upload_incomplete")
        check = self._advance(principal, row)
        if check.format is None:
            message = f"the lines of upload {row.id} are being checked; repeat the request"
            raise UnavailableError(message, code="upload_checking")
        if row.digest not in (None, check.digest):
            self.abandon(principal, row.id)
            message = f"the received bytes have the digest {check.digest}, not the announced one; upload the file again"
            raise InvalidRequestError(message, param="digest", code="digest_mismatch")
        parts.publish(check.digest)
        self.failpoint("upload.before-commit")
        file = _new_file(row.name, row.created_by, row.size_bytes, check.examples, check.digest, check.format, now)
        with self.database.write() as session:
            files = FileRepository(session)
            upload = files.lock_upload(row.id)
            if upload.file_id is not None:
                # Another process was quicker.
                return files.get(upload.file_id)
            files.add(file)
            upload.file_id = file.id
        self.failpoint("upload.after-commit")
        parts.discard()
        self._checks.forget(row)
        return file

    def _advance(self, principal: Principal, row: Upload) -> UploadCheck:
        check = self._checks.of(self.runs, row)
        try:
            check.advance()
        except InvalidRequestError:
            self.abandon(principal, row.id)
            raise
        return check

    def abandon(self, principal: Principal, upload_id: str) -> None:
        """Remove an upload and its parts; a file that it became stays."""
        self._checks.forget(self._changeable(principal, upload_id))
        with self.database.write() as session, suppress(NotFoundError):
            session.delete(FileRepository(session).lock_upload(upload_id))
        Parts(self.runs, upload_id).discard()

    def upload_resource(self, row: Upload) -> UploadResource:
        """Return an upload with the bytes that are on the disk."""
        complete = row.file_id is not None
        return resource_of(
            UploadResource,
            row,
            format=_format(row),
            received_bytes=row.size_bytes if complete else Parts(self.runs, row.id).received,
            expires_at=row.updated_at + timedelta(hours=self.settings.upload_retention_hours),
        )

    def content(self, file_id: str) -> Path:
        """Return the path of a file's content. Raises NotFoundError."""
        return data_file(self.runs, self.get(file_id).digest)

    def _changeable(self, principal: Principal, upload_id: str) -> Upload:
        require_change(principal)
        return self.upload(principal, upload_id)

    def _check_quota(self, owner: str, size: int) -> None:
        quota = self.settings.file_quota_bytes
        if quota is None:
            return
        with self.database.read() as session:
            used = FileRepository(session).used_bytes(owner)
        if used + size > quota:
            raise QuotaExceededError(
                f"the files of {owner} hold {format_size(used)}, {format_size(size)} more do not fit, and the quota is "
                f"{format_size(quota)} per user (TRAINYARD_FILE_QUOTA_GB_PER_USER); delete some with `trainyard files "
                "delete ID`",
                code="file_quota_exceeded",
            )


def _new_file(
    name: str, owner: str, size: int, examples: int, digest: str, format: FileFormat, now: datetime
) -> DataFile:
    return DataFile(
        id=new_id("file", now),
        name=name,
        format=format,
        size_bytes=size,
        examples=examples,
        digest=digest,
        created_by=owner,
        created_at=now,
    )


def file_resource(row: DataFile) -> DataFileResource:
    return DataFileResource.model_validate(row, from_attributes=True)


def _format(row: Upload) -> FileFormat | None:
    return row.format  # type: ignore[return-value]  # Only formats are stored.
