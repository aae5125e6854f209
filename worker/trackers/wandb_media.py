"""The media in a line of W&B's history: histograms, and files that the client uploads."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from trainyard.contract.wire.media import MediaItem, MediaType
from worker.trackers.artifacts import ArtifactFolder
from worker.trackers.journal import Journal
from worker.trackers.media import histogram, media_item, state_step

Logged = tuple[str, int | None, dict[str, Any], datetime]
"""The name, the step, the value and the time of an object."""

_TYPES: Mapping[str, MediaType] = {
    "image-file": "image",
    "images/separated": "image",
    "table-file": "table",
    "html-file": "html",
    "html": "html",
    "audio-file": "audio",
    "audio": "audio",
    "video-file": "video",
    "videos": "video",
    "object3D-file": "object3d",
    "object3D": "object3d",
    "molecule-file": "object3d",
    "molecule": "object3d",
    "plotly-file": "file",
    "bokeh-file": "file",
}


def report_media(
    artifacts: ArtifactFolder, folder: str, execution: int, journal: Journal, objects: Iterable[Logged]
) -> None:
    """Append the media of a line. An object of another type is left out, which an event of the job states once.

    Args:
        folder: The run's folder of artifacts, as `ArtifactFolder` takes it.

    Raises:
        OSError: They could not be written.
    """
    items: list[MediaItem] = []
    for name, step, value, time in objects:
        state_step(journal, execution, name, step)
        items += _items(name, step, value, time, lambda path: artifacts.listed_path(f"{folder}/{quote(path)}"))
        kind = str(value.get("_type"))[:80]
        if kind != "histogram" and kind not in _TYPES:
            message = f"W&B's {kind!r} is not stored by Trainyard; such values, as {name[:80]!r}, are left out"
            journal.state_once(execution, f"wandb_type_{kind[:40]}", message)
    journal.add_media(execution, items)


def _items(
    name: str, step: int | None, value: Mapping[str, Any], time: datetime, listed_path: Callable[[str], str]
) -> Iterator[MediaItem]:
    kind = value.get("_type")
    if kind == "histogram":
        drawn = histogram(value.get("bins"), value.get("values"))
        item = None if drawn is None else media_item(name, step, "histogram", time, histogram=drawn)
        if item is not None:
            yield item
        return
    type_ = _TYPES.get(kind) if isinstance(kind, str) else None
    for position, (path, caption) in enumerate(_files(value, str(kind)) if type_ else ()):
        fields = {one: value.get(one) for one in ("width", "height")}
        form = str(value.get("format") or "")[:20] or None
        file = {"position": position, "path": listed_path(path), "caption": caption, "format": form}
        item = media_item(name, step, type_ or "file", time, **fields, **file)
        if item is not None:
            yield item


def _files(value: Mapping[str, Any], kind: str) -> Iterator[tuple[str, object]]:
    """Yield the path and the caption of each file of an object, which is a medium or a list of media."""
    if isinstance(value.get("path"), str):
        yield value["path"], value.get("caption")
        return
    members = value.get("filenames", value.get(kind))
    captions = value.get("captions")
    for position, member in enumerate(members if isinstance(members, list) else ()):
        path = member.get("path") if isinstance(member, dict) else member
        own = member.get("caption") if isinstance(member, dict) else None
        listed = captions[position] if isinstance(captions, list) and position < len(captions) else None
        if isinstance(path, str):
            yield path, own or listed
