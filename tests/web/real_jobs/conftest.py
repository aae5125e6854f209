"""The dashboard of a service in a process of its own, whose jobs are real processes."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext

from tests.support.browser import Visit, open_tab, signed_in_context
from trainyard.client import Client
from trainyard.contract.local_paths import admin_token_file
from trainyard.demo import ServiceProcess


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path_factory.mktemp("service"), local_slots="4", tick_seconds="0.3")
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="package")
def client(service: ServiceProcess) -> Iterator[Client]:
    with service.client() as admin_client:
        yield admin_client


@pytest.fixture(scope="package")
def token(service: ServiceProcess, client: Client) -> str:
    """The administrator's API token."""
    return admin_token_file(service.state_dir).read_text().strip()


@pytest.fixture(scope="package")
def admin_context(browser: Browser, service: ServiceProcess, token: str) -> Iterator[BrowserContext]:
    with signed_in_context(browser, service.url, token) as context:
        yield context


@pytest.fixture(scope="package")
def admin_tab(admin_context: BrowserContext, service: ServiceProcess) -> Iterator[Visit]:
    with open_tab(admin_context, service.url) as visit:
        yield visit
