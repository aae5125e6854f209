"""The folders from which specs may read models and data, checked by the service and again by the worker."""

from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Annotated

from pydantic import Field, StringConstraints

from trainyard.contract.base import Strict

_Root = Annotated[str, StringConstraints(max_length=4096)]
_Roots = Annotated[tuple[_Root, ...], Field(max_length=256)]


class OutsideRootsError(ValueError):
    """A path whose links lead out of the allowed folders."""


class AllowedRoots(Strict):
    """Allowed folders, and excluded files and folders below them. The deepest one that contains a path decides."""

    allowed: _Roots = ("/",)
    excluded: _Roots = ()

    def contains(self, path: PurePath) -> bool:
        """Return whether a path is allowed, by its text alone."""
        return _depth(path, map(PurePath, self.allowed)) > _depth(path, map(PurePath, self.excluded))

    def resolve(self, path: Path) -> Path:
        """Return the real path, with links resolved.

        Raises:
            OSError: There is nothing at this path.
            OutsideRootsError: The real path is not allowed.
        """
        real = path.resolve(strict=True)
        allowed, excluded = ((Path(root).resolve() for root in roots) for roots in (self.allowed, self.excluded))
        if _depth(real, allowed) <= _depth(real, excluded):
            raise OutsideRootsError(
                f"{path} leads out of the folders that this service allows (TRAINYARD_ALLOWED_ROOTS)"
            )
        return real


UNRESTRICTED_ROOTS = AllowedRoots()


def _depth(path: PurePath, folders: Iterable[PurePath]) -> int:
    """Return the number of parts of the deepest folder that contains the path; 0 if none does."""
    return max((len(folder.parts) for folder in folders if path.is_relative_to(folder)), default=0)
