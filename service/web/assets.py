"""Scripts and styles, under addresses that change with their contents, so that browsers can cache them forever."""

import gzip
import re
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

_STATIC = Path(__file__).parent / "static"
_MEDIA_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_IMPORT = re.compile(rb'^import (?:.* from )?"\./([a-z_]+\.js)";$', re.MULTILINE)
SWAGGER_UI_VERSION = "5.35.0"
"""Version of swagger-ui-dist from npm in `static/vendor/swagger-ui`, with its licence, without source maps."""
CACHE_FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    """A file as it is sent."""

    body: bytes
    media_type: str
    gzipped: bytes


def _asset(path: Path) -> Asset:
    body = path.read_bytes()
    return Asset(body, _MEDIA_TYPES[path.suffix], gzip.compress(body, 6, mtime=0))


class Assets:
    """The files of `static/`, and Plotly's script from its Python package."""

    def __init__(self, folder: Path = _STATIC):
        self._files = {path.name: _asset(path) for path in sorted(folder.iterdir()) if path.suffix in _MEDIA_TYPES}
        digest = sha256(b"".join(name.encode() + asset.body for name, asset in self._files.items()))
        self.version = digest.hexdigest()[:12]
        self.plotly_version = version("plotly")

    def url(self, name: str) -> str:
        """Return the address of a file. A module's relative imports resolve to the same version."""
        return f"/static/{self.version}/{name}"

    @property
    def plotly_url(self) -> str:
        return f"/static/plotly-{self.plotly_version}/plotly.min.js"

    def imports(self, name: str) -> list[str]:
        """Return the modules that a script imports, directly or not, so that a page can preload them at once."""
        names = [name]
        for current in names:
            names += [one.decode() for one in _IMPORT.findall(self._files[current].body) if one.decode() not in names]
        return names[1:]

    def get(self, group: str, name: str) -> Asset | None:
        """Return a file, or None if there is none. An outdated version in the address gets the current file."""
        if name == "plotly.min.js":
            return self._plotly if group == f"plotly-{self.plotly_version}" else None
        if group == f"swagger-ui-{SWAGGER_UI_VERSION}":
            return self._swagger_ui.get(name)
        return self._files.get(name)

    def swagger_ui_url(self, name: str) -> str:
        """Return the URL of a file of Swagger UI."""
        return f"/static/swagger-ui-{SWAGGER_UI_VERSION}/{name}"

    @cached_property
    def _swagger_ui(self) -> dict[str, Asset]:
        """The files of Swagger UI, which are read at the first request for one of them."""
        folder = _STATIC / "vendor" / "swagger-ui"
        return {path.name: _asset(path) for path in folder.iterdir() if path.suffix in _MEDIA_TYPES}

    @cached_property
    def _plotly(self) -> Asset:
        """Plotly's script, located without importing the package, which is slow, and read on the first request."""
        spec = find_spec("plotly")
        assert spec is not None
        assert spec.origin is not None
        return _asset(Path(spec.origin).parent / "package_data" / "plotly.min.js")
