"""Container runtimes and a root filesystem for the tests, made of Debian's packages."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from tests.support.docker_engine import SUITE, execute
from tests.support.packages import install

PROGRAMS = {"podman": ("podman", "crun"), "charliecloud": ("ch-run",)}
"""What each runtime needs on the PATH."""
PACKAGES = ("podman", "crun", "fuse-overlayfs", "uidmap", "charliecloud", "debootstrap")
_HYBRID = Path("/sys/fs/cgroup/unified")
_WITHOUT_HYBRID = """#!/bin/sh
exec unshare --mount sh -c 'umount {hybrid}; exec {podman} "$@"' podman "$@"
"""


def require_runtime(runtime: str) -> None:
    """Install a runtime, if it is missing.

    Raises:
        RuntimeError: It cannot be installed.
    """
    needed = (*PROGRAMS[runtime], "debootstrap")
    if not all(map(shutil.which, needed)):
        install("container runtimes", *PACKAGES)
    if missing := [name for name in needed if shutil.which(name) is None]:
        raise RuntimeError(f"not found: {', '.join(missing)}; install the packages {' '.join(PACKAGES)}")


def make_root(folder: Path) -> Path:
    """Make a root filesystem with Debian's Python and the mount points `/sets` and `/etc/hosts`."""
    root = folder / "root"
    execute(["debootstrap", "--variant=minbase", "--include=python3", SUITE, root], os.environ, 600)
    (root / "sets").mkdir()
    (root / "etc" / "hosts").touch()
    return root


def make_root_of_this_machine(root: Path) -> tuple[Path, ...]:
    """Make a root filesystem whose Python is the system's, with the packages of the tests; the versions must be equal.

    Returns:
        The folders of the machine that a runtime must mount where they are.
    """
    packages, version = Path(sysconfig.get_path("purelib")), f"python{sys.version_info.major}.{sys.version_info.minor}"
    mounted = tuple(path for path in (Path("/usr/lib"), Path("/usr/lib64"), packages) if path.exists())
    own = root / "usr/local/lib" / version / "dist-packages"
    folders = ("dev", "etc", "home", "proc", "sys", "tmp", "usr/bin", *(str(path)[1:] for path in mounted))
    for folder in (own, *(root / name for name in folders)):
        folder.mkdir(parents=True)
    for name in ("lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (root / "etc" / name).touch()
    shutil.copy(f"/usr/bin/{version}", root / "usr/bin/python3")
    (own / "packages.pth").write_text(f"{packages}\n")
    return mounted


def podman_path(folder: Path) -> str:
    """Return a PATH on which podman works on machines that mount both versions of cgroups, which crun refuses.

    There podman runs where the second version is not mounted.
    """
    path, podman = os.environ["PATH"], shutil.which("podman")
    controllers = _HYBRID / "cgroup.controllers"
    if podman is None or not controllers.exists() or not controllers.read_text().strip():
        return path
    wrapper = folder / "bin" / "podman"
    wrapper.parent.mkdir()
    wrapper.write_text(_WITHOUT_HYBRID.format(hybrid=_HYBRID, podman=podman))
    wrapper.chmod(0o755)
    return f"{wrapper.parent}:{path}"
