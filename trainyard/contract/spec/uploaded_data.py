"""Uploaded files in the sections of a spec: their digests, which are set at submission, and where workers find them."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.contract.data_files import data_file
from trainyard.contract.spec.text_data import TextData, TextFiles, TextMixture, UploadedFiles
from trainyard.contract.spec.text_sources import (
    FileSource,
    MixtureSource,
    TextFormat,
    UploadedMixtureSource,
    UploadedSource,
)


class Content(NamedTuple):
    """The digest and the format of an uploaded file."""

    digest: str
    format: TextFormat


def pinned(data: TextData, contents: Mapping[str, Content]) -> TextData:
    """Return the section with the digests of its uploaded files, and their formats instead of `auto`.

    Args:
        contents: The content of every uploaded file, by the field that holds the file's id.
    """
    update = _replaced(data, lambda field, source: source.model_copy(update=_pin(source, contents[field])))
    if isinstance(data, UploadedFiles):
        update |= _pin(data, contents["data.id"])
        if data.eval_id is not None:
            update["eval_digest"] = contents["data.eval_id"].digest
    return data.model_copy(update=update)


def _pin(source: UploadedSource, content: Content) -> dict[str, Any]:
    format = content.format if source.format == "auto" else source.format
    return {"digest": content.digest, "format": format}


def located(data: TextData, runs: Path) -> TextData:
    """Return the section with the paths of its uploaded files instead of their ids.

    Args:
        runs: The folder of all runs.
    """

    def locate(_: str, source: UploadedSource) -> FileSource:
        own = {"path": stored_path(source, runs), "format": source.format, "columns": source.columns}
        if isinstance(source, UploadedMixtureSource):
            return MixtureSource(weight=source.weight, name=source.name, **own)
        return FileSource(**own)

    update = _replaced(data, locate)
    if not isinstance(data, UploadedFiles):
        return data.model_copy(update=update)
    evaluation = None if data.eval_digest is None else str(data_file(runs, data.eval_digest))
    own = {"source", "id", "digest", "eval_id", "eval_digest"}
    options = {name: getattr(data, name) for name in type(data).model_fields if name not in own}
    return TextFiles(path=stored_path(data, runs), eval_path=evaluation, **(options | update))


def stored_path(source: UploadedSource, runs: Path) -> str:
    """Return the path of the content of a file whose digest is set."""
    assert source.digest is not None, "the digest is set at submission"
    return str(data_file(runs, source.digest))


def _replaced(data: TextData, change: Callable[[str, UploadedSource], Any]) -> dict[str, Any]:
    """Return the fields of the section that list sources, with each uploaded file replaced.

    Args:
        change: Takes the field of the file's id, and the source.
    """
    update: dict[str, Any] = {}
    if isinstance(data, TextMixture):
        update["sources"] = tuple(
            change(f"data.sources.{index}.id", source) if isinstance(source, UploadedSource) else source
            for index, source in enumerate(data.sources)
        )
    if isinstance(data, TextFiles | TextMixture | UploadedFiles):
        update["eval_sets"] = {
            name: change(f"data.eval_sets.{name}.id", given) if isinstance(given, UploadedSource) else given
            for name, given in data.eval_sets.items()
        }
    return update


def digests_in(section: Any) -> Iterator[str]:
    """Yield the digests of uploaded files in the `data` section of a stored spec, of whatever release."""
    if isinstance(section, dict):
        for key, value in section.items():
            if key in ("digest", "eval_digest") and isinstance(value, str):
                yield value
            else:
                yield from digests_in(value)
    elif isinstance(section, list):
        for value in section:
            yield from digests_in(value)
