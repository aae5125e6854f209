"""Writing a spec in the browser: problems, plan, code upload and submission."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Response, expect

from service.web.assets import Assets
from tests.support.browser import Visit
from tests.support.live_service import LiveService
from trainyard.client import Client
from trainyard.contract.spec.user_code import code_archive
from worker.launcher.code import unpack

pytestmark = [pytest.mark.web]

TEXT = """\
task: regression
gpus: 1
model: {source: builtin, name: mlp}
data: {source: builtin, name: parity}
steps: 200
batch:
  size: 10
"""


@pytest.fixture
def writing(visit: Visit) -> Iterator[Page]:
    """The page with a small spec in the editor, and its plan."""
    yield written(visit.go("/submit"), TEXT)
    # Chromium logs each response with an error status, as those for invalid specs.
    visit.ignore_errors("status of 422")
    visit.ignore_errors("status of 400")


def written(page: Page, text: str) -> Page:
    """Replace the text of the editor, and wait for its plan."""

    def planned(answer: Response) -> bool:
        return answer.url.endswith("/v1/plans") and answer.request.post_data == text and answer.status != 429

    with page.expect_response(planned):
        page.locator("#spec").fill(text)
    return page


def note(page: Page, line: int) -> str:
    """Return the note at a line of the editor, from 1; fails if another line has one."""
    expect(page.locator(".gutter .invalid")).to_have_text(str(line))
    return page.locator(".notes div").inner_text()


def test_unknown_field_is_noted_at_its_line(writing: Page) -> None:
    written(writing, TEXT.replace("steps:", "stepps:"))
    assert note(writing, 5) == "unknown field; did you mean steps?"
    expect(writing.locator("#problems li")).to_have_text("Line 5stepps unknown field; did you mean steps?")
    written(writing, TEXT)
    expect(writing.locator(".gutter .invalid")).to_have_count(0)
    expect(writing.locator("#problems li")).to_have_count(0)


def test_invalid_value_is_noted_in_its_section(writing: Page) -> None:
    written(writing, TEXT.replace("size: 10", "size: 0"))
    assert "greater than or equal to 1" in note(writing, 7)


def test_invalid_yaml_is_noted_at_its_line(writing: Page) -> None:
    written(writing, TEXT.replace("name: parity}", "name: parity"))
    assert "not valid YAML" in note(writing, 5)


def test_plan_is_updated_with_the_text(writing: Page) -> None:
    expect(writing.locator("#verdict")).to_contain_text("Fits: needs about")
    expect(writing.locator("#sizes")).to_contain_text(re.compile(r"Host memoryroughly [\d.]+ [MG]iB for each rank"))
    expect(writing.locator(".strategy")).to_have_count(1)
    written(writing, TEXT.replace("gpus: 1", "gpus: 2"))
    expect(writing.locator(".strategy")).to_have_count(4)
    expect(writing.locator(".strategy.selected strong")).to_have_text("ddp")
    expect(writing.locator("#availability")).to_contain_text("worker processes are free")
    writing.get_by_role("button", name="fsdp").click()
    expect(writing.locator(".strategy.selected strong")).to_have_text("fsdp")
    assert "strategy: fsdp" in writing.locator("#spec").input_value()
    writing.get_by_text("Batch script").click()
    expect(writing.locator("#script pre")).to_contain_text("-m worker.launcher ")


def test_a_spec_that_does_not_fit_can_be_forced(writing: Page) -> None:
    huge = "{source: builtin, name: mlp, sizes: [2, 200000, 200000, 3]}"
    written(writing, TEXT.replace("{source: builtin, name: mlp}", huge))
    expect(writing.locator("#verdict")).to_contain_text("Does not fit")
    expect(writing.get_by_text("Submit anyway")).to_be_visible()
    written(writing, TEXT)
    expect(writing.get_by_text("Submit anyway")).to_be_hidden()


def test_tab_indents_and_enter_keeps_the_indentation(writing: Page) -> None:
    area = writing.locator("#spec")
    area.fill("batch:")
    area.press("End")
    area.press("Enter")
    area.type("size: 4")
    area.press("Enter")
    area.press("Tab")
    area.type("x")
    area.press("Shift+Tab")
    assert area.input_value() == "batch:\n  size: 4\n  x"
    area.press("Escape")
    area.press("Tab")
    expect(area).not_to_be_focused()


def test_choosing_a_preset_can_be_undone(writing: Page) -> None:
    writing.get_by_label("Start from").select_option("gpt_fsdp")
    expect(writing.locator("#spec")).to_have_value(re.compile("name: gpt-fsdp"))
    expect(writing.get_by_label("Start from")).to_have_value("gpt_fsdp")
    writing.locator("#spec").press("Control+z")
    expect(writing.locator("#spec")).to_have_value(TEXT)
    expect(writing.get_by_label("Start from")).to_have_value("gpt_fsdp")  # the user's choice stays
    expect(writing.locator("#origin")).to_have_text("Differs from the preset.")
    writing.get_by_role("button", name="Restore the preset").click()
    expect(writing.locator("#spec")).to_have_value(re.compile("name: gpt-fsdp"))
    writing.get_by_label("Start from").select_option("an empty spec")
    expect(writing.locator("#spec")).to_have_value("")


def test_invalid_spec_cannot_be_submitted(writing: Page) -> None:
    submit, problem = writing.get_by_role("button", name="Submit", exact=True), writing.locator("#submit-problem")
    expect(submit).to_be_enabled()
    written(writing, TEXT.replace("steps:", "stepps:"))
    expect(submit).to_be_disabled()
    expect(problem).to_be_visible()
    written(writing, TEXT)
    expect(submit).to_be_enabled()
    expect(problem).to_be_hidden()
    expect(writing.locator("#sizes")).to_contain_text("200 steps on 1 CPU process")


def test_folder_upload_excludes_ignored_files(visit: Visit, service: LiveService, tmp_path: Path) -> None:
    long = "/".join(["deeper" * 5] * 4)
    names = ("mine.py", "data.csv", "sub/part.py", "sub/__pycache__/part.pyc", f"{long}/end.py", ".trainyardignore")
    for name in names:
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_text("*.csv\n" if name.startswith(".") else f"# {name}\n" * 300)
    page = visit.go("/submit?preset=custom_spirals")
    page.locator("#code-folder").set_input_files(tmp_path / "folder")
    expect(page.locator("#code-status")).to_contain_text("Code uploaded")
    digests = re.search(r"sha256:[0-9a-f]{64}", page.locator("#spec").input_value())
    assert digests is not None
    unpack(code_archive(service.runs_dir, digests[0]), digests[0], tmp_path / "unpacked")
    unpacked = {path.relative_to(tmp_path / "unpacked").as_posix() for path in (tmp_path / "unpacked").rglob("*.*")}
    assert unpacked == {"mine.py", "sub/part.py", f"{long}/end.py", ".trainyardignore"}
    assert (tmp_path / "unpacked" / "sub" / "part.py").read_text() == "# sub/part.py\n" * 300


def test_upload_removes_the_commit_of_other_code(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.py").write_text("print(1)\n")
    page = visit.go("/submit")
    labels = "metadata: {git_repository: mine, git_commit: 0123abc, git_branch: main, team: vision, git_dirty: 'no'}"
    written(page, f"version: 1\nname: mine\ntask: script\nargv: [mine.py]\n{labels}\n")
    page.locator("#code-folder").set_input_files(tmp_path / "folder")
    expect(page.locator("#code-status")).to_contain_text("Code uploaded")
    uploaded = page.locator("#spec").input_value()
    assert "metadata: {team: vision}" in uploaded
    written(page, uploaded.replace("{team", "{git_commit: 4567def, team"))
    page.evaluate("document.getElementById('toast').textContent = ''")
    page.locator("#code-folder").set_input_files(tmp_path / "folder")
    expect(page.locator("#toast")).to_contain_text("One file is uploaded")
    assert "git_commit: 4567def" in page.locator("#spec").input_value(), "the same code as before"


def test_draft_is_stored_across_pages(visit: Visit) -> None:
    written(visit.go("/submit"), TEXT)
    visit.go("/jobs")
    expect(visit.go("/submit").locator("#spec")).to_have_value(TEXT)


def test_spec_is_submitted_once_and_its_job_can_be_forked(visit: Visit, client: Client, service: LiveService) -> None:
    page = written(visit.go("/submit"), f"name: by-hand\n{TEXT}checkpoint: {{every_steps: 100}}\n")
    page.get_by_role("button", name="Submit", exact=True).dblclick()
    page.wait_for_url(re.compile("/jobs/job_"))
    (job,) = client.jobs(name="by-hand")
    service.train(job.id, checkpoints=(100, 200))
    expect(page.locator("#status")).to_have_text("succeeded")
    page.get_by_role("link", name="Fork").click()
    area = page.locator("#spec")
    assert f"resume_from: {job.id}" in area.input_value()
    assert "bucket_cap_mb" not in area.input_value()  # a default
    complete, origin = area.input_value(), page.locator("#origin")
    assert complete.startswith("# All steps are done, so `steps` is doubled: 400 instead of 200.\n")
    assert "name: by-hand-2\n" in complete
    assert f"forked_from: {job.id}" in complete
    expect(origin).to_have_text("Continues by-hand from step 200.")
    page.get_by_role("button", name="Start from scratch").click()
    expect(origin).to_have_text("Starts from scratch with the spec of by-hand.")
    scratch = complete.partition("\n")[2].replace(f"resume_from: {job.id}\n", "").replace("steps: 400", "steps: 200")
    expect(area).to_have_value(scratch)
    page.get_by_role("button", name="Continue from its checkpoint").click()
    expect(area).to_have_value(complete)
    written(page, area.input_value().replace("steps: 400", "steps: 300").replace("by-hand-2", "forked"))
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile("/jobs/job_"))
    (forked,) = client.jobs(name="forked")
    assert forked.origin is not None
    assert (forked.origin.job_id, forked.origin.step) == (job.id, 200)
    client.cancel(forked.id)


def test_retried_submission_creates_no_second_job(visit: Visit, client: Client) -> None:
    page = written(visit.go("/submit"), "name: answered-late\n" + TEXT.replace("steps: 200", "steps: 1000000"))
    page.route("**/v1/jobs", lambda route: (route.fetch(), route.abort())[-1])
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator("#toast")).to_have_text("The service does not answer.")
    page.unroute("**/v1/jobs")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile("/jobs/job_"))
    (job,) = client.jobs(name="answered-late")
    client.cancel(job.id)
    visit.ignore_network_errors()


def test_fields_are_located_and_changed_in_the_text(script_tab: Page) -> None:
    module = Assets().url("yaml_fields.js")
    text = (
        "name: a # b: c\nmodel: {source: hf,\n  path: /x}\nargv:\n- one\n- two\ngrid:\n  - {lr: 1}\nbatch:\n  size: 8\n"
    )

    def evaluate(call: str) -> object:
        return script_tab.evaluate(f"async text => {{ const it = await import('{module}'); return {call}; }}", text)

    lines = {"name": 0, "model": 1, "model.path": 2, "argv.1": 5, "grid.0.lr": 7, "batch.size": 9}
    for param, line in lines.items():
        assert evaluate(f"it.lineOf(it.fieldsOf(text), '{param}')") == line, param
    assert evaluate("it.lineOf(it.fieldsOf(text), 'batch.micro_size')") == 8  # the nearest enclosing section
    assert evaluate("it.lineOf(it.fieldsOf(text), 'steps')") is None
    assert "size: 16\n" in str(evaluate("it.setField(text, 'batch.size', 16)"))
    assert "batch:\n  micro_size: 2\n  size: 8" in str(evaluate("it.setField(text, 'batch.micro_size', 2)"))
    assert "model: {revision: main, source: hf" in str(evaluate("it.setField(text, 'model.revision', 'main')"))
    assert str(evaluate("it.setField(text, 'optimizer.lr', 0.1)")).endswith("optimizer: {lr: 0.1}\n")
    assert str(evaluate("it.setField(text, 'name', 'b')")).startswith("name: b # b: c\n")


@pytest.mark.parametrize(
    ("text", "removed"),
    [
        ("a: 1\nm: {x: 1, git: 2, y: 3}\n", "a: 1\nm: {x: 1, y: 3}\n"),
        ("m: {git: 2, y: 3}\n", "m: {y: 3}\n"),
        ("m: {x: 1,\n  git: '2, }'}\nb: 1\n", "m: {x: 1}\nb: 1\n"),
        ("m: {git: [1, 2]}\n", "m: {}\n"),
        ("m:\n  x: 1\n  git: 2 # why\n  y: 3\n", "m:\n  x: 1\n  y: 3\n"),
        ("m:\n  git:\n    z: 1\n    t: |\n      b\n  y: 3\n", "m:\n  y: 3\n"),
        ("m: {x: 1}\n", "m: {x: 1}\n"),
    ],
)
def test_field_is_removed_from_the_text(module: Callable[[str], Callable[..., str]], text: str, removed: str) -> None:
    assert module("yaml_fields.js")("removeField", text, "m.git") == removed


def test_start_estimate_is_shown(visit: Visit) -> None:
    page = visit.page
    waiting = {
        "object": "start_estimate",
        "id": "est_1",
        "state": "waiting",
        "accepted": None,
        "estimated_start": None,
        "message": "requested",
    }
    answered = {**waiting, "state": "answered", "accepted": True, "estimated_start": "2026-01-01T12:00:00.000Z"}
    cluster: dict[str, Any] = {
        "object": "cluster", "backend": "slurm", "taken_at": None, "age_seconds": None, "error": None, "partitions": [],
        "nodes": {}, "gpus": [], "accounts": None, "enforced": [], "slots": None,
    }  # fmt: skip
    page.route("**/v1/cluster", lambda route: route.fulfill(json=cluster))
    page.route("**/v1/plans?estimate_start=true*", lambda route: route.fulfill(json={"start_estimate": waiting}))
    page.route("**/v1/start-estimates/est_1", lambda route: route.fulfill(json=answered))
    visit.go("/submit")
    page.get_by_role("button", name="Estimate the start time").click()
    expect(page.locator("#start-estimate")).to_have_text("Estimated start if submitted now: 1 Jan 2026, 13:00.")


def test_viewer_can_plan_but_not_submit(signed_out: Visit, client: Client) -> None:
    token = client.create_token("only-plans", role="viewer").token
    page = written(signed_out.sign_in(token, "/submit"), TEXT)
    expect(page.locator("#verdict")).to_contain_text("Fits")
    expect(page.get_by_role("button", name="Submit", exact=True)).to_have_count(0)
    expect(page.get_by_text("plan but not submit")).to_be_visible()
    signed_out.assert_clean()


def test_code_in_a_note_of_the_editor_is_marked(writing: Page) -> None:
    notes = writing.evaluate(
        """async (from) => {
          const { Editor } = await import(from);
          const editor = new Editor(document.getElementById("editor"), () => {});
          editor.setNotes([[0, "use `gpus` here"]]);
          return document.querySelector("#editor .notes div").innerHTML;
        }""",
        str(writing.locator("script[src$='/submit.js']").get_attribute("src")).replace("submit.js", "editor.js"),
    )
    assert "use <code>gpus</code> here" in notes
    assert "`" not in notes
