"""Adds the digests of uploaded files to an accepted spec, so that its job always reads the same examples."""

from dataclasses import replace
from typing import Any

from service.core.errors import InvalidSpecError, NotFoundError
from service.db.models import DataFile
from service.files.service import FileService
from service.specs.acceptance import AcceptedSpec, RejectedSpec
from trainyard.contract.problems import Problem
from trainyard.contract.spec.unsupported import unsupported_fields
from trainyard.contract.spec.uploaded_data import UploadedFiles


def pin_files(files: FileService, accepted: AcceptedSpec) -> AcceptedSpec:
    """Return the spec with the digests of its files, and with their format instead of `auto`.

    Raises:
        InvalidSpecError: The caller sees no such file, the digest is another one, or the format does not fit the spec.
    """
    data = accepted.spec.data
    if not isinstance(data, UploadedFiles):
        return accepted
    training = _find(files, "id", data.id, data.digest)
    update: dict[str, Any] = {"digest": training.digest}
    if data.format == "auto":
        update["format"] = training.format
    if data.eval_id is not None:
        evaluation = _find(files, "eval_id", data.eval_id, data.eval_digest)
        update["eval_digest"] = evaluation.digest
        if evaluation.format != training.format:
            message = f"has the format `{evaluation.format}`, and `data.id` the format `{training.format}`"
            raise InvalidSpecError([Problem(param="data.eval_id", message=message)])
    spec = accepted.spec.model_copy(update={"data": data.model_copy(update=update)})
    if problems := unsupported_fields(spec, accepted.site):
        raise InvalidSpecError(problems)
    return replace(accepted, spec=spec)


def pin_or_reject(files: FileService, accepted: AcceptedSpec) -> AcceptedSpec | RejectedSpec:
    """Return the same for a spec of a batch, with the problems instead of an error."""
    try:
        return pin_files(files, accepted)
    except InvalidSpecError as error:
        return RejectedSpec(tuple(error.problems))


def _find(files: FileService, field: str, file_id: str, digest: str | None) -> DataFile:
    try:
        row = files.get(file_id)
    except NotFoundError:
        message = "is the id of no file that you can read; `trainyard files list` shows them"
        raise InvalidSpecError([Problem(param=f"data.{field}", message=message)]) from None
    if digest not in (None, row.digest):
        param = "data.digest" if field == "id" else "data.eval_digest"
        raise InvalidSpecError([Problem(param=param, message=f"is not the digest of file {row.id}, {row.digest}")])
    if not files.has_content(row):
        message = "is a file whose content is missing on the disk of the runs; upload it again"
        raise InvalidSpecError([Problem(param=f"data.{field}", message=message)])
    return row
