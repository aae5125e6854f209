"""Runs tests with the Slurm of a newer Debian, in a root filesystem of that release, which is made once.

Usage: python -m tests.support.newer_slurm [arguments of pytest]
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.packages import install
from tests.support.slurm_lab import PACKAGES

SUITE = "trixie"
"""Debian 13, with Slurm 24.11."""
_MORE_PACKAGES = ("ca-certificates", "iproute2", "libexpat1", "postgresql", "procps", "sudo")
_RUN = """
root=$1; shift
mount --bind "$root" "$root"
for folder in /proc /dev /sys; do mount --rbind $folder "$root$folder"; done
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p "$root$1"; else touch "$root$1"; fi
    mount --bind "$1" "$root$1"
    shift
done
shift
cp /etc/hosts /etc/resolv.conf "$root/etc/"
exec chroot "$root" "$@"
"""
"""Mounts in a namespace of its own, which end with the tests. Tests mount, too, which needs a root that is a mount."""


def make_root(folder: Path) -> None:
    """Make a root filesystem with Slurm, unless it is complete. It takes some minutes."""
    complete = folder / "complete"
    if complete.exists():
        return
    if shutil.which("debootstrap") is None:
        install("debootstrap", "debootstrap")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    included = ",".join((*PACKAGES, *_MORE_PACKAGES))
    subprocess.run(["debootstrap", "--variant=minbase", f"--include={included}", SUITE, str(folder)], check=True)
    complete.touch()


def main(arguments: Sequence[str]) -> None:
    if os.geteuid() != 0:
        sys.exit("only root can mount folders and change the root filesystem")
    checkout = Path(__file__).parents[2]
    root = checkout / "build" / SUITE
    make_root(root)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # Jobs of other accounts need an interpreter that is not below the home of this one.
    system = [path for path in (Path("/usr/bin") / version, Path("/usr/lib") / version) if path.exists()]
    shared = dict.fromkeys([checkout, Path(sys.base_prefix), Path(sys.prefix), *system])
    variables = {name: os.environ[name] for name in ("CI", "LANG", "TERM") if name in os.environ}
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    assigned = [f"{name}={value}" for name, value in {**variables, "PATH": path, "HOME": "/root"}.items()]
    start = 'cd "$0" && exec "$@"'
    command = ["env", "-i", *assigned, "bash", "-c", start, str(checkout), sys.executable, "-m", "pytest", *arguments]
    namespace = ["unshare", "--mount", "--propagation", "private", "bash", "-ec", _RUN, "bash"]
    os.execvp(namespace[0], [*namespace, str(root), *map(str, shared), "--", *command])


if __name__ == "__main__":
    main(sys.argv[1:])
