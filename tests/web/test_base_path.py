"""The dashboard behind nginx, below a path that nginx removes, or keeps as Open OnDemand does."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser, Page, Response, expect

from tests.support.browser import Visit, open_tab_in_new_profile
from tests.support.live_service import LiveService, live_service
from tests.support.nginx import documented_location, nginx_servers
from tests.web.specs import SPEC
from trainyard.client import Client
from trainyard.demo import free_port

pytestmark = [pytest.mark.web, pytest.mark.cpu_seconds(20)]

BASE = "/node/127.0.0.1/8470"
HOST = "proxy_set_header Host $http_host;"
LINKS = "() => [...document.querySelectorAll('[href], [src], [action]')].map(one => one.href || one.src || one.action)"


@pytest.fixture(scope="module")
def urls(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveService, str, str]]:
    """A service, and its URLs behind a proxy that keeps the path and one that removes it."""
    folder, keeping, removing = tmp_path_factory.mktemp("base"), free_port(), free_port()
    database = Path(shutil.copy(migrated_sqlite, folder / "service.sqlite"))
    public = f"http://127.0.0.1:{keeping}{BASE}"
    with live_service(database, folder / "state", public_url=public) as service:
        # Open OnDemand does not pass the name of the host on.
        keeper, remover = (documented_location(BASE, f"{service.url}{end}") for end in ("", "/"))
        with nginx_servers(folder / "nginx", {keeping: keeper.replace(HOST, ""), removing: remover}):
            yield service, public, f"http://127.0.0.1:{removing}{BASE}"


def visit_pages(visit: Visit, job_id: str) -> None:
    """Open every kind of page, and check that its scripts made no link out of the path."""
    pages = (
        "/jobs",
        f"/compare?job={job_id}",
        "/models",
        "/submit",
        "/files",
        "/cluster",
        "/help/api",
        "/docs",
        "/admin",
    )
    for path in (*pages, "/admin/webhooks", "/admin/audit", f"/jobs/{job_id}"):
        visit.go(path).wait_for_load_state("load")
        links = [one for one in visit.page.evaluate(LINKS) if one.startswith("http://127.0.0.1")]
        wrong = [one for one in links if not one.startswith(f"{visit.url}/")]
        assert links
        assert not wrong, f"{path} leads to {wrong}"


def follow_job(page: Page, service: LiveService, url: str) -> str:
    """Submit a job, and watch it train."""
    page.locator("#spec").fill(yaml.safe_dump(SPEC))
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile(rf"^{url}/jobs/job_\w+$"))
    job_id = page.url.rpartition("/")[2]
    worker = service.start(job_id)
    worker.report(0, 10)
    expect(page.locator("#summary")).to_contain_text("step 10 of")
    worker.write_log("a line of the log\n")
    expect(page.locator("#log")).to_contain_text("a line of the log")
    worker.report(10, worker.total_steps)
    worker.succeed()
    expect(page.locator("#status")).to_have_text("succeeded")
    page.locator("#more > summary").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download model").click()
    assert download.value.failure() is None
    return job_id


@pytest.mark.parametrize("form", ["kept", "removed"])
def test_dashboard_stays_below_its_path(browser: Browser, urls: tuple[LiveService, str, str], form: str) -> None:
    service, url = urls[0], urls[1 if form == "kept" else 2]
    answers: list[Response] = []
    with open_tab_in_new_profile(browser, url) as visit:
        page = visit.page
        page.on("response", lambda answer: answers.append(answer))
        visit.sign_in(service.world.token, "/submit")
        (cookie,) = page.context.cookies()
        assert cookie["path"] == BASE
        job_id = follow_job(page, service, url)
        expect(page.locator("#status")).to_have_text("succeeded")
        visit_pages(visit, job_id)
        page.keyboard.press("g")
        page.keyboard.press("j")
        page.wait_for_url(f"{url}/jobs")
        expect(page.locator("#connection")).to_have_text("Live")
        page.locator(f'#rows a[href$="/jobs/{job_id}"]').click()
        page.wait_for_url(f"{url}/jobs/{job_id}")
        page.locator("#account > summary").click()
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(f"{url}/sign-in")
        visit.go("/jobs/x?a=b")
        assert page.url == f"{url}/sign-in?next=/jobs/x%3Fa%3Db"
        visit.assert_clean()
    wrong = [f"{one.status} {one.url}" for one in answers if one.status >= 400 or not one.url.startswith(f"{url}/")]
    assert len(answers) > 50
    assert not wrong, wrong
    assert all("/v1/stream" not in one.url or one.status == 200 for one in answers)


def test_link_of_a_sign_in_code_stays_below_the_path(browser: Browser, urls: tuple[LiveService, str, str]) -> None:
    service, _, url = urls
    with Client(url, service.world.token) as client, open_tab_in_new_profile(browser, url) as visit:
        visit.go(f"/sign-in#code={client.create_sign_in_code().code}&next=/cluster")
        visit.page.get_by_role("button", name="Sign in").click()
        visit.page.wait_for_url(f"{url}/cluster")
        visit.assert_clean()
