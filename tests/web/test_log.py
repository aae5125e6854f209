"""The log on a job's page: a log of any length, read in both directions, searched, and linked."""

import re
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.browser import Visit

pytestmark = [pytest.mark.web]

LINES = [f"line {number} of a long log\n".encode() for number in range(20_005)]
LINES[12_000] = b"ERROR: in the middle\n"
OFFSETS = [0]
for one in LINES:
    OFFSETS.append(OFFSETS[-1] + len(one))
LOG = b"".join(LINES)


def answer_log(route: Route) -> None:
    """Answer as `GET /v1/jobs/{job_id}/logs` does."""
    query = {name: values[0] for name, values in parse_qs(urlsplit(route.request.url).query).items()}
    if "tail" in query:
        end = int(query.get("before", len(LOG)))
        start = OFFSETS[max(0, OFFSETS.index(end) - int(query["tail"]))]
    else:
        start = int(query.get("offset", 0))
        end = min(len(LOG), start + int(query["limit"]))
    headers = {"X-Trainyard-Offset": str(start), "X-Trainyard-Next-Offset": str(end)}
    route.fulfill(status=200, headers=headers, body=LOG[start:end])


@pytest.fixture
def page(visit: Visit, saved_job: str) -> Iterator[Page]:
    """The page of a job that has ended, whose log is a long one."""
    visit.page.route(re.compile(r"/logs\?"), answer_log)
    yield visit.go(f"/jobs/{saved_job}")
    visit.page.unroute_all()


def scroll(page: Page, position: str) -> None:
    page.evaluate(f"document.querySelector('#log').scrollTop = {position}")


def test_whole_log_is_read_by_scrolling(page: Page) -> None:
    log = page.locator("#log")
    expect(log.locator(".line").last).to_have_text("line 20004 of a long log")
    first = int(log.locator(".line").first.inner_text().split()[1])
    while first > 16_000:
        scroll(page, "0")
        page.wait_for_function(
            f"() => Number(document.querySelector('#log .line').textContent.split(' ')[1]) < {first}"
        )
        first = int(log.locator(".line").first.inner_text().split()[1])
        assert log.locator(".line").count() <= 3000
    assert not page.locator("#follow").is_checked()
    page.wait_for_function(
        "() => { const log = document.querySelector('#log'); log.scrollTop = log.scrollHeight;"
        " return log.lastElementChild.textContent === 'line 20004 of a long log'; }"
    )
    texts = log.locator(".line").all_inner_texts()
    numbers = [int(text.split()[1]) for text in texts]
    assert numbers == list(range(numbers[0], 20_005)), "no line is missing, twice or cut"


def test_link_opens_the_log_at_its_line(page: Page) -> None:
    page.goto(f"{page.url}?attempt=1&line={OFFSETS[12_000]}")
    marked = page.locator("#log .marked")
    expect(marked).to_have_text("ERROR: in the middle")
    expect(marked).to_be_in_viewport()
    scroll(page, "0")
    expect(page.locator("#log")).to_contain_text("line 11000 of")
    page.locator("#follow").check()
    expect(page.locator("#log .line").last).to_have_text("line 20004 of a long log")
    expect(page).to_have_url(re.compile(r"^[^?]*(\?attempt=1)?$"))


def test_step_without_points_is_refused_with_the_reason(page: Page, visit: Visit) -> None:
    field = page.get_by_label("Go to a step or a time")
    field.fill("when it broke")
    field.press("Enter")
    expect(page.locator("#toast")).to_contain_text("a step such as 400, or a time such as 14:05")
    field.fill("999 999")
    field.press("Enter")
    expect(page.locator("#toast")).to_contain_text("no point at step 999999")
    visit.ignore_errors("404")
    field.fill("100")
    field.press("Enter")
    expect(page.locator("#log .marked")).to_have_count(1)
