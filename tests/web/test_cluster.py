"""The page of the cluster."""

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.support.browser import Visit
from tests.support.live_service import LiveService
from tests.web.specs import SPEC
from trainyard.client import Client

pytestmark = [pytest.mark.web]


def test_usage_by_user_updates_live(visit: Visit, service: LiveService, client: Client, running_job: Any) -> None:
    page = visit.go("/cluster")
    expect(page.locator("#summary")).to_contain_text("up to 4 worker processes at once")

    def row(name: str) -> Locator:
        return page.locator("#usage tbody tr").filter(has=page.get_by_role("link", name=name, exact=True)).locator("td")

    expect(row("admin").nth(1)).to_have_text(re.compile(r"^[1-4]$"))  # at least the running job
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


NOON = "2026-01-01T12:00:00.000Z"
CLUSTER: dict[str, Any] = {
    "object": "cluster", "backend": "slurm", "taken_at": "2026-01-01T12:00:00.000Z", "age_seconds": 3.0, "error": None,
    "partitions": [], "nodes": {}, "gpus": [], "accounts": None, "enforced": [], "slots": None,
}  # fmt: skip


def show(visit: Visit, **changes: Any) -> None:
    """Open the page, and let the API return this cluster."""
    visit.page.unroute("**/v1/cluster")
    visit.page.route("**/v1/cluster", lambda route: route.fulfill(json={**CLUSTER, **changes}))
    visit.go("/cluster")


def test_partitions_are_rendered_from_the_api(visit: Visit) -> None:
    page = visit.page
    partition = {
        "name": "gpu", "default": True, "state": "drain", "time_limit_minutes": 120, "max_nodes": 4, "groups": ["nlp"],
        "nodes": {"idle": 2, "mixed": 1}, "gpus": [{"type": "a100", "total": 12, "free": 5}], "shapes": [],
    }  # fmt: skip
    unlimited = {
        "name": "cpu", "default": False, "state": "up", "time_limit_minutes": None, "max_nodes": None, "groups": None,
        "nodes": {}, "gpus": [], "shapes": [],
    }  # fmt: skip
    show(visit, partitions=[partition, unlimited], gpus=partition["gpus"], error="slurmctld does not answer")
    cells = page.locator("#partitions tbody td")
    expect(cells).to_have_text(
        [
            *("gpu default", "drain", "2 h", "up to 4", "2 idle, 1 mixed", "5 of 12 a100", "nlp"),
            *("cpu", "up", "none", "any", "none", "–", "all"),  # noqa: RUF001
        ],
        timeout=15_000,
    )
    expect(page.locator("#pools")).to_contain_text("a1005 of 12 free")
    expect(page.locator("#error")).to_contain_text("slurmctld does not answer")


def test_excluded_nodes_are_shown_and_included_again(visit: Visit) -> None:
    page = visit.page
    fault = {"job_id": "job_1", "attempt": 1, "kind": "launch_failed", "message": "exit code 0:53", "created_at": NOON}
    node = {
        "node": "node2", "partitions": ["gpu"], "since": NOON, "until": NOON, "jobs": 2, "cause": "launches failed",
        "faults": [fault], "drain_command": "scontrol update nodename=node2",
    }  # fmt: skip
    show(visit, excluded_nodes=[node], node_warning="The limit is reached.")
    row = page.locator("#excluded tbody tr")
    expect(row).to_contain_text("launches failed (2 jobs)job_1 exit code 0:53scontrol update", timeout=15_000)
    expect(page.locator("#node-warning")).to_have_text("The limit is reached.")
    deleted: list[str] = []

    def delete(route: Route) -> None:
        deleted.append(route.request.method)
        page.unroute("**/v1/cluster")
        page.route("**/v1/cluster", lambda again: again.fulfill(json=CLUSTER))
        route.fulfill(status=204)

    page.route("**/v1/cluster/excluded-nodes/node2", delete)
    row.get_by_role("button", name="Use again").click()
    expect(page.locator("#excluded-card")).to_be_hidden(timeout=15_000)
    assert deleted == ["DELETE"]


def test_unknown_free_gpus_are_not_shown_as_free(visit: Visit) -> None:
    show(visit, gpus=[{"type": None, "total": 8, "free": None}, {"type": "a100", "total": 4, "free": 1}])
    pools = visit.page.locator("#pools > div")
    expect(pools).to_have_text(["GPUs8", "a1001 of 4 free"], timeout=15_000)
    bars = pools.locator(".bar > span")
    assert [bars.nth(n).get_attribute("style") for n in (0, 1)] == ["width:0.0%", "width:75.0%"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"taken_at": None, "age_seconds": None}, "Waiting for the first scheduler poll."),
        ({"nodes": {"idle": 2, "down": 1}}, "Nodes: 2 idle, 1 down."),
        ({"backend": "local", "slots": {"total": 4, "free": 1}}, "1 is free"),
    ],
)
def test_cluster_state_is_one_sentence(visit: Visit, changes: dict[str, Any], text: str) -> None:
    show(visit, **changes)
    expect(visit.page.locator("#summary")).to_contain_text(text, timeout=15_000)


def test_user_with_the_largest_usage_is_first(visit: Visit) -> None:
    jobs = [
        {"created_by": "ada", "status": "pending", "spec": {"gpus": 8}},
        {"created_by": "bob", "status": "running", "spec": {"gpus": 4}},
        {"created_by": "bob", "status": "cancelling", "spec": {}},
        {"created_by": "eve", "status": "queued", "spec": {"gpus": 1}},
    ]
    visit.page.route("**/v1/jobs?*", lambda route: route.fulfill(json={"data": jobs, "has_more": False}))
    visit.go("/cluster")
    expect(visit.page.locator("#usage tbody tr")).to_have_text(["bob2500", "ada0018", "eve0011"], timeout=15_000)
