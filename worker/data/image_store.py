"""Copies the encoded images of a section into the cache. Each is decoded once as a check; then any rank reads it from
one file, in any order."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.spec.image_data import ImageFiles
from worker.core.disk_space import require_room
from worker.core.errors import RefusedError
from worker.core.processes import usable_processors
from worker.data.image_decoding import BadImageError, decode_image
from worker.data.image_sources import ImageFolder, ImageRecord, ImageSource, find_images, sources_state
from worker.data.notices import Notice
from worker.data.text_examples import DataAccess
from worker.data.token_cache import CacheEntry, TokenCache

_VERSION = "images 1"
"""Changes when the same files give other records."""
_BYTES, _ENDS, _LABELS, _DIGESTS = "bytes", "ends", "labels", "digests"
"""The files of an entry: uint8, the index after each image's last byte (int64), its class (int32), and the SHA-256 of
its bytes (32 values of uint8)."""
_FACT_BYTES = 8 + 4 + 32
"""Bytes for an image in the files other than the file of encoded images."""
_AT_ONCE = 64
"""Images that are decoded together, after which progress is marked."""
_MAX_THREADS = 16
"""An image of the largest size takes hundreds of megabytes while it is decoded."""
_NAMED = 10
"""Bad images that are named."""
_ROOM_HINT = "Free space on that filesystem, for example by deleting checkpoints of old jobs, or name fewer images."


@dataclass(frozen=True)
class StoredImages:
    """The images of a field of the spec."""

    entry: CacheEntry
    cache: TokenCache
    """Kept while the images are used."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes, by the numbers in `labels`."""
        return tuple(self.entry.facts["classes"])

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Shape (images,)."""
        return self.entry.array(_ENDS, "<i8")

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """Shape (images,)."""
        return self.entry.array(_LABELS, "<i4")

    @cached_property
    def digests(self) -> NDArray[np.uint8]:
        """Shape (images, 32)."""
        return self.entry.array(_DIGESTS, "<u1").reshape(-1, 32)

    @cached_property
    def encoded(self) -> NDArray[np.uint8]:
        """All images, concatenated: shape (bytes,)."""
        return self.entry.array(_BYTES, "<u1")


def store_images(data: ImageFiles, access: DataAccess) -> tuple[list[StoredImages], list[Notice]]:
    """Return the images of each training source, followed by the images of `eval_path` if it is set.

    One rank reads the files.

    Raises:
        RefusedError: A path or an image is invalid.
    """
    cache = access.cache or TokenCache(on_progress=access.on_progress)
    shared = json.loads(access.share(lambda: json.dumps(_prepare(data, cache, access))))
    stored = [StoredImages(CacheEntry.load(Path(path)), cache) for path in shared["entries"]]
    return stored, [Notice(**notice) for notice in shared["notices"]]


def _prepare(data: ImageFiles, cache: TokenCache, access: DataAccess) -> dict[str, Any]:
    entries: list[str] = []
    notices: list[dict[str, Any]] = []
    tables: list[bool] = []
    for field_, source in {**data.training_sources, **data.evaluation_sources}.items():
        sources = find_images(field_, source.path, source.columns, access.roots)
        tables.append(not all(isinstance(one, ImageFolder) for one in sources))
        entry = _entry(field_, sources, data, cache, access.on_progress)
        entries.append(str(entry.path))
        if entry.facts["bad"]:
            notices.append(_skipped(field_, entry.facts))
    for number, (field_, source) in enumerate(data.training_sources.items()):
        # The files for evaluation may be tables.
        used = tables[number] or (number == 0 and any(tables[len(data.training_sources) :]))
        if source.columns and not used:
            section = field_.rpartition(".")[0]
            raise RefusedError(f"{section}.columns: has no effect for folders; it is for Parquet files", "Remove it.")
    return {"entries": entries, "notices": notices}


def _entry(
    field_: str, sources: list[ImageSource], data: ImageFiles, cache: TokenCache, on_progress: Callable[[], None]
) -> CacheEntry:
    limit = data.max_bad_lines if data.on_bad_line == "skip" else 0
    state = sources_state(sources, _VERSION, on_progress)

    def build(folder: Path) -> dict[str, Any]:
        needed = state.size_bytes + state.files * _FACT_BYTES
        require_room(folder.parent, needed, f"{field_}: the copy of the images that training reads", _ROOM_HINT)
        return _build(folder, field_, sources, limit, on_progress)

    entry = cache.entry_or_build(state.key, build)
    if entry.facts["bad"] > limit:
        # The entry is of a job that skipped more.
        raise _too_many_bad(field_, entry.facts["named"], limit)
    if not entry.facts["images"]:
        raise RefusedError(f"{field_}: the files hold no image")
    return entry


@dataclass
class _Tally:
    limit: int
    named: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, field_: str, text: str) -> None:
        """Raises RefusedError: there are more bad images than may be skipped."""
        self.count += 1
        if len(self.named) < _NAMED:
            self.named.append(text)
        if self.count > self.limit:
            raise _too_many_bad(field_, self.named, self.limit)


def _build(
    folder: Path, field_: str, sources: Sequence[ImageSource], limit: int, on_progress: Callable[[], None]
) -> dict[str, Any]:
    """Write the files of an entry, and return facts about it: `images`, `classes`, `bad` and `named`."""
    tally, numbers, end, images = _Tally(limit), dict[str, int](), 0, 0
    with ExitStack() as stack:
        names = (_BYTES, _ENDS, _LABELS, _DIGESTS)
        files = {name: stack.enter_context((folder / name).open("wb")) for name in names}
        for result in _examined(chain.from_iterable(source.records() for source in sources), on_progress):
            if isinstance(result, str):
                tally.add(field_, result)
                continue
            encoded, label = result
            end, images = end + len(encoded), images + 1
            files[_BYTES].write(encoded)
            files[_ENDS].write(np.array([end], dtype="<i8").tobytes())
            files[_LABELS].write(np.array([numbers.setdefault(label, len(numbers))], dtype="<i4").tobytes())
            files[_DIGESTS].write(hashlib.sha256(encoded).digest())
    return {"images": images, "classes": list(numbers), "bad": tally.count, "named": tally.named}


def _examined(records: Iterator[ImageRecord], on_progress: Callable[[], None]) -> Iterator[tuple[bytes, str] | str]:
    """Yield each image with its class, or its problem, in order. Decoding releases the interpreter's lock."""
    with ThreadPoolExecutor(min(usable_processors(), _MAX_THREADS)) as threads:
        while some := list(islice(records, _AT_ONCE)):
            on_progress()
            yield from threads.map(_examine, some)


def _examine(record: ImageRecord) -> tuple[bytes, str] | str:
    try:
        encoded, label = record.read()
        decode_image(encoded)
    except BadImageError as error:
        return f"{record.origin} {error}"
    return encoded, label


def _too_many_bad(field_: str, named: Sequence[str], limit: int) -> RefusedError:
    if not limit:
        return RefusedError(f"{field_}: {named[0]}", "Replace or remove it, or set data.on_bad_line to skip.")
    return RefusedError(
        f"{field_}: more than {limit} bad images (data.max_bad_lines), the first of which are: {'; '.join(named)}"
    )


def _skipped(field_: str, facts: dict[str, Any]) -> dict[str, Any]:
    more = f", and {facts['bad'] - len(facts['named'])} more" if facts["bad"] > len(facts["named"]) else ""
    skipped = "1 bad image was skipped" if facts["bad"] == 1 else f"{facts['bad']} bad images were skipped"
    message = f"{field_}: {skipped}: {'; '.join(facts['named'])}{more}"
    return {
        "kind": "bad_lines_skipped",
        "message": message,
        "level": "warning",
        "data": {"skipped": facts["bad"], "first": facts["named"]},
    }
