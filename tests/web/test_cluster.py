"""What there is to run on, as a person sees it."""

import pytest
from playwright.sync_api import expect

from tests.support.browser import Visit
from tests.support.live import wait_for_status
from tests.web.test_jobs import SPEC
from trainyard.client import Client

pytestmark = [pytest.mark.web]


def test_who_holds_and_who_waits_is_told_while_it_changes(visit: Visit, client: Client) -> None:
    page = visit.go("/cluster")
    expect(page.locator("#sentence")).to_contain_text("up to 4 worker processes at once")
    runs = client.submit({**SPEC, "name": "holds", "steps": 1_000_000})
    wait_for_status(client, runs.id, "running")
    jobs = [runs, client.submit({**SPEC, "name": "wants-all", "gpus": 4, "batch": {"size": 12}})]
    row = page.locator("#owners tbody tr").filter(has=page.get_by_role("link", name="admin"))
    expect(row.locator("td")).to_have_text(["admin", "1", "1", "1", "4"], timeout=30_000)
    for job in jobs:
        client.cancel(job.id)
    for job in jobs:
        wait_for_status(client, job.id, "cancelled")
    expect(page.get_by_text("Nothing runs and nothing waits")).to_be_visible(timeout=30_000)


def test_the_service_tells_how_it_does(visit: Visit) -> None:
    page = visit.go("/cluster")
    expect(page.locator("#health")).to_have_text("ready")
    expect(page.locator(".service")).to_contain_text("SQLite")
    page.route("**/readyz", lambda route: route.fulfill(json={"status": "unavailable", "checks": {"database": "gone"}}))
    expect(page.locator("#health")).to_have_text("unavailable", timeout=15_000)
    expect(page.locator("#checks")).to_have_text("database: gone")


def test_partitions_of_a_cluster_are_drawn_from_what_the_api_tells(visit: Visit) -> None:
    page = visit.page
    partition = {
        "name": "gpu", "default": True, "state": "drain", "time_limit_minutes": 120, "max_nodes": 4, "groups": None,
        "nodes": {"idle": 2, "mixed": 1}, "gpus": [{"type": "a100", "total": 12, "free": 5}], "shapes": [],
    }  # fmt: skip
    cluster = {
        "object": "cluster", "backend": "slurm", "taken_at": "2026-01-01T12:00:00.000Z", "age_seconds": 3.0,
        "error": "slurmctld does not answer", "partitions": [partition], "nodes": {"idle": 2, "mixed": 1},
        "gpus": partition["gpus"], "accounts": None, "enforced": [], "slots": None,
    }  # fmt: skip
    page.route("**/v1/cluster", lambda route: route.fulfill(json=cluster))
    visit.go("/cluster")
    cells = page.locator("#partitions tbody td")
    expect(cells).to_have_text(
        ["gpu default", "drain", "2 h", "up to 4", "2 idle, 1 mixed", "5 of 12 a100", "all"], timeout=15_000
    )
    expect(page.locator("#pools")).to_contain_text("a1005 of 12 free")
    expect(page.locator("#error")).to_contain_text("slurmctld does not answer")
