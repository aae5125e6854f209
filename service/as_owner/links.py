"""Hard links to the files of a checkpoint, made by the service or by the owner of both runs."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from trainyard.contract.layout import MANIFEST

_MAX_FILES = 100_000


def link_checkpoint(source: Path, target: Path) -> None:
    """Link every file of a checkpoint into another folder, the manifest last. A repeated call starts again.

    Raises:
        FileNotFoundError: the checkpoint was removed.
        OSError: it cannot be linked; nothing of it is left.
    """
    shutil.rmtree(target, ignore_errors=True)
    try:
        for path in _files(source):
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            os.link(source / path, target / path, follow_symlinks=False)
        # A removal begins with the manifest: if that still exists, all other files were linked.
        os.link(source / MANIFEST, target / MANIFEST, follow_symlinks=False)
    except OSError:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _files(root: Path) -> Iterator[Path]:
    """Yield every regular file but the manifest, relative to the folder; links are left out."""
    if root.is_symlink():
        raise FileNotFoundError(root)
    folders, count = [root], 0
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                path = Path(entry.path).relative_to(root)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False) and path != Path(MANIFEST):
                    count += 1
                    if count > _MAX_FILES:
                        raise OSError(0, f"it has more than {_MAX_FILES} files")
                    yield path
