"""Debian's Chromium for tests of the dashboard: found, or installed by apt where that is allowed.

Without windows of its own, where there is such a build: a page of it begins in a third of the processor time.
"""

import os
import shutil
from functools import cache

from tests.support.packages import install

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

_PACKAGES = ("chromium-headless-shell", "chromium")
"""The first one is not in every release of Debian."""


class ChromiumMissingError(Exception):
    """Chromium is missing and cannot be installed here."""


@cache
def chromium() -> str:
    """Return the path of the browser, which is installed if that is possible.

    Raises:
        ChromiumMissingError: the message explains how to install it.
    """
    if path := _browser_path():
        return path
    for package in _PACKAGES:
        install("Chromium", package)
        if path := _browser_path():
            return path
    raise ChromiumMissingError("these tests need Chromium: apt-get install chromium")


def _browser_path() -> str | None:
    named = os.environ.get("TRAINYARD_TEST_CHROMIUM")
    return named or next((path for name in _NAMES if (path := shutil.which(name))), None)
