"""nginx as a proxy before a service."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.packages import install
from tests.support.sockets import listening_sockets
from tests.support.wait import wait_until

FOLDERS = "".join(
    f"{name}_temp_path {{folder}}/{name.removesuffix('_body')};\n"
    for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
)
_CONFIGURATION = """
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    {folders}
    access_log {folder}/requests.log;
    {servers}
}}
"""


def start_nginx(configuration: Path) -> subprocess.Popen[bytes]:
    """Start nginx with a configuration, which names all files that it writes."""
    if shutil.which("nginx") is None:
        install("nginx", "nginx-light")
    return subprocess.Popen(["nginx", "-c", str(configuration), "-e", "stderr", "-g", "daemon off; user root;"])


@contextmanager
def nginx_servers(folder: Path, servers: Mapping[int, str]) -> Iterator[None]:
    """Run nginx with servers, given by port with their directives, until the end of the block. The file `requests.log`
    of the folder has what it answered."""
    folder.mkdir(exist_ok=True)
    blocks = "".join(f"server {{ listen 127.0.0.1:{port}; {text} }}\n" for port, text in servers.items())
    path = folder / "nginx.conf"
    path.write_text(_CONFIGURATION.format(folder=folder, folders=FOLDERS.format(folder=folder), servers=blocks))
    process = start_nginx(path)
    try:
        endpoints = {("127.0.0.1", port) for port in servers}
        wait_until(lambda: endpoints <= listening_sockets([process.pid]), 20, "nginx to listen")
        yield
    finally:
        process.terminate()
        process.wait(10)


def documented_location(path: str, target: str) -> str:
    """Return the location of nginx in docs/operations.md, for another path and target."""
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    block = text.split("```nginx\n")[1].split("```")[0]
    for original, changed in {"/trainyard/": f"{path}/", "http://127.0.0.1:8470/": target}.items():
        assert original in block
        block = block.replace(original, changed)
    return block
