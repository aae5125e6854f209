"""The check of the folders that specs may read: whether a folder holds a home, credentials or the service's own
files."""

import os
import pwd
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from service.core.settings import Settings
from trainyard.contract.wire.diagnostics import Finding, ok_finding, warning_finding

ROOTS_FIX = "name the folders of models and data themselves in TRAINYARD_ALLOWED_ROOTS"
_CREDENTIALS = (".ssh", ".aws")
_MAX_ENTRIES = 1000
_FIRST_USER = 1000
"""Smallest uid of a person; the homes of daemons are folders of the system."""


def roots(settings: Settings) -> Finding:
    """Whether no root holds files that users must not read."""
    if problems := list(root_problems(settings)):
        return warning_finding("roots", "; ".join(problems), ROOTS_FIX)
    return ok_finding("roots", f"specs may read models and data in {', '.join(settings.site.roots) or 'no folder'}")


def root_problems(settings: Settings) -> Iterator[str]:
    """Yield each root of the administrator that holds more than models and data, with a description of its contents."""
    people = (entry.pw_dir for entry in pwd.getpwall() if entry.pw_uid >= _FIRST_USER)
    homes = [Path.home(), *map(Path, people)]
    for root in map(Path, settings.allowed_roots):
        held = [f"the home {home}" for home in homes if home.is_relative_to(root)][:1]
        held += ["the state folder of the service"] if settings.state.is_relative_to(root) else []
        held += [f"the credentials {path}" for path in islice(_credentials(root), 1)]
        if held:
            yield f"{root} in TRAINYARD_ALLOWED_ROOTS holds {' and '.join(held)}"


def _credentials(root: Path) -> Iterator[Path]:
    """Yield folders of credentials directly in a folder, and in the folders in it."""
    folders = [root]
    try:
        with os.scandir(root) as entries:
            folders += [Path(one.path) for one in islice(entries, _MAX_ENTRIES) if one.is_dir(follow_symlinks=False)]
    except OSError:
        # The nodes may have it alone.
        return
    yield from (folder / name for folder in folders for name in _CREDENTIALS if os.path.lexists(folder / name))
