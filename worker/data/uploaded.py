"""Locates uploaded data files on the workers, and names them in messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.text_data import TextData, uploads_of
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.spec.uploaded_data import located, stored_path
from worker.core.errors import RefusedError
from worker.data.notices import Notice

R = TypeVar("R", bound=BaseModel)


def locate_uploads(spec: TrainingSpec, roots: AllowedRoots, runs: Path) -> tuple[TrainingSpec, AllowedRoots]:
    """Return the spec with the paths of its uploaded files, and the roots with these files allowed.

    Args:
        runs: The folder of all runs.

    Raises:
        RefusedError: The content of a file was removed.
    """
    if not isinstance(spec.data, TextData) or not (uploads := dict(uploads_of(spec.data))):
        return spec, roots
    paths = []
    for field, source in uploads.items():
        path = stored_path(source, runs)
        if not Path(path).is_file():
            raise RefusedError(
                f"{field}: file {source.id} was deleted, and no unfinished job used it",
                "Upload it again and submit the job with the new id.",
            )
        paths.append(path)
    allowed = roots.model_copy(update={"allowed": (*roots.allowed, *dict.fromkeys(paths))})
    return spec.model_copy(update={"data": located(spec.data, runs)}), allowed


@dataclass(frozen=True)
class UploadNames:
    """The fields and ids by which a spec names its uploaded files, for messages about their paths."""

    uploads: tuple[tuple[str, str, str], ...]
    """The field, the id and the path of each file."""

    @classmethod
    def of(cls, spec: TrainingSpec, runs: Path) -> "UploadNames":
        """`runs`: the folder of all runs."""
        uploads = uploads_of(spec.data) if isinstance(spec.data, TextData) else ()
        return cls(tuple((field, source.id, stored_path(source, runs)) for field, source in uploads))

    def text(self, text: str) -> str:
        """Return a message with the ids instead of the paths."""
        for field, file_id, path in self.uploads:
            text = text.replace(f"{_path_field(field)}: {path}", f"{field}: file {file_id}")
        for field, file_id, path in self.uploads:
            text = text.replace(path, f"file {file_id}")
            text = text.replace(f"{_path_field(field)}: ", f"{field}: ")
        return text

    def notice(self, notice: Notice) -> Notice:
        return replace(notice, message=self.text(notice.message), data=self._value(notice.data))

    def resource(self, resource: R) -> R:
        """Return a resource with the ids instead of the paths."""
        return resource.model_validate(self._value(resource.model_dump(mode="json")))

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Let the messages of errors about the data have the ids."""
        try:
            yield
        except RefusedError as error:
            raise RefusedError(self.text(str(error)), error.hint) from error

    def _value(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case list():
                return [self._value(one) for one in value]
            case dict():
                return {key: self._value(one) for key, one in value.items()}
        return value


def _path_field(field: str) -> str:
    """Return the field of the located file that replaces the field of an id."""
    if field.startswith("data.eval_sets."):
        return field.removesuffix(".id")
    return field.removesuffix("id") + "path"
