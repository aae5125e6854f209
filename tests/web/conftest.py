"""Chromium on a service whose workers are imitated; `real_jobs` has tests with real ones."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from service.web.assets import Assets
from tests.support.browser import Visit, open_tab, open_tab_in_new_profile, signed_in_context, start_chromium
from tests.support.chromium import ChromiumMissingError, chromium
from tests.support.live import wait_for_status
from tests.support.live_service import Endless, LiveService, live_service
from tests.support.world import World
from tests.web.specs import ENDLESS_SPEC, HOSTILE, RUNNING_JOB_NAME, SPEC
from trainyard.client import Client


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
def service(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    folder = tmp_path_factory.mktemp("service")
    database = Path(shutil.copy(migrated_sqlite, folder / "service.sqlite"))
    with live_service(database, folder / "state") as running:
        yield running


@pytest.fixture(scope="package")
def client(service: LiveService) -> Iterator[Client]:
    with service.client() as admin_client:
        yield admin_client


@pytest.fixture(scope="package")
def token(service: LiveService) -> str:
    """The administrator's API token."""
    return service.world.token


@pytest.fixture
def signed_out(browser: Browser, service: LiveService, client: Client) -> Iterator[Visit]:
    """A tab without a session."""
    with open_tab_in_new_profile(browser, service.url) as visit:
        yield visit


@pytest.fixture(scope="package")
def admin_context(browser: Browser, service: LiveService, token: str) -> Iterator[BrowserContext]:
    """A browser profile in which the administrator is signed in. All tests share its cache of compiled scripts."""
    with signed_in_context(browser, service.url, token) as context:
        yield context


@pytest.fixture(scope="package")
def admin_tab(admin_context: BrowserContext, service: LiveService) -> Iterator[Visit]:
    """The tab that is lent to all tests of the administrator."""
    with open_tab(admin_context, service.url) as visit:
        yield visit


@pytest.fixture
def visit(admin_tab: Visit) -> Iterator[Visit]:
    """A tab of the administrator; fails at the end if there were errors or requests to other hosts."""
    with admin_tab.lent() as visit:
        yield visit


@pytest.fixture
def new_tab(admin_context: BrowserContext, service: LiveService) -> Iterator[Visit]:
    """A tab of the administrator for a test that changes it for good: its clock, or scripts that each page runs."""
    with open_tab(admin_context, service.url) as visit:
        yield visit
        visit.assert_clean()


@pytest.fixture(scope="package")
def endless_job(
    service: LiveService, client: Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, Endless]]:
    code = tmp_path_factory.mktemp("code")
    (code / "slow.py").write_text("def build(spec): ...\n")
    job = client.submit({**ENDLESS_SPEC, "name": RUNNING_JOB_NAME}, code=code)
    with Endless(service, job.id, HOSTILE).open() as endless:
        yield job, endless


@pytest.fixture
def running_job(endless_job: tuple[Any, Endless]) -> Iterator[Any]:
    """A job that trains until the end of the test."""
    job, endless = endless_job
    with endless.running():
        yield job


@pytest.fixture(scope="package")
def saved_job(service: LiveService, client: Client) -> str:
    """The id of a job of two ranks that has succeeded, with two checkpoints and an export."""
    spec = {**SPEC, "name": "saved", "gpus": 2, "strategy": "ddp", "checkpoint": {"every_steps": 200}}
    job = client.submit(spec)
    service.train(job.id, checkpoints=(200, 400))
    wait_for_status(client, job.id, "succeeded")
    return job.id


@pytest.fixture(scope="package")
def script_tab(admin_context: BrowserContext, service: LiveService) -> Iterator[Page]:
    """A page in one tab for all tests that only call functions of scripts, which leave it as it is."""
    with open_tab(admin_context, service.url) as visit:
        yield visit.go("/compare")
        visit.assert_clean()


@pytest.fixture
def module(script_tab: Page) -> Callable[[str], Callable[..., Any]]:
    """A script as a function that calls one of its exported functions, or returns a constant."""

    def load(name: str) -> Callable[..., Any]:
        def call(export: str, *arguments: Any) -> Any:
            return script_tab.evaluate(
                """async ([url, name, values]) => {
                  const { [name]: exported } = await import(url);
                  const result = typeof exported === "function" ? exported(...values) : exported;
                  return result instanceof Set ? [...result] : result;
                }""",
                [Assets().url(name), export, list(arguments)],
            )

        return call

    return load
