"""Jobs that wait for others, on the command line."""

import json

import pytest

from tests.unit.trainyard.fake_service import job, page

FIRST, SECOND = f"job_{1:026}", f"job_{2:026}"
SPEC = {"task": "regression"}
WAITS = {"code": "after", "data": {"jobs": f"{FIRST} to succeed"}}


@pytest.fixture
def listed(service):
    return service.on("GET", "/v1/jobs", page(job(SECOND, name="eval"), job(FIRST, name="train")))


def sent(service):
    return json.loads(service.requests[-1].content)["after"]


def test_submit_names_jobs_by_name_or_part_of_an_id(listed, run):
    listed.on("POST", "/v1/jobs", job("a1"))
    command = ("submit", "-", "--after", "train", "--after", f"{SECOND}:ended")
    done = run(*command, input=json.dumps({**SPEC, "after": ["others"]}))
    assert done.exit_code == 0, done.stderr
    assert sent(listed) == [FIRST, f"{SECOND}:ended"]


def test_an_unknown_job_is_not_submitted(listed, run):
    done = run("submit", "-", "--after", "absent", input=json.dumps(SPEC))
    assert done.exit_code == 6
    assert "POST" not in {request.method for request in listed.requests}


def test_set_takes_ids(listed, run):
    listed.on("POST", "/v1/jobs", job("a1"))
    assert run("submit", "-", "--set", f"after=[{FIRST}, {SECOND}:ended]", input=json.dumps(SPEC)).exit_code == 0
    assert sent(listed) == [FIRST, f"{SECOND}:ended"]


def test_run_names_jobs_as_submit_does(listed, run, tmp_path, monkeypatch):
    (tmp_path / "main.py").touch()
    monkeypatch.chdir(tmp_path)
    listed.on("HEAD", "/v1/code/x", {}).on("POST", "/v1/jobs", job("a1"))
    monkeypatch.setattr("trainyard.client.Client.upload", lambda *_: "sha256:" + "0" * 64)
    done = run("run", "--detach", "--after", "train:ended", "--", "python", "main.py")
    assert done.exit_code == 0, done.stderr
    assert sent(listed) == [f"{FIRST}:ended"]


def test_a_fork_does_not_wait_for_what_its_source_waited_for(service, run):
    source = job("a1", spec={**SPEC, "after": [FIRST]})
    service.on("GET", "/v1/jobs/a1", source).on("POST", "/v1/jobs", job("a2"))
    assert run("fork", "a1").exit_code == 0
    assert sent(service) == []
    assert run("fork", "a1", "--set", f"after=[{SECOND}]").exit_code == 0
    assert sent(service) == [SECOND]


def test_fork_of_the_client_does_not_wait_either(service):
    service.on("GET", "/v1/jobs/a1", job("a1", spec={**SPEC, "after": [FIRST]})).on("POST", "/v1/jobs", job("a2"))
    service.client().fork("a1")
    assert sent(service) == []


def test_list_and_show_state_the_wait(service, run):
    waiting = job("a1", spec={**SPEC, "after": [FIRST, f"{SECOND}:ended"]}, condition=WAITS)
    service.on("GET", "/v1/jobs", page(waiting, job("a2"))).on("GET", "/v1/jobs/a1", waiting)
    assert [row.split()[2:4] for row in run("list").stdout.splitlines()[1:]] == [["queued", "(after)"], ["queued", "-"]]
    assert f"after       {FIRST}, {SECOND} (any end)\n" in run("show", "a1").stdout
