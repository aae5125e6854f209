"""Scripts and styles, under addresses that change with their contents, so that browsers can cache them forever."""

import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

_STATIC = Path(__file__).parent / "static"
_STATIC_OF_PLUGINS = sorted(Path(__file__).parents[1].glob("plugins/*/static"))
_MEDIA_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_IMPORT = re.compile(rb'^import (?:[^";]* from )?"\./([a-z_]+\.js)";$', re.MULTILINE)
LIBRARIES = MappingProxyType({"uplot": "1.6.32"})
"""The version of the package uplot from npm. Its files are in `static/vendor`, with its licence
and without source maps."""
CACHE_FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    """A file in the forms in which it is sent."""

    body: bytes
    media_type: str

    @cached_property
    def gzipped(self) -> bytes:
        """The compressed body. Few of the files are requested from a service that has just started."""
        return gzip.compress(self.body, 6, mtime=0)


def _asset(path: Path) -> Asset:
    return Asset(path.read_bytes(), _MEDIA_TYPES[path.suffix])


class Assets:
    """The files of `static/` and of the plugins' folders of that name, and the libraries below `static/`."""

    def __init__(self, folders: Sequence[Path] = (_STATIC, *_STATIC_OF_PLUGINS)):
        paths = sorted(path for folder in folders for path in folder.iterdir() if path.suffix in _MEDIA_TYPES)
        self._files = {path.name: _asset(path) for path in paths}
        digest = sha256(b"".join(name.encode() + asset.body for name, asset in self._files.items()))
        self.version = digest.hexdigest()[:12]

    def url(self, name: str) -> str:
        """Return the address of a file. A module's relative imports resolve to the same version."""
        return f"/static/{self.version}/{name}"

    def imports(self, *scripts: str) -> list[str]:
        """Return the modules that scripts import, directly or not, so that a page can preload them at once."""
        names = list(scripts)
        for current in names:
            names += [one.decode() for one in _IMPORT.findall(self._files[current].body) if one.decode() not in names]
        return names[len(scripts) :]

    def get(self, group: str, name: str) -> Asset | None:
        """Return a file, or None if there is none. An outdated version in the address gets the current file."""
        library = self._libraries.get(group)
        return library.get(name) if library is not None else self._files.get(name)

    def library_url(self, library: str, name: str) -> str:
        """Return the address of a library's file."""
        return f"/static/{_group(library)}/{name}"

    @property
    def groups(self) -> frozenset[str]:
        """The groups in addresses whose files never change."""
        return frozenset({self.version, *self._libraries})

    @cached_property
    def _libraries(self) -> dict[str, dict[str, Asset]]:
        return {_group(library): _read_library(_STATIC / "vendor" / library) for library in LIBRARIES}


def _group(library: str) -> str:
    return f"{library}-{LIBRARIES[library]}"


def _read_library(folder: Path) -> dict[str, Asset]:
    return {path.name: _asset(path) for path in folder.iterdir() if path.suffix in _MEDIA_TYPES}
