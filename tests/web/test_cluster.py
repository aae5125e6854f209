"""What there is to run on, as a person sees it."""

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.support.browser import Visit
from tests.web.specs import SPEC
from trainyard.client import Client
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.web]


def test_usage_by_user_updates_live(visit: Visit, service: ServiceProcess, client: Client, running: Any) -> None:
    page = visit.go("/cluster")
    expect(page.locator("#sentence")).to_contain_text("up to 4 worker processes at once")

    def row(name: str) -> Locator:
        return (
            page.locator("#owners tbody tr").filter(has=page.get_by_role("link", name=name, exact=True)).locator("td")
        )

    expect(row("admin").nth(1)).to_have_text(re.compile(r"^[1-4]$"))  # the one that runs, at least
    with Client(service.url, client.create_token("waits-for-all", role="user").token) as other:
        job = other.submit({**SPEC, "name": "wants-all", "gpus": 4, "batch": {"size": 12}})
        expect(row("waits-for-all")).to_have_text(["waits-for-all", "0", "0", "1", "4"], timeout=30_000)
        other.cancel(job.id)
    expect(row("waits-for-all")).to_have_count(0, timeout=30_000)
    page.route("**/v1/jobs?*", lambda route: route.fulfill(json={"object": "list", "data": [], "has_more": False}))
    expect(page.get_by_text("No running or waiting jobs")).to_be_visible(timeout=30_000)
    page.unroute("**/v1/jobs?*")


def test_service_health_is_shown(visit: Visit) -> None:
    page = visit.go("/cluster")
    expect(page.locator("#health")).to_have_text("ready")
    expect(page.locator(".service")).to_contain_text("SQLite")
    page.route("**/readyz", lambda route: route.fulfill(json={"status": "unavailable", "checks": {"database": "gone"}}))
    expect(page.locator("#health")).to_have_text("unavailable", timeout=15_000)
    expect(page.locator("#checks")).to_have_text("database: gone")


def test_partitions_are_rendered_from_the_api(visit: Visit) -> None:
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
