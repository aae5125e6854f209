"""What a starting service writes for the clients on its machine."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from service.core.settings import Settings
from service.server import run_server
from trainyard.contract.local_paths import service_url_file
from trainyard.demo import free_port


class StartedError(Exception):
    """Ends the server before it accepts requests."""


class Background:
    def start(self) -> None:
        raise StartedError

    def stop(self) -> None: ...


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Restore the signal handlers, which a server replaces."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    former = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, former, strict=True):
        signal.signal(number, handler)


def test_url_for_clients_on_the_same_machine_is_not_the_public_one(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, port=free_port(), public_url="http://login1:8470")
    with pytest.raises(StartedError):
        run_server(uvicorn.Config(lambda: None), settings, [Background()], end_streams=lambda: None)
    assert service_url_file(tmp_path).read_text() == f"http://127.0.0.1:{settings.port}\n"
