"""Calls about checkpoints, exports and artifacts, and their downloads."""

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import httpx

from trainyard.client._async.transport import AsyncTransport
from trainyard.client.download import MANIFEST, Download, Progress, atomic_file, digests_of, no_export, no_progress
from trainyard.client.errors import NotFoundError, connection_failed, error_of, require_own
from trainyard.client.references import require_checkpoint
from trainyard.client.request import Request, file_path, job_path, model, no_result, paged, segment, unpaged, whole_body
from trainyard.contract.kinds.tasks import LOOP_TASKS
from trainyard.contract.wire.files import ArtifactResource, CheckpointResource, FileResource, is_hidden
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.media import (
    ComparedMediaKeys,
    ComparedMediaSteps,
    JobMediaKeys,
    JobMediaSteps,
    MediaKeyResource,
    MediaKeysResource,
    MediaResource,
    MediaType,
)
from trainyard.contract.wire.samples import FOLDER, MAX_BYTES, SamplesRecord

_SAMPLES_FILE = re.compile(rf"{FOLDER}/step-(\d{{10,16}})\.json")


class AsyncFileCalls(AsyncTransport):
    """Calls about the files of a job."""

    async def checkpoints(self, job_id: str) -> list[CheckpointResource]:
        """Return the complete checkpoints, oldest first."""
        return await self._list(paged(job_path(job_id, "checkpoints"), CheckpointResource))

    async def checkpoint(self, job_id: str, checkpoint_id: str) -> CheckpointResource:
        """Return a checkpoint. Its digest is the digest of its `manifest.json`."""
        path = job_path(job_id, "checkpoints", segment(checkpoint_id, "checkpoint"))
        return await self._send(Request("GET", path, model(CheckpointResource)))

    async def delete_checkpoint(self, job_id: str, checkpoint_id: str) -> None:
        """Delete a checkpoint. The newest checkpoint of a job that has not ended cannot be deleted."""
        path = job_path(job_id, "checkpoints", segment(checkpoint_id, "checkpoint"))
        await self._send(Request("DELETE", path, no_result))

    async def files(self, job_id: str, folder: str = "export") -> list[FileResource]:
        """Return the files of the `export`, or of `checkpoints/<id>`."""
        return await self._list(unpaged(job_path(job_id, *folder.split("/"), "files"), FileResource))

    async def read_file(self, job_id: str, path: str, folder: str = "export") -> bytes:
        """Return the content of a small file of the `export`, or of `checkpoints/<id>`."""
        return await self._send(Request("GET", file_path(job_id, folder, path), whole_body))

    async def artifacts(self, job_id: str) -> list[ArtifactResource]:
        """Return the job's artifacts: traces and tables that it wrote beside its weights."""
        return await self._list(unpaged(job_path(job_id, "artifacts"), ArtifactResource))

    def media(
        self,
        job_id: str,
        key: str | None = None,
        *,
        type: MediaType | None = None,
        from_step: int | None = None,
        to_step: int | None = None,
    ) -> AsyncIterator[MediaResource]:
        """Iterate over the media that the job's program logged, such as images, in the order of the reports.

        The file of an item is the artifact `path`.
        """
        path = job_path(job_id, "media")
        return self._pages(paged(path, MediaResource, key=key, type=type, from_step=from_step, to_step=to_step))

    async def media_keys(self, job_id: str) -> list[MediaKeyResource]:
        """Return the names under which the job's program logged media, with their numbers and steps."""
        request = Request("GET", job_path(job_id, "media", "keys"), model(MediaKeysResource))
        return (await self._send(request)).data

    async def compare_media_keys(self, job_ids: Sequence[str]) -> list[JobMediaKeys]:
        """Return the names under which the programs of several jobs, 20 at most, logged media."""
        request = Request("GET", "/v1/media/keys", model(ComparedMediaKeys), {"job": list(job_ids)})
        return (await self._send(request)).data

    async def compare_media_steps(self, job_ids: Sequence[str], key: str) -> list[JobMediaSteps]:
        """Return the steps at which several jobs, 20 at most, have media under a name."""
        params = {"job": list(job_ids), "key": key}
        return (await self._send(Request("GET", "/v1/media/steps", model(ComparedMediaSteps), params))).data

    async def samples(self, job_id: str, step: int | None = None) -> SamplesRecord:
        """Return the texts that the job's model generated at the evaluation of `step`, or at the last.

        Raises:
            NotFoundError: no texts exist.
        """
        artifact = _samples_artifact(await self.artifacts(job_id), step)
        path = job_path(job_id, "artifacts", *map(quote, artifact.path.split("/")))
        return await self._send(Request("GET", path, model(SamplesRecord)))

    async def download(
        self,
        job_id: str,
        to: str | Path,
        *,
        checkpoint: CheckpointResource | str | int | None = None,
        digests: Mapping[str, str] | None = None,
        progress: Progress = no_progress,
        overwrite: bool = False,
        left_out: list[str] | None = None,
    ) -> Path:
        """Download the export or a checkpoint into a folder. A repeated call continues an interrupted download.

        Args:
            checkpoint: download this checkpoint, given as a resource, a step, `best` or `latest`, and verify its
                digests; default: the export.
            digests: SHA-256 of files of the export, by path, which are verified; other files are not downloaded then.
            progress: called with a file's path, the number of its bytes on disk, and its size.
            overwrite: replace files with other content; default: raise TargetExistsError.
            left_out: receives the paths of hidden files, which are not downloaded.
        """
        if isinstance(checkpoint, str | int):
            checkpoint = require_checkpoint(await self.checkpoints(job_id), checkpoint, job_id)
        folder = f"checkpoints/{checkpoint.id}" if checkpoint else "export"
        known: Mapping[str, str] = digests or {}
        if checkpoint:
            known = digests_of(await self.read_file(job_id, MANIFEST, folder), checkpoint.digest)
        files = await self.files(job_id, folder)
        if not (files or checkpoint):
            job = await self._send(Request("GET", job_path(job_id), model(JobResource)))
            is_trained = job.spec.get("task") in LOOP_TASKS
            raise no_export(job, () if is_trained else [artifact.path for artifact in await self.artifacts(job_id)])
        for file in files:
            if digests is not None and file.path not in digests:
                continue
            if is_hidden(file.path) and ".." not in file.path.split("/"):
                if left_out is not None:
                    left_out.append(file.path)
                continue
            download = Download(file, Path(to), known.get(file.path), progress, overwrite=overwrite)
            await self._fetch(file_path(job_id, folder, file.path), download)
        return Path(to)

    async def download_artifact(self, job_id: str, path: str, to: str | Path, *, overwrite: bool = False) -> Path:
        """Download an artifact to the file `to`, which appears only when it is complete.

        Raises:
            TargetExistsError: the file exists, and `overwrite` is false.
        """
        source = job_path(job_id, "artifacts", *map(quote, path.split("/")))
        try:
            async with self._http.stream("GET", source) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                require_own(response)
                with atomic_file(Path(to), overwrite=overwrite) as file:
                    async for chunk in response.aiter_bytes():
                        file.write(chunk)
        except httpx.HTTPError as error:
            raise connection_failed(self.url, error) from error
        return Path(to)

    async def _fetch(self, path: str, download: Download) -> None:
        """Download a file, starting from the bytes that an earlier try has received."""
        while not download.is_complete:
            try:
                async with self._http.stream("GET", path, headers=download.start()) as response:
                    if not response.is_success:
                        await response.aread()
                        raise error_of(response)
                    require_own(response)
                    with download.receive(response) as file:
                        async for chunk in response.aiter_bytes():
                            file.write(chunk)
                            download.report_progress(file)
            except httpx.HTTPError as error:
                await self._sleep(download.pause_after(connection_failed(self.url, error)))
                continue
            download.finish()
            break


def _samples_artifact(artifacts: Iterable[ArtifactResource], step: int | None = None) -> ArtifactResource:
    """Return the file with the samples of a step, or of the last step that has some.

    Raises:
        NotFoundError: no such file exists, or it is larger than samples are.
    """
    by_step = {int(match[1]): one for one in artifacts if (match := _SAMPLES_FILE.fullmatch(one.path))}
    if not by_step:
        raise NotFoundError("the job has no samples yet: they are generated at evaluations, with `evaluation.samples`")
    chosen = max(by_step) if step is None else step
    if chosen not in by_step:
        known = ", ".join(map(str, sorted(by_step)[-20:]))
        raise NotFoundError(f"the job has no samples of step {chosen}; it has those of steps {known}")
    if by_step[chosen].size_bytes > MAX_BYTES:
        raise NotFoundError(
            f"the file of step {chosen} is larger than samples are; download it with `trainyard artifacts`"
        )
    return by_step[chosen]
