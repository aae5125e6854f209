"""The section of a training spec that names uploaded data files."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import StringConstraints

from trainyard.contract.data_files import data_file
from trainyard.contract.spec.text_data import TextData, TextFiles, TextSource
from trainyard.contract.validation_messages import DIGEST_PATTERN, FILE_ID_PATTERN

FileId = Annotated[str, StringConstraints(pattern=FILE_ID_PATTERN)]
_Digest = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]


class UploadedFiles(TextData, TextSource):
    """JSONL files that were uploaded (`trainyard files upload`, `POST /v1/files`)."""

    source: Literal["file"] = "file"
    id: FileId
    """The file with the training examples: `file_...`."""
    digest: _Digest | None = None
    """SHA-256 of its content. Absent: set at submission, so that the job always reads the same examples."""
    eval_id: FileId | None = None
    """The file with the examples for evaluation, read as the training examples are. Absent: no evaluation, unless
    `eval_fraction` is set."""
    eval_digest: _Digest | None = None
    """SHA-256 of its content. Absent: set at submission."""

    @property
    def training_sources(self) -> dict[str, TextSource]:
        return {"data.id": self}

    @property
    def evaluation_sources(self) -> dict[str, TextSource]:
        if self.eval_id is None:
            return {}
        return {"data.eval_id": TextSource(format=self.format, columns=self.columns)}

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        return ()

    def training_part(self) -> TextData:
        """Return the section with the same values for the same training examples: the id of a file does not matter."""
        update = {"eval_id": None, "eval_digest": None} | ({"id": ""} if self.digest else {})
        return super().training_part().model_copy(update=update)

    def located(self, runs: Path) -> TextFiles:
        """Return the section that names the same examples by paths.

        Args:
            runs: The folder of all runs.
        """
        assert self.digest is not None, "the digest is set at submission"
        evaluation = None if self.eval_digest is None else str(data_file(runs, self.eval_digest))
        own = {"source", "id", "digest", "eval_id", "eval_digest"}
        options = {name: getattr(self, name) for name in type(self).model_fields if name not in own}
        return TextFiles(source="jsonl", path=str(data_file(runs, self.digest)), eval_path=evaluation, **options)
