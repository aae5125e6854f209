"""Digests of a checkpoint's files. Each rank computes the digests of the files that it wrote, and verifies its part."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from trainyard.contract.layout import CheckpointLayout
from trainyard.contract.wire.manifest import Manifest, ManifestFile
from worker.core.distributed import Ranks

Files = Mapping[str, ManifestFile]
"""Size and digest of files, by their path in the checkpoint's folder."""
Verify = Callable[[CheckpointLayout, Manifest], None]
"""Raises ValueError if a file of the checkpoint differs from the manifest; the message names it."""


class DigestError(Exception):
    """A rank could not read the files that it had written."""


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_files(checkpoint: CheckpointLayout, ranks: Ranks) -> Files:
    """Return the files of a checkpoint that the ranks have just written, on rank 0 with the index and all others. A
    collective of the saving threads.

    Raises:
        DigestError: On all ranks; a rank could not read its files.
    """
    own: dict[str, ManifestFile] | str
    try:
        # torch names a file after the rank that writes it; rank 0 also writes the index.
        own = _described(checkpoint, sorted(checkpoint.root.glob(f"__{ranks.rank}_*")))
    except OSError as error:
        own = f"rank {ranks.rank}: {error}"
    parts: list[dict[str, ManifestFile] | str] = [own] * ranks.world
    if ranks.world > 1:
        dist.all_gather_object(parts, own, group=ranks.checkpoints)
    files: dict[str, ManifestFile] = {}
    for part in parts:
        if isinstance(part, str):
            raise DigestError(part)
        files |= part
    if not ranks.is_rank_0:
        return files
    others = (path for path in sorted(checkpoint.root.rglob("*")) if path.is_file())
    return files | _described(checkpoint, [path for path in others if _name(checkpoint, path) not in files])


def _described(checkpoint: CheckpointLayout, paths: list[Path]) -> dict[str, ManifestFile]:
    return {_name(checkpoint, path): ManifestFile(size=path.stat().st_size, sha256=file_sha256(path)) for path in paths}


def _name(checkpoint: CheckpointLayout, path: Path) -> str:
    return path.relative_to(checkpoint.root).as_posix()


def verify(checkpoint: CheckpointLayout, manifest: Manifest) -> None:
    """Compare every file with the manifest.

    Raises:
        ValueError: A file differs; the message names the first.
    """
    if problem := _problem(checkpoint.root, manifest.files):
        raise ValueError(problem)


@contextmanager
def shared_verification(ranks: Ranks) -> Iterator[Verify]:
    """Yield a function for rank 0 that verifies a checkpoint on all ranks. A collective: the other ranks verify their
    parts of each checkpoint that rank 0 requests, and enter the block when rank 0 leaves it."""

    def verify_together(checkpoint: CheckpointLayout, manifest: Manifest) -> None:
        if problem := _verify_parts(ranks, (checkpoint.root, manifest.files)):
            raise ValueError(problem)

    if not ranks.is_rank_0:
        while (request := ranks.broadcast(None)) is not None:
            _verify_part(ranks, request)
        yield verify
        return
    try:
        yield verify_together
    finally:
        ranks.broadcast(None)


def _verify_parts(ranks: Ranks, request: tuple[Path, Files]) -> str:
    ranks.broadcast(request)
    return _verify_part(ranks, request)


def _verify_part(ranks: Ranks, request: tuple[Path, Files]) -> str:
    """Verify this rank's part of the files; return the first problem of any rank, or an empty text. A collective."""
    folder, files = request
    # The largest files come first, so that the parts have about equal sizes.
    names = sorted(files, key=lambda name: (-files[name].size, name))[ranks.rank :: ranks.world]
    try:
        own = _problem(folder, {name: files[name] for name in names})
    except OSError as error:
        own = str(error)
    return next(filter(None, ranks.gather_text(own)), "")


def _problem(folder: Path, files: Files) -> str:
    """Return how the first differing file differs, or an empty text."""
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected.size:
            return f"{name} has {path.stat().st_size} bytes instead of {expected.size}"
        if file_sha256(path) != expected.sha256:
            return f"{name} has another digest"
    return ""
