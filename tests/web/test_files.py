"""The page of data files: upload in parts, errors with line numbers, and deletion."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit
from trainyard.client import Client

pytestmark = [pytest.mark.web]


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_file_is_uploaded_in_parts_through_lost_connections_and_deleted(
    visit: Visit, client: Client, tmp_path: Path
) -> None:
    page = visit.go("/files")
    file = write(tmp_path / "large texts.jsonl", *({"text": "x" * 100_000} for _ in range(170)))
    lost: list[str] = []

    def lose_second_part(route: Route) -> None:
        if "offset=0" not in route.request.url and not lost:
            lost.append(route.request.url)
            route.abort()
        else:
            route.continue_()

    page.route("**/v1/uploads/*offset=*", lose_second_part)
    with page.expect_navigation(url="**/files"):
        page.get_by_label("Choose a file").set_input_files(file)
    assert lost, "the second part was not sent"
    visit.ignore_errors("Failed to load resource")
    row = page.locator('#files tr[data-name="large texts.jsonl"]')
    expect(row).to_contain_text("170")
    assert_accessible(page)
    expect(row).to_contain_text("text")
    (made,) = [one for one in client.data_files() if one.name == file.name]
    client.download_data_file(made.id, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == file.read_bytes()
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    assert made.id not in [one.id for one in client.data_files()]


def test_upload_continues_after_the_page_was_closed(visit: Visit, client: Client, tmp_path: Path) -> None:
    page = visit.go("/files")
    file = write(tmp_path / "interrupted.jsonl", *({"text": "x" * 100_000} for _ in range(170)))
    page.route("**/v1/uploads/*offset=*", lambda route: route.continue_() if "offset=0" in route.request.url else None)
    with page.expect_request(lambda request: "offset=" in request.url and "offset=0" not in request.url):
        page.get_by_label("Choose a file").set_input_files(file)
    page.unroute("**/v1/uploads/*offset=*")
    visit.go("/files")
    offsets: list[str] = []
    page.on("request", lambda request: offsets.append(request.url) if "offset=" in request.url else None)
    with page.expect_navigation(url="**/files"):
        page.get_by_label("Choose a file").set_input_files(file)
    assert offsets, "nothing was sent"
    assert not offsets[0].endswith("offset=0")
    (made,) = [one for one in client.data_files() if one.name == file.name]
    client.download_data_file(made.id, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == file.read_bytes()
    assert page.evaluate("Object.keys(localStorage).filter((key) => key.startsWith('trainyard-upload'))") == []
    visit.ignore_errors("Failed to load resource")


def test_bad_line_is_shown_with_its_number(visit: Visit, tmp_path: Path) -> None:
    page = visit.go("/files")
    page.get_by_label("Choose a file").set_input_files(write(tmp_path / "bad.jsonl", {"text": "good"}, "{bad"))
    expect(page.get_by_role("alert").filter(has_text="bad.jsonl")).to_contain_text("line 2 is not JSON")
    expect(page.get_by_text("Choose a file")).to_be_visible()
    visit.ignore_errors("Failed to load resource")
