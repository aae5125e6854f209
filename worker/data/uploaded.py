"""Where the workers find uploaded data files."""

from pathlib import Path

from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.spec.uploaded_data import UploadedFiles
from worker.core.errors import RefusedError


def locate_uploads(spec: TrainingSpec, roots: AllowedRoots, runs: Path) -> tuple[TrainingSpec, AllowedRoots]:
    """Return the spec with the paths of its uploaded files, and the roots with these files allowed.

    Args:
        runs: The folder of all runs.

    Raises:
        RefusedError: The content of a file was removed.
    """
    if not isinstance(spec.data, UploadedFiles):
        return spec, roots
    located = spec.data.located(runs)
    named = {"data.id": (spec.data.id, located.path), "data.eval_id": (spec.data.eval_id, located.eval_path)}
    paths = []
    for field, (file_id, path) in named.items():
        if path is None:
            continue
        if not Path(str(path)).is_file():
            raise RefusedError(
                f"{field}: file {file_id} was deleted, and no unfinished job used it",
                "Upload it again and submit the job with the new id.",
            )
        paths.append(str(path))
    allowed = roots.model_copy(update={"allowed": (*roots.allowed, *paths)})
    return spec.model_copy(update={"data": located}), allowed
