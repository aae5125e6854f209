"""Scripts and styles, under addresses that change with their contents, so that a browser may keep them for ever."""

import gzip
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

_OWN = Path(__file__).parent / "static"
_KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
SWAGGER_UI_VERSION = "5.35.0"
"""Version of swagger-ui-dist from npm in `static/vendor/swagger-ui`, with its licence, without source maps."""
CACHE_FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    """A file as it is sent."""

    body: bytes
    kind: str
    gzipped: bytes
    """The same, gzipped."""


def _asset(path: Path) -> Asset:
    body = path.read_bytes()
    return Asset(body, _KINDS[path.suffix], gzip.compress(body, 6, mtime=0))


class Assets:
    """What lies in `static/`, and Plotly's script, which its Python package brings."""

    def __init__(self, folder: Path = _OWN):
        self._files = {path.name: _asset(path) for path in sorted(folder.iterdir()) if path.suffix in _KINDS}
        digest = sha256(b"".join(name.encode() + asset.body for name, asset in self._files.items()))
        self.version = digest.hexdigest()[:12]
        self.plotly_version = version("plotly")

    def url(self, name: str) -> str:
        """Where a file of ours is. A module's relative imports stay under the same version."""
        return f"/static/{self.version}/{name}"

    @property
    def plotly_url(self) -> str:
        return f"/static/plotly-{self.plotly_version}/plotly.min.js"

    def get(self, group: str, name: str) -> Asset | None:
        """None where there is no such file. A version of yesterday gets the file of today."""
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
        folder = _OWN / "vendor" / "swagger-ui"
        return {path.name: _asset(path) for path in folder.iterdir() if path.suffix in _KINDS}

    @cached_property
    def _plotly(self) -> Asset:
        """Found without importing the package, which takes long; read when it is first asked for."""
        spec = find_spec("plotly")
        assert spec is not None
        assert spec.origin is not None
        return _asset(Path(spec.origin).parent / "package_data" / "plotly.min.js")
