"""The PostgreSQL server of the tests leaves nothing behind, however they end."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.postgres import PostgresServer
from tests.support.wait import wait_until

PROGRAM = """
import time
from tests.support.postgres import running_server
with running_server() as server:
    print(server.folder, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_killed_leaves_nothing(end: signal.Signals, postgres_server: PostgresServer) -> None:
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=root, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        folder = Path(tests.stdout.readline().strip())
        server = psutil.Process(int((folder / "data" / "postmaster.pid").read_text().splitlines()[0]))
        tests.send_signal(end)
        tests.wait(60)
    wait_until(lambda: not server.is_running(), 30, "the server to be gone")
    wait_until(lambda: not folder.exists(), 30, "its folder to be gone")
    assert postgres_server.folder.exists(), "another's stays"
