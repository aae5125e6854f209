"""Debian's Chromium for tests of the dashboard: found, or installed by apt where that is allowed."""

import os
import shutil
import subprocess
from functools import cache

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class ChromiumMissingError(Exception):
    """There is none, and it cannot be installed here."""


@cache
def chromium() -> str:
    """The path of a browser.

    Raises:
        ChromiumMissingError: the message says how to get one.
    """
    if found := _found():
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", *command], check=False, timeout=600, **quiet)
        if found := _found():
            return found
    raise ChromiumMissingError("these tests need Chromium: apt-get install chromium")


def _found() -> str | None:
    named = os.environ.get("TRAINYARD_TEST_CHROMIUM")
    return named or next((path for name in _NAMES if (path := shutil.which(name))), None)
