"""All SQL about data files and uploads."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import get_args

import sqlalchemy as sa

from service.db.models import DataFile, Job, Upload
from service.db.paging import PageRequest, fetch_page
from service.db.repository import Repository, require_row
from trainyard.contract.spec.text_sources import FileKind
from trainyard.contract.spec.uploaded_data import digests_in
from trainyard.contract.wire.data_files import FileFormat
from trainyard.contract.wire.jobs import TERMINAL


class FileRepository(Repository):
    """Data files and uploads within a session."""

    def add(self, row: DataFile | Upload) -> None:
        self._session.add(row)
        self._session.flush()

    def get(self, file_id: str) -> DataFile:
        """Return a file that the caller can see. Raises NotFoundError."""
        return require_row(self._session.scalar(sa.select(DataFile).where(DataFile.id == file_id)), "file", file_id)

    def list_page(
        self, page: PageRequest, *, created_by: str | None = None, formats: Collection[FileFormat] = ()
    ) -> tuple[list[DataFile], bool]:
        """Return a page of files, and whether more follow.

        Args:
            created_by: Only files of this user.
            formats: Only files of these formats; empty: of all.
        """
        query = sa.select(DataFile)
        if created_by is not None:
            query = query.where(DataFile.created_by == created_by)
        if formats:
            query = query.where(DataFile.format.in_(formats))
        return fetch_page(self._session, query, DataFile.id, page)

    def upload(self, upload_id: str, owner: str | None) -> Upload:
        """Return an upload of a user; None: of any user. Raises NotFoundError."""
        query = sa.select(Upload).where(Upload.id == upload_id)
        row = self._session.scalar(query if owner is None else query.where(Upload.created_by == owner))
        return require_row(row, "upload", upload_id)

    def lock_upload(self, upload_id: str) -> Upload:
        """Return an upload, locked until the end of the transaction. Raises NotFoundError: it was removed."""
        row = self._session.scalar(sa.select(Upload).where(Upload.id == upload_id).with_for_update())
        return require_row(row, "upload", upload_id)

    def uploads_page(self, page: PageRequest, owner: str | None) -> tuple[list[Upload], bool]:
        """Return a page of the unfinished uploads of a user; None: of all users."""
        query = sa.select(Upload).where(Upload.file_id.is_(None))
        return fetch_page(
            self._session, query if owner is None else query.where(Upload.created_by == owner), Upload.id, page
        )

    def used_bytes(self, owner: str) -> int:
        """Return the bytes of a user's files, and the announced bytes of the user's unfinished uploads."""
        files = sa.select(sa.func.coalesce(sa.func.sum(DataFile.size_bytes), 0)).where(DataFile.created_by == owner)
        uploads = sa.select(sa.func.coalesce(sa.func.sum(Upload.size_bytes), 0))
        unfinished = uploads.where(Upload.created_by == owner, Upload.file_id.is_(None))
        return int(self._session.scalar(files) or 0) + int(self._session.scalar(unfinished) or 0)

    def old_uploads(self, before: datetime) -> Sequence[Upload]:
        """Return the uploads that received their last part before a time."""
        return self._session.scalars(sa.select(Upload).where(Upload.updated_at < before)).all()

    def delete_uploads(self, upload_ids: Sequence[str]) -> None:
        self._session.execute(sa.delete(Upload).where(Upload.id.in_(upload_ids)))

    def upload_ids(self) -> set[str]:
        return set(self._session.scalars(sa.select(Upload.id)))

    def used_digests(self) -> set[str]:
        """Return the digests that files refer to, or jobs that have not ended."""
        digests = set(self._session.scalars(sa.select(DataFile.digest).distinct()))
        data = Job.spec["data"]
        named = data["source"].as_string().in_(("file", "mixture", *get_args(FileKind)))
        for section in self._session.scalars(sa.select(data).where(Job.status.not_in(TERMINAL), named)):
            digests.update(digests_in(section))
        return digests
