"""The pages of administrators."""

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Visit
from tests.support.receiver import Receiver, receiver
from tests.support.wait import wait_until
from trainyard.client import Client

pytestmark = [pytest.mark.web]


@pytest.fixture
def webhook_receiver() -> Iterator[Receiver]:
    with receiver() as server:
        yield server


CLIENT_ERROR = "the server responded with a status of 4"
"""Chromium logs each response with an error status."""


def copied_secret(page: Page) -> str:
    """Copy the secret that the page shows once with its button, and close the dialog."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    expect(page.get_by_label("Secret")).not_to_have_value("")
    secret = page.get_by_label("Secret").input_value()
    page.get_by_role("button", name="Copy").click()
    wait_until(lambda: page.evaluate("navigator.clipboard.readText()") == secret)
    page.get_by_role("button", name="Done").click()
    return secret


def test_token_is_created_shown_once_and_revoked(visit: Visit) -> None:
    page = visit.go("/admin")
    page.get_by_label("Name").fill("carla")
    page.get_by_label("Role").select_option("viewer")
    expect(page.get_by_text("Can run custom code")).to_be_hidden()
    page.get_by_label("Expires in (days)").fill("30")
    page.get_by_role("button", name="Create").click()
    secret = copied_secret(page)
    line = page.locator('#tokens tr[data-name="carla"]')
    expect(line.locator(".chip")).to_have_text("active")
    assert secret not in page.content()
    bearer = {"Authorization": f"Bearer {secret}"}
    assert httpx.get(f"{visit.url}/v1/tokens/self", headers=bearer).json()["role"] == "viewer"
    page.get_by_role("button", name="Revoke carla").click()
    page.get_by_role("button", name="Back").click()
    assert httpx.get(f"{visit.url}/v1/tokens/self", headers=bearer).status_code == 200
    page.get_by_role("button", name="Revoke carla").click()
    page.get_by_role("button", name="Revoke", exact=True).click()
    expect(line.locator(".chip")).to_have_text("revoked")
    assert httpx.get(f"{visit.url}/v1/tokens/self", headers=bearer).status_code == 401


def test_invalid_name_is_reported_at_its_field(visit: Visit) -> None:
    page = visit.go("/admin")
    page.get_by_label("Name").fill("no spaces please")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#problem-name")).not_to_be_empty()
    expect(page.get_by_label("Name")).to_be_focused()
    visit.ignore_errors(CLIENT_ERROR)


def test_webhook_is_created_tested_and_deleted(visit: Visit, webhook_receiver: Receiver) -> None:
    page = visit.go("/admin/webhooks")
    page.get_by_label("Address").fill(f"http://127.0.0.1:{webhook_receiver.port}/hook")
    page.get_by_text("failed", exact=True).click()
    page.get_by_role("button", name="Create").click()
    copied_secret(page)
    card = page.locator(".webhook").first
    expect(card).to_contain_text("jobs of admin, failed")
    card.get_by_role("button", name="Test").click()
    expect(card.locator("tbody tr")).to_contain_text("delivered", timeout=30_000)
    expect(card.locator("tbody tr")).to_contain_text("200")
    (message,) = webhook_receiver.messages
    assert message.path == "/hook"
    webhook_receiver.status = 500
    card.get_by_role("button", name="Test").click()
    expect(card.locator("tbody tr").first).to_contain_text(re.compile("pending.*500"), timeout=30_000)
    card.get_by_role("button", name="Delete").click()
    page.locator("#confirm").get_by_role("button", name="Delete").click()
    expect(page.locator(".webhook")).to_have_count(0)


def test_forbidden_address_is_reported_at_its_field(visit: Visit) -> None:
    page = visit.go("/admin/webhooks")
    page.get_by_label("Address").fill("http://10.0.0.1/hook")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#problem-url")).to_contain_text("must begin with https://")
    visit.ignore_errors(CLIENT_ERROR)


def test_audit_is_filtered_and_paged(visit: Visit, client: Client) -> None:
    for n in range(55):
        client.create_token(f"audited-{n}", role="viewer")
    page = visit.go("/admin/audit")
    page.get_by_label("Action").fill("create_token")
    page.get_by_label("Since").select_option("hour")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#audit tbody tr")).to_have_count(50)
    expect(page.locator("#audit tbody tr td:nth-child(3)").first).to_have_text("create_token")
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_role("link", name="Newest")).to_be_visible()
    assert page.locator("#audit tbody tr").count() >= 5
    expect(page.get_by_label("Action")).to_have_value("create_token")
    page.get_by_role("link", name="Newest").click()
    page.get_by_label("User").fill("nobody")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("heading", name="No matching entries")).to_be_visible()


@pytest.mark.parametrize("path", ["/admin", "/admin/webhooks", "/admin/audit"])
def test_pages_reject_other_roles(signed_out: Visit, client: Client, path: str) -> None:
    token = client.create_token("not-an-admin", role="user").token
    page = signed_out.sign_in(token, path)
    expect(page.get_by_role("heading", name="For administrators")).to_be_visible()
    expect(page.get_by_role("navigation", name="Main").get_by_role("link", name="Admin")).to_have_count(0)
    signed_out.ignore_errors(CLIENT_ERROR)
    signed_out.assert_clean()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/admin?after=x", "after"),
        ("/admin/audit?after=aud_99999999999999999999999", "after"),
        ("/admin/audit?after=99999999999999999999999", "after"),
        ("/admin/audit?since=century", "since"),
        ("/files?after=x", "after"),
    ],
)
def test_a_wrong_parameter_of_an_address_is_named(visit: Visit, path: str, name: str) -> None:
    """A large id of an audit entry was an error of the service, and an unknown period was ignored."""
    page = visit.go(path)
    expect(page.locator("main")).to_contain_text(f"{name}: ")
    visit.ignore_errors("status of 422")
