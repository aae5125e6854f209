"""Where the workers find uploaded data files."""

from pathlib import Path

from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.text_data import TextData, uploads_of
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.spec.uploaded_data import located, stored_path
from worker.core.errors import RefusedError


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
