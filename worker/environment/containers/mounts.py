"""Mounts of a container: the run directory, the allowed roots, and the mounts of the spec."""

from collections.abc import Iterable
from pathlib import Path

from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.containers import Container, Mount, is_image_path, is_plain_path, parse_mount
from trainyard.contract.spec.prerequisites import prerequisite_runs
from trainyard.contract.spec.text_data import TextData, uploads_of
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.spec.uploaded_data import stored_path
from worker.environment.packages import OUR_PACKAGES, package_folder
from worker.environment.prepare import EnvironmentRejectedError

IMAGE = "environment.container.image"
MOUNTS = "environment.container.mounts"


def container_mounts(container: Container, run: Path, roots: AllowedRoots) -> tuple[Mount, ...]:
    """Return all mounts, with the spec's mounts last. Links are resolved, so that none leads out of the roots.

    Args:
        run: The run directory.

    Raises:
        EnvironmentRejectedError: A path cannot be mounted.
    """
    folders = [run, *(Path(root) for root in roots.allowed if root != "/" and Path(root).is_dir())]
    fixed = [Mount(str(folder.resolve()), str(folder)) for folder in _outermost(folders)]
    for mount in fixed:
        if not is_plain_path(mount.source) or not is_plain_path(mount.target):
            raise EnvironmentRejectedError(
                f"environment.container: `{mount.source}` cannot be mounted into a container, since its path has "
                "characters other than letters, digits and ._+@=/-"
            )
    return (*fixed, *(_resolve_mount(index, text, roots) for index, text in enumerate(container.mounts)))


def upload_mounts(spec: TrainingSpec, runs: Path, mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Return the mounts of the spec's uploaded files that the other mounts do not contain.

    Args:
        runs: The folder of all runs.
    """
    if not isinstance(spec.data, TextData):
        return ()
    return _read_only(dict.fromkeys(stored_path(source, runs) for _, source in uploads_of(spec.data)), mounts)


def prerequisite_mounts(spec: TrainingSpec, runs: Path, mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Return the mounts of the existing run directories of the jobs in `after`, like `upload_mounts`."""
    return _read_only([str(run) for run in prerequisite_runs(spec.after, runs) if run.is_dir()], mounts)


def _read_only(paths: Iterable[str], mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Return mounts of the paths that the other mounts do not contain."""
    visible = [Path(mount.target) for mount in mounts]
    hidden = [path for path in paths if not any(Path(path).is_relative_to(folder) for folder in visible)]
    return tuple(Mount(path, path, read_only=True) for path in hidden)


def package_mounts(folder: Path) -> tuple[Mount, ...]:
    """Return the mounts of our packages below a folder of the run directory, which gets their mount points."""
    mounts = []
    for name in OUR_PACKAGES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        source = package_folder(name)
        if not is_plain_path(str(source)):
            raise EnvironmentRejectedError(
                f"environment.container: the service is installed in `{source}`, which no runtime can mount"
            )
        mounts.append(Mount(str(source), str(folder / name), read_only=True))
    return tuple(mounts)


def image_argument(container: Container, roots: AllowedRoots) -> str:
    """Return the image for the runtime: an unchanged reference, or the real path of a file or folder.

    Raises:
        EnvironmentRejectedError: There is no such file, or it is not under the roots.
    """
    if not is_image_path(container.image):
        return container.image
    return _real_path(IMAGE, container.image, roots)


def _resolve_mount(index: int, text: str, roots: AllowedRoots) -> Mount:
    mount = parse_mount(text)
    return mount._replace(source=_real_path(f"{MOUNTS}.{index}", mount.source, roots))


def _real_path(field: str, path: str, roots: AllowedRoots) -> str:
    try:
        real = str(roots.resolve(Path(path)))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise EnvironmentRejectedError(f"{field}: `{path}` cannot be used on this node: {reason}") from None
    if not is_plain_path(real):
        raise EnvironmentRejectedError(f"{field}: `{path}` leads to `{real}`, which no runtime can mount")
    return real


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """Return the folders that no other folder contains."""
    outermost: list[Path] = []
    for folder in sorted(folders, key=lambda folder: len(folder.parts)):
        if not any(folder.is_relative_to(other) for other in outermost):
            outermost.append(folder)
    return outermost
