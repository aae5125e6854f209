"""A service in its own process stops on a signal."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.wait import wait_until


@pytest.mark.cpu_seconds(6)
def test_sigterm_stops_the_service_cleanly(tmp_path: Path) -> None:
    """The lease expires and the URL file is removed, before the SIGTERM that uvicorn raises again."""
    state = tmp_path / "state"
    environment = {
        **os.environ,
        "PYTHONPATH": os.getcwd(),
        "TRAINYARD_STATE_DIR": str(state),
        "TRAINYARD_DATABASE_URL": "",
        "TRAINYARD_PORT": "0",
    }
    service = subprocess.Popen([sys.executable, "-m", "service", "serve"], env=environment, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: (state / "url").exists() or service.poll() is not None, 60, "the service to start")
        service.send_signal(signal.SIGTERM)
        _, log_output = service.communicate(timeout=60)
    finally:
        service.kill()
    assert b"stopped; running jobs continue" in log_output
    assert not (state / "url").exists()
    engine = sa.create_engine(f"sqlite:///{state / 'trainyard.sqlite'}")
    with engine.connect() as connection:
        ends = connection.scalar(sa.text("SELECT expires_at FROM leases"))
    engine.dispose()
    assert ends <= time.time() * 1e6
    assert service.returncode == 0
