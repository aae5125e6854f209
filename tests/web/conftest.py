"""A real browser before a real service with real workers."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.support.browser import Visit, launched, seated, visiting, window
from tests.support.chromium import ChromiumMissingError, chromium
from tests.support.live import wait_for_status, wait_for_step
from tests.web.specs import ENDLESS, SLOW, SPEC, WATCHED
from trainyard.client import Client
from trainyard.contract.local_paths import admin_token_file
from trainyard.contract.spec.templates import code_folder
from trainyard.demo import ServiceProcess


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Without one and without a way to install it: skipped with a hint, in CI an error."""
    try:
        chromium()
    except ChromiumMissingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{error}; in CI nothing is skipped")
        pytest.skip(str(error))
    # A page that is told what a job does shows it when the machine has time for it.
    expect.set_options(timeout=20_000)
    with launched() as made:
        yield made


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
    with service.client() as made:
        yield made


@pytest.fixture(scope="package")
def token(service: ServiceProcess, client: Client) -> str:
    """The administrator's."""
    return admin_token_file(service.state_dir).read_text().strip()


@pytest.fixture
def stranger(browser: Browser, service: ServiceProcess, client: Client) -> Iterator[Visit]:
    """A window of somebody who is not signed in."""
    with visiting(browser, service.url) as visit:
        yield visit


@pytest.fixture(scope="package")
def administrator(browser: Browser, service: ServiceProcess, token: str) -> Iterator[BrowserContext]:
    """The administrator's browser, signed in. What it has loaded once it has not to load and to compile again."""
    with seated(browser) as context:
        with window(context, service.url) as visit:
            visit.sign_in(token)
            visit.require_clean()
        yield context


@pytest.fixture
def visit(administrator: BrowserContext, service: ServiceProcess) -> Iterator[Visit]:
    """A new window of the administrator; at the end nothing was complained of, and no other host asked."""
    with window(administrator, service.url) as visit:
        yield visit
        visit.require_clean()


@pytest.fixture(scope="package")
def running(request: pytest.FixtureRequest, client: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A job that trains for as long as it is looked at, and takes little of a processor."""
    code = tmp_path_factory.mktemp("code")
    shutil.copy(code_folder() / "spirals.py", code)
    (code / "slow.py").write_text(SLOW)
    job = client.submit({**ENDLESS, "name": WATCHED}, code=code)
    request.getfixturevalue("ahead")  # behind it in the queue
    wait_for_step(client, job.id, 10)
    yield job
    client.cancel(job.id)
    wait_for_status(client, job.id, "cancelled")


@pytest.fixture(scope="package")
def ahead(client: Client) -> dict[str, str]:
    """Ids of jobs that are looked at later, by name: they come up while others are watched."""
    two = {"gpus": 2, "strategy": "ddp", "checkpoint": {"every_steps": 200}}
    hot = {"optimizer": {"name": "sgd", "lr": 1e9}}
    jobs = [client.submit({**SPEC, **own}) for own in ({"name": "saved", **two}, {"name": "too-hot", **hot})]
    return {job.name: job.id for job in jobs}
