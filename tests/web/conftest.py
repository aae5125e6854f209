"""Chromium on a service that runs real workers."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.support.browser import Visit, browser_context, open_tab, open_tab_in_new_profile, start_chromium
from tests.support.chromium import ChromiumMissingError, chromium
from tests.support.live import wait_for_status, wait_for_step
from tests.support.world import World
from tests.web.specs import ENDLESS_SPEC, RUNNING_JOB_NAME, SLOW_CODE, SPEC
from trainyard.client import Client
from trainyard.contract.local_paths import admin_token_file
from trainyard.contract.spec.templates import code_folder
from trainyard.demo import ServiceProcess


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium. If it is missing and cannot be installed, tests are skipped with a hint, but fail in CI."""
    try:
        chromium()
    except ChromiumMissingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{error}; in CI nothing is skipped")
        pytest.skip(str(error))
    # On a loaded machine, a page shows an event some seconds after it has received it.
    expect.set_options(timeout=20_000)
    with start_chromium() as chromium_browser:
        yield chromium_browser


@pytest.fixture(scope="module")
def world(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A service without jobs, for the tests of a module."""
    folder = tmp_path_factory.mktemp("world")
    shutil.copy(migrated_sqlite, folder / "web.sqlite")
    made = World(f"sqlite:///{folder / 'web.sqlite'}", folder / "state")
    yield made
    made.database.dispose()


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    process = ServiceProcess(
        tmp_path_factory.mktemp("service"), local_slots="4", tick_seconds="0.3", webhook_allowed_hosts="127.0.0.1"
    )
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


@pytest.fixture
def signed_out(browser: Browser, service: ServiceProcess, client: Client) -> Iterator[Visit]:
    """A tab without a session."""
    with open_tab_in_new_profile(browser, service.url) as visit:
        yield visit


@pytest.fixture(scope="package")
def admin_context(browser: Browser, service: ServiceProcess, token: str) -> Iterator[BrowserContext]:
    """A browser profile in which the administrator is signed in. All tests share its cache of compiled scripts."""
    with browser_context(browser) as context:
        with open_tab(context, service.url) as visit:
            visit.sign_in(token)
            visit.assert_clean()
        yield context


@pytest.fixture(scope="package")
def admin_tab(admin_context: BrowserContext, service: ServiceProcess) -> Iterator[Visit]:
    """The tab that is lent to all tests of the administrator."""
    with open_tab(admin_context, service.url) as visit:
        yield visit


@pytest.fixture
def visit(admin_tab: Visit) -> Iterator[Visit]:
    """A tab of the administrator; fails at the end if there were errors or requests to other hosts."""
    with admin_tab.lent() as visit:
        yield visit


@pytest.fixture
def new_tab(admin_context: BrowserContext, service: ServiceProcess) -> Iterator[Visit]:
    """A tab of the administrator for a test that changes it for good: its clock, or scripts that each page runs."""
    with open_tab(admin_context, service.url) as visit:
        yield visit
        visit.assert_clean()


@pytest.fixture(scope="package")
def running_job(
    request: pytest.FixtureRequest, client: Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A job that trains until the end of the tests, and needs little CPU."""
    code = tmp_path_factory.mktemp("code")
    shutil.copy(code_folder() / "spirals.py", code)
    (code / "slow.py").write_text(SLOW_CODE)
    job = client.submit({**ENDLESS_SPEC, "name": RUNNING_JOB_NAME}, code=code)
    request.getfixturevalue("background_jobs")  # they are after it in the queue
    wait_for_step(client, job.id, 10)
    yield job
    client.cancel(job.id)
    wait_for_status(client, job.id, "cancelled")


@pytest.fixture(scope="package")
def background_jobs(client: Client) -> dict[str, str]:
    """Ids of jobs by name. They run during the first tests, and later tests need them."""
    two_ranks = {"gpus": 2, "strategy": "ddp", "checkpoint": {"every_steps": 200}}
    diverging = {"optimizer": {"name": "sgd", "lr": 1e9}}
    jobs = [
        client.submit({**SPEC, **overrides})
        for overrides in ({"name": "saved", **two_ranks}, {"name": "too-hot", **diverging})
    ]
    return {job.name: job.id for job in jobs}
