"""A real browser before a real service with real workers."""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.browser import Visit, launched, visiting
from tests.support.chromium import ChromiumMissingError, chromium
from trainyard.client import Client
from trainyard.contract.places import admin_token_file
from trainyard.demo import ServiceProcess


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Without one and without a way to install it: skipped with a hint, in CI an error."""
    try:
        chromium()
    except ChromiumMissingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{error}; in CI nothing is skipped")
        pytest.skip(str(error))
    with launched() as made:
        yield made


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    process = ServiceProcess(
        tmp_path_factory.mktemp("service"), local_slots="4", tick_seconds="0.3", webhook_allowed_hosts="127.0.0.1"
    )
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def client(service: ServiceProcess) -> Iterator[Client]:
    with service.client() as made:
        yield made


@pytest.fixture(scope="session")
def token(service: ServiceProcess, client: Client) -> str:
    """The administrator's."""
    return admin_token_file(service.state_dir).read_text().strip()


@pytest.fixture
def stranger(browser: Browser, service: ServiceProcess, client: Client) -> Iterator[Visit]:
    """A window of somebody who is not signed in."""
    with visiting(browser, service.url) as visit:
        yield visit


@pytest.fixture
def visit(stranger: Visit, token: str) -> Iterator[Visit]:
    """A window of the administrator; at the end nothing was complained of, and no other host asked."""
    stranger.sign_in(token)
    yield stranger
    stranger.require_clean()
