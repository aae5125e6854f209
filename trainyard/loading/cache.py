"""The models that were downloaded, by their digest, below the user's cache folder. Loads no torch."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.loading.errors import LoadError

CACHE_VARIABLE = "TRAINYARD_CACHE_DIR"


def cache_folder() -> Path:
    """Return `$TRAINYARD_CACHE_DIR`, else `$XDG_CACHE_HOME/trainyard`, else `~/.cache/trainyard`."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).expanduser().absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "trainyard"


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder of this name, which `fill` writes if it does not exist yet.

    The folder appears when it is complete. A later call continues from the files of an interrupted `fill`. A single
    process fills it at a time.

    Raises:
        LoadError: The cache cannot be written.
    """
    models = cache_folder() / "models"
    folder, partial = models / name, models / f".{name}.partial"
    if folder.is_dir():
        return folder
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models / f".{name}.lock"):
            if not folder.is_dir():
                partial.mkdir(exist_ok=True)
                fill(partial)
                os.replace(partial, folder)
    except OSError as error:
        raise LoadError(
            f"cannot write to the cache {models}: {error.strerror or error}; name another folder with {CACHE_VARIABLE}"
        ) from None
    return folder


def discard(folder: Path) -> None:
    """Remove a folder of the cache whose files are damaged."""
    if folder.parent == cache_folder() / "models":
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
