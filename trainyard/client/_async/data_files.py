"""Calls about uploaded data files."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

from trainyard.client._async.files import AsyncFileCalls
from trainyard.client.download import Download, Progress, no_progress
from trainyard.client.errors import TrainyardError
from trainyard.client.request import JSON, Request, model, no_result, paged, segment
from trainyard.client.retry import is_transient
from trainyard.client.uploads import LocalFile, UploadProgress, read_file, read_part
from trainyard.contract.wire.access import TokenResource
from trainyard.contract.wire.data_files import DataFileResource, FileFormat, UploadRequest, UploadResource
from trainyard.contract.wire.files import FileResource


class AsyncDataFileCalls(AsyncFileCalls):
    """Calls about uploaded data files."""

    async def upload_file(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        format: FileFormat | None = None,
        progress: Progress = no_progress,
    ) -> DataFileResource:
        """Upload a JSONL file, whose `id` is for `data.id` of a spec. A repeated call continues an interrupted upload.

        Args:
            name: its name in lists; default: the name of the file.
            format: the format that all lines must have; default: the format of the first line.
            progress: called with the file's name, the number of received bytes, and its size.

        Raises:
            InvalidRequestError: a line cannot be used; the message has its number and the reason.
        """
        file = await asyncio.to_thread(read_file, path, name)
        upload = await self._find_upload(file, format)
        state = UploadProgress(file, progress)
        while not state.report(upload):
            try:
                upload = await self._send_part(upload, file)
            except TrainyardError as error:
                await self._sleep(state.pause_after(error))
                upload = await self._send(Request("GET", f"/v1/uploads/{upload.id}", model(UploadResource)))
        return await self._complete(upload.id)

    async def _complete(self, upload_id: str) -> DataFileResource:
        """Wait until the service has checked all lines; its responses state how long to wait."""
        request = Request("POST", f"/v1/uploads/{upload_id}/complete", model(DataFileResource))
        while True:
            try:
                return await self._send_once(request)
            except TrainyardError as error:
                if error.code == "upload_checking":
                    await self._sleep(error.retry_after or 1.0)
                elif is_transient(error):
                    return await self._send(request)
                else:
                    # A refused upload is removed: a repeated request would only report that it does not exist.
                    raise

    async def _find_upload(self, file: LocalFile, format: FileFormat | None) -> UploadResource:
        """Return the upload that an earlier call has begun, or a new upload."""
        caller = await self._send(Request("GET", "/v1/tokens/self", model(TokenResource)))
        begun = file.unfinished(await self._list(paged("/v1/uploads", UploadResource)), caller.name)
        if begun is not None:
            return begun
        body = UploadRequest(name=file.name, size_bytes=file.size, digest=file.digest, format=format)
        content = body.model_dump_json(exclude_none=True).encode()
        return await self._send(
            Request("POST", "/v1/uploads", model(UploadResource), headers=JSON, content=content, repeatable=False)
        )

    async def _send_part(self, upload: UploadResource, file: LocalFile) -> UploadResource:
        offset = upload.received_bytes
        content = await asyncio.to_thread(read_part, file, offset)
        headers = {"Content-Type": "application/octet-stream"}
        return await self._send_once(
            Request("PUT", f"/v1/uploads/{upload.id}", model(UploadResource), {"offset": offset}, headers, content)
        )

    def data_files(self, *, created_by: str | None = None) -> AsyncIterator[DataFileResource]:
        """Iterate over the uploaded data files, newest first."""
        return self._pages(paged("/v1/files", DataFileResource, created_by=created_by))

    async def data_file(self, file_id: str) -> DataFileResource:
        """Return a data file."""
        return await self._send(Request("GET", _path(file_id), model(DataFileResource)))

    async def delete_data_file(self, file_id: str) -> None:
        """Delete a data file. Its content stays while other files, or jobs that have not ended, use it."""
        await self._send(Request("DELETE", _path(file_id), no_result))

    async def download_data_file(
        self, file_id: str, to: str | Path, *, progress: Progress = no_progress, overwrite: bool = False
    ) -> Path:
        """Download a data file to the file `to`, and verify its digest. A repeated call continues the download."""
        listed, target = await self.data_file(file_id), Path(to)
        file = FileResource(path=target.name, size_bytes=listed.size_bytes, modified_at=listed.created_at)
        digest = listed.digest.removeprefix("sha256:")
        download = Download(file, target.parent, digest, progress, overwrite=overwrite)
        await self._fetch(f"{_path(file_id)}/content", download)
        return target


def _path(file_id: str) -> str:
    return f"/v1/files/{quote(segment(file_id, 'file'))}"
