"""Adds the digests of uploaded files to an accepted spec, so that its job always reads the same examples."""

from dataclasses import replace

from service.core.errors import InvalidSpecError, NotFoundError
from service.db.models import DataFile
from service.files.service import FileService, file_resource
from service.specs.acceptance import AcceptedSpec, RejectedSpec
from trainyard.contract.problems import Problem
from trainyard.contract.spec.text_data import TextData, uploads_of
from trainyard.contract.spec.text_sources import UploadedSource
from trainyard.contract.spec.unsupported import unsupported_fields
from trainyard.contract.spec.uploaded_data import Content, pinned


def pin_files(files: FileService, accepted: AcceptedSpec) -> AcceptedSpec:
    """Return the spec with the digests of its files, and with their format instead of `auto`.

    Raises:
        InvalidSpecError: The caller sees no such file, the digest differs, or the format does not fit the spec.
    """
    data = accepted.spec.data
    if not isinstance(data, TextData) or not (uploads := dict(uploads_of(data))):
        return accepted
    rows = {field: _find(files, field, source) for field, source in uploads.items()}
    evaluation = rows.get("data.eval_id")
    if evaluation is not None and evaluation.format != rows["data.id"].format:
        message = f"has the format `{evaluation.format}`, and `data.id` the format `{rows['data.id'].format}`"
        raise InvalidSpecError([Problem(param="data.eval_id", message=message)])
    contents = {field: Content(row.digest, file_resource(row).format) for field, row in rows.items()}
    spec = accepted.spec.model_copy(update={"data": pinned(data, contents)})
    if problems := unsupported_fields(spec, accepted.site):
        raise InvalidSpecError(problems)
    return replace(accepted, spec=spec)


def pin_or_reject(files: FileService, accepted: AcceptedSpec) -> AcceptedSpec | RejectedSpec:
    """Return the same for a spec of a batch, with the problems instead of an error."""
    try:
        return pin_files(files, accepted)
    except InvalidSpecError as error:
        return RejectedSpec(tuple(error.problems))


def _find(files: FileService, field: str, source: UploadedSource) -> DataFile:
    try:
        row = files.get(source.id)
    except NotFoundError:
        message = "is the id of no file that you can read; `trainyard files list` shows them"
        raise InvalidSpecError([Problem(param=field, message=message)]) from None
    if source.digest not in (None, row.digest):
        param = f"{field.removesuffix('id')}digest"
        raise InvalidSpecError([Problem(param=param, message=f"is not the digest of file {row.id}, {row.digest}")])
    if not files.has_content(row):
        message = "is a file whose content is missing on the disk of the runs; upload it again"
        raise InvalidSpecError([Problem(param=field, message=message)])
    return row
