"""The pages of a service on which all plugins are switched off."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser, expect

from service.plugins.installed import PLUGINS
from tests.support.browser import open_tab_in_new_profile
from tests.support.live_service import LiveService, live_service
from tests.web.specs import SPEC

pytestmark = [pytest.mark.web, pytest.mark.cpu_seconds(20)]


@pytest.fixture(scope="module")
def bare_service(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """A service with a sweep, on which the plugins were then switched off."""
    folder = tmp_path_factory.mktemp("bare")
    database = Path(shutil.copy(migrated_sqlite, folder / "service.sqlite"))
    with live_service(database, folder / "state") as service, service.client() as client:
        client.submit_sweep({**SPEC, "name": "of-a-sweep"}, grid={"optimizer.lr": [0.001, 0.1]}, name="two rates")
    names = tuple(plugin.name for plugin in PLUGINS)
    with live_service(database, folder / "state", disabled_plugins=names) as service:
        yield service


def test_a_job_is_submitted_and_watched_without_plugins(browser: Browser, bare_service: LiveService) -> None:
    with open_tab_in_new_profile(browser, bare_service.url) as visit:
        page = visit.sign_in(bare_service.world.token, "/submit")
        expect(page.get_by_role("heading", name="Submit")).to_be_visible()
        page.locator("#spec").fill(yaml.safe_dump({**SPEC, "stepps": 3}))
        page.get_by_role("button", name="Submit", exact=True).click()
        expect(page.locator("#problems")).to_contain_text("unknown field; did you mean steps?")
        visit.ignore_errors("status of 422")
        page.locator("#spec").fill(yaml.safe_dump(SPEC))
        expect(page.locator("#problems li")).to_have_count(0)
        page.get_by_role("button", name="Submit", exact=True).click()
        page.wait_for_url(re.compile(r"/jobs/job_\w+$"))
        job_id = page.url.rpartition("/")[2]
        bare_service.train(job_id)
        expect(page.locator("#status")).to_have_text("succeeded")
        expect(page.locator("#use-model h3")).to_have_text(["Python"])
        for path in ("/jobs", f"/compare?job={job_id}", "/files", "/cluster", "/help", "/admin", "/admin/audit"):
            visit.go(path).wait_for_load_state("load")
        visit.go("/jobs").keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("Go to the jobs")
        expect(page.get_by_role("dialog")).not_to_contain_text("sweeps")
        visit.assert_clean()


def test_jobs_of_a_sweep_have_no_links_to_it(browser: Browser, bare_service: LiveService) -> None:
    requests: list[str] = []
    with open_tab_in_new_profile(browser, bare_service.url) as visit:
        page = visit.sign_in(bare_service.world.token)
        page.on("request", lambda request: requests.append(request.url))
        visit.go("/jobs?where=exists+sweep&group=sweep")
        expect(page.locator("tr.job .name > a")).to_have_text(["of-a-sweep"] * 2)
        expect(page.get_by_role("link", name=re.compile("^(compare|sweep.*)$"))).to_have_count(0)
        page.locator("tr.job .name > a").first.click()
        page.get_by_role("tab", name="History").click()
        expect(page.locator("#lineage-list")).to_contain_text("sweep swp_")
        expect(page.locator("#lineage-list a")).to_have_count(0)
        assert not [url for url in requests if "/v1/sweeps" in url]
        visit.assert_clean()
