"""The pages of projects: creating one, its members, its use, its views and its quotas."""

import pytest
from playwright.sync_api import expect

from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit
from tests.web.specs import SPEC
from trainyard.client import Client

pytestmark = [pytest.mark.web]


def test_a_project_is_created_and_gets_members_and_a_quota(visit: Visit, client: Client) -> None:
    page = visit.go("/projects")
    page.get_by_label("Name").fill("zoo / animals")
    page.get_by_label("Description").fill("Classifies animals.")
    page.get_by_label("Readers").select_option("private")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#problem-name")).to_contain_text("without a slash")
    visit.ignore_errors("Failed to load resource")
    assert_accessible(page)
    page.get_by_label("Name").fill("zoo & animals")
    with page.expect_navigation(url="**/projects/zoo*"):
        page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("zoo & animals")
    expect(page.locator(".head .chip")).to_have_text("private")
    page.get_by_label("Add a user").fill("anna")
    page.locator("#add").get_by_label("Role").select_option("viewer")
    with page.expect_navigation():
        page.get_by_role("button", name="Add", exact=True).click()
    row = page.locator('#members tr[data-member="anna"]')
    with page.expect_navigation():
        row.get_by_label("Role of anna").select_option("manager")
    assert {one.name: one.role for one in client.project("zoo & animals").members}["anna"] == "manager"
    page.get_by_label("GPUs at once").fill("8")
    with page.expect_navigation():
        page.get_by_role("button", name="Save").click()
    expect(page.locator("#usage tr", has_text="GPUs in use")).to_contain_text("8")
    assert_accessible(page)
    row.get_by_role("button", name="Remove anna").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)
    assert [one.name for one in client.project("ZOO & ANIMALS").members] == ["admin"]


def test_projects_lead_to_the_jobs_of_labels_too(visit: Visit, client: Client) -> None:
    job = client.submit({**SPEC, "name": "labelled", "project": "never-created"})
    page = visit.go("/projects")
    page.get_by_role("link", name="Jobs by project").click()
    expect(page.get_by_text("never-created · 1 job")).to_be_visible()
    client.cancel(job.id)


def test_a_project_links_to_its_jobs_and_views(visit: Visit, client: Client) -> None:
    client.create_project("birds", description="Flies.")
    page = visit.go("/jobs")
    page.locator("#views summary").click()
    page.locator("#save-view").click()
    page.locator("#view-name").fill("Best birds")
    page.locator("#view-project").fill("birds")
    page.locator("#view-dialog").get_by_role("button", name="Save").click()
    expect(page.locator("#toast")).to_contain_text("Best birds")
    page = visit.go("/projects")
    page.get_by_role("link", name="birds").click()
    expect(page.locator("#views")).to_contain_text("Best birds")
    assert_accessible(page)
    page.get_by_role("link", name="Its jobs").click()
    page.wait_for_url("**/jobs?where=project*")
    page.go_back()
    page.get_by_role("button", name="Delete the project").click()
    with page.expect_navigation(url="**/projects"):
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    assert "birds" not in [one.name for one in client.projects()]
