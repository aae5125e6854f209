"""A full disk is reported by name. The test mounts a small filesystem, which needs root."""

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def small_disk(world: World) -> Iterator[Path]:
    """Mount a filesystem of 4 MiB as the runs directory."""
    runs = world.settings.runs
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(runs)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot mount a filesystem")
    yield runs
    subprocess.run(["umount", "-l", str(runs)], check=True)


def test_full_disk_is_a_503_of_uploads_and_of_readyz(world: World, small_disk: Path) -> None:
    assert world.client.get("/readyz").json()["checks"]["disk"] == "ok"
    archive = os.urandom(6 * 1024 * 1024)
    digest = f"sha256:{hashlib.sha256(archive).hexdigest()}"
    answer = world.client.put(f"/v1/code/{digest}", content=archive)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "disk_full")
    with (small_disk / "ballast").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096) if os.statvfs(small_disk).f_bavail > 1 else 0:
            pass
    answer = world.client.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")
    assert "is full" in answer.json()["checks"]["disk"]
