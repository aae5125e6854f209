"""Signing in and out in a browser."""

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect

from service.web.assets import Assets
from tests.support.browser import Visit
from trainyard.client import Client

pytestmark = [pytest.mark.web]


def test_sign_in_returns_to_the_requested_page(signed_out: Visit, token: str) -> None:
    page = signed_out.sign_in(token, "/jobs?status=failed&sort=name%3Aasc")
    assert page.url == signed_out.url + "/jobs?status=failed&sort=name%3Aasc"
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    signed_out.assert_clean()


def test_invalid_token_is_reported_at_the_field(signed_out: Visit) -> None:
    page = signed_out.go("/jobs")
    page.get_by_label("Token").fill("ty_000000000000_nonsense")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert").filter(has_text="Invalid or expired token")).to_be_visible()
    expect(page.get_by_label("Token")).to_be_focused()


def test_cookie_is_http_only_and_same_site_strict(visit: Visit) -> None:
    visit.go("/jobs")
    (cookie,) = visit.page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert visit.page.evaluate("document.cookie") == ""


def test_pages_need_a_new_sign_in_after_signing_out(signed_out: Visit, token: str) -> None:
    page = signed_out.sign_in(token)
    page.locator("#account > summary").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    signed_out.go("/jobs")
    assert re.search(r"/sign-in\?next=/jobs$", page.url)
    signed_out.assert_clean()


def test_signing_out_aborts_running_requests(signed_out: Visit, token: str) -> None:
    page = signed_out.sign_in(token)
    page.evaluate(
        """async (url) => {
          const { request } = await import(url);
          window.outcome = request("/v1/me").then(() => "answered", (error) => error.name);
          const form = document.querySelector('form[action="/sign-out"]');
          form.addEventListener("submit", (event) => event.preventDefault());
          form.requestSubmit();
        }""",
        Assets().url("api.js"),
    )
    assert page.evaluate("window.outcome") == "AbortError"


@pytest.fixture
def other_site(visit: Visit) -> Iterator[str]:
    """The URL of another site with a link to the service."""

    class Link(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f'<!doctype html><link rel="icon" href="data:,"><a href="{visit.url}/jobs">jobs</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing to the output of the tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Link)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}/"
    server.shutdown()


def test_link_from_another_site_keeps_the_session(visit: Visit, other_site: str) -> None:
    visit.page.goto(other_site)
    visit.page.get_by_role("link", name="jobs").click()
    expect(visit.page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()


def test_code_of_the_address_signs_in_after_a_question(signed_out: Visit, client: Client) -> None:
    code, sent = client.create_sign_in_code().code, []
    page = signed_out.page
    page.on("request", lambda request: sent.append((request.url, request.headers.get("referer", ""))))
    signed_out.go(f"/sign-in#code={code}&next=/cluster")
    expect(page.get_by_role("heading", name="Sign in as admin?")).to_be_visible()
    page.get_by_role("button", name="Sign in as admin").click()
    page.wait_for_url(signed_out.url + "/cluster")
    assert not [one for one in sent if code in "".join(one)]
    page.go_back()
    expect(page.get_by_role("heading", name="Sign in", exact=True)).to_be_visible()
    assert code not in page.url
    signed_out.assert_clean()


def test_used_code_is_reported(signed_out: Visit, client: Client) -> None:
    code = client.create_sign_in_code().code
    page = signed_out.go(f"/sign-in#code={code}&next=//evil.example")
    page.get_by_role("button", name="Sign in as admin").click()
    page.wait_for_url(signed_out.url + "/jobs")
    page.locator("#account > summary").click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(signed_out.url + "/sign-in")
    page.evaluate("code => { location.hash = `code=${code}`; }", code)  # an open page of the sign-in takes a code, too
    expect(page.get_by_role("alert").filter(has_text="used before")).to_be_visible()
