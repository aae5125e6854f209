"""Installs the Debian packages that tests need, if that is possible, so that no test is skipped."""

import os
import shutil
import subprocess
import sys

_OF_PROGRAMS = {"make": "make", "cc": "gcc libc6-dev", "mpirun": "openmpi-bin libopenmpi-dev"}
"""Debian packages by the program that they have."""


def require_program(name: str) -> None:
    """Install a program that users' commands start, if it is missing."""
    if name and shutil.which(name) is None:
        install(name, *_OF_PROGRAMS[name].split())
        assert shutil.which(name), f"{name} is not installed"


def install(what: str, *packages: str) -> None:
    """Install `packages` if this is root on a machine with apt; the caller checks whether that succeeded.

    Args:
        what: Name of the software, for the message.
    """
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print(f"installing {what} for the tests", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-qq", "--no-install-recommends", *packages]):
        done = subprocess.run(
            # Another run of the tests may be installing packages, too.
            ["apt-get", "-o", "DPkg::Lock::Timeout=300", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=600,
            check=False,
        )
        if done.returncode != 0:
            print(done.stdout.decode(errors="replace"), file=sys.stderr)
