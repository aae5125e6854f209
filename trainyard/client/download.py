"""Files from the service: each gets its name when all of it is there, and a broken one is gone on with."""

import hashlib
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

import httpx

from trainyard.client.errors import (
    ConflictError,
    NotFoundError,
    ServerError,
    TrainyardError,
    connection_failed,
    error_of,
)
from trainyard.client.retry import ATTEMPTS, backoff, is_passing
from trainyard.contract.wire.files import FileResource
from trainyard.contract.wire.jobs import JobResource

Progress = Callable[[str, int, int], None]
"""Told of a file: its path, the bytes that are there, and how many it has."""

_BLOCK = 4 * 2**20
MANIFEST = "manifest.json"


@contextmanager
def whole_file(place: Path) -> Iterator[IO[bytes]]:
    """To be written; put in its place when the block ends well, and gone when it does not."""
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(temporary).chmod(0o644)
        os.replace(temporary, place)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def no_export(job: JobResource) -> TrainyardError:
    """For a job that trained to its end it is not there; for any other, its state is why."""
    kind = NotFoundError if job.status == "succeeded" else ConflictError
    return kind(f"job {job.id} is {job.status} and has no export; what it saved are its checkpoints")


def no_progress(path: str, there: int, size: int) -> None:
    """Nobody watches."""


class Download:
    """One file on its way. What has arrived stays beside its place as `.part`, for this call or a later one; beside it
    the name that the service has for the file as it was, so that no two are put together."""

    def __init__(self, file: FileResource, to: Path, digest: str | None, progress: Progress = no_progress) -> None:
        """`digest` is the SHA-256 that the file must have, where it is known."""
        self.file = file
        self.place = to.joinpath(*safe_parts(file.path))
        self._part = self.place.with_name(f".{self.place.name}.part")
        self._etag = self.place.with_name(f".{self.place.name}.etag")
        self._digest = digest
        self._progress = progress
        self._failures = 0

    def start(self) -> Mapping[str, str]:
        """The headers that ask for the rest of it, or for all of it where it has been written anew since."""
        self.place.parent.mkdir(parents=True, exist_ok=True)
        there = self._part.stat().st_size if self._part.is_file() and self._etag.is_file() else 0
        if there > self.file.size_bytes:
            self._drop()
            there = 0
        elif there and there == self.file.size_bytes:
            # Nothing left would be answered by an error; the last byte again says whether it is still this file.
            there -= 1
            os.truncate(self._part, there)
        self._progress(self.file.path, there, self.file.size_bytes)
        return {"Range": f"bytes={there}-", "If-Range": self._etag.read_text()} if there else {}

    @property
    def is_there(self) -> bool:
        """By an earlier call."""
        return (
            self.place.is_file()
            and self.place.stat().st_size == self.file.size_bytes
            and self._digest is not None
            and file_digest(self.place) == self._digest
        )

    def receive(self, response: httpx.Response) -> IO[bytes]:
        """Where the answer's bytes go; one that is not for the range asked for begins the file anew."""
        if response.status_code == 206:
            return self._part.open("ab")
        self._drop()
        if etag := response.headers.get("etag"):
            self._etag.write_text(etag)
        return self._part.open("wb")

    def wrote(self, file: IO[bytes]) -> None:
        self._progress(self.file.path, file.tell(), self.file.size_bytes)

    def finish(self) -> None:
        """Check it and give it its name.

        Raises:
            ServerError: it is not what it should be; nothing of it is kept.
        """
        size = self._part.stat().st_size if self._part.is_file() else 0
        problem = None
        if size != self.file.size_bytes:
            problem = f"has {size} bytes instead of {self.file.size_bytes}"
        elif self._digest is not None and file_digest(self._part) != self._digest:
            problem = "does not have its digest"
        if problem:
            self._drop()
            raise ServerError(f"{self.file.path} arrived damaged: it {problem}; download it again")
        os.replace(self._part, self.place)
        self._drop()

    def _drop(self) -> None:
        self._part.unlink(missing_ok=True)
        self._etag.unlink(missing_ok=True)

    def pause_after(self, error: TrainyardError) -> float:
        """Seconds until it is gone on with. Raises the error where that would not help."""
        self._failures += 1
        if not is_passing(error) or self._failures >= ATTEMPTS:
            raise error
        return backoff(self._failures)


def fetch(http: httpx.Client, url: str, path: str, download: Download, sleep: Callable[[float], None]) -> None:
    """Bring the file here, from wherever an earlier try has got to."""
    while not download.is_there:
        try:
            with http.stream("GET", path, headers=download.start()) as response:
                if not response.is_success:
                    response.read()
                    raise error_of(response)
                with download.receive(response) as file:
                    for chunk in response.iter_bytes():
                        file.write(chunk)
                        download.wrote(file)
        except httpx.HTTPError as error:
            sleep(download.pause_after(connection_failed(url, error)))
            continue
        download.finish()
        break


async def fetch_async(
    http: httpx.AsyncClient, url: str, path: str, download: Download, sleep: Callable[[float], Awaitable[None]]
) -> None:
    """The same for programs that run on asyncio."""
    while not download.is_there:
        try:
            async with http.stream("GET", path, headers=download.start()) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                with download.receive(response) as file:
                    async for chunk in response.aiter_bytes():
                        file.write(chunk)
                        download.wrote(file)
        except httpx.HTTPError as error:
            await sleep(download.pause_after(connection_failed(url, error)))
            continue
        download.finish()
        break


def digests_of(manifest: bytes, expected: str) -> dict[str, str]:
    """The SHA-256 of each file that a checkpoint's manifest names, its own included.

    Raises:
        ServerError: it is not the manifest of the checkpoint that the service told of.
    """
    own = hashlib.sha256(manifest).hexdigest()
    try:
        files = {name: str(file["sha256"]) for name, file in json.loads(manifest)["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        files = {}
    if f"sha256:{own}" != expected or not files:
        raise ServerError(f"{MANIFEST} arrived damaged: it does not have the digest of the checkpoint")
    return {**files, MANIFEST: own}


def safe_parts(path: str) -> tuple[str, ...]:
    """Raises ServerError: a path that would lead out of the folder it is downloaded to."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise ServerError(f"the service names a file {path!r}, which cannot be written below a folder")
    return parts


def file_digest(place: Path) -> str:
    digest = hashlib.sha256()
    with place.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
