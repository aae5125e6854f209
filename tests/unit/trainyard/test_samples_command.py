"""`trainyard samples` and `client.samples`: which step, what is printed, and files that hold no samples."""

import json

import httpx
import pytest

from tests.unit.trainyard.fake_service import TIME, job, page
from trainyard.client.errors import NotFoundError, ServerError

LAST = {"prompt": "Once", "text": " upon \x1b[31ma time", "tokens": 1, "ended": False}
RECORD = {"step": 200, "samples": [LAST, {"prompt": "a", "text": "", "tokens": 0, "ended": True}]}


def artifact(path, size=100):
    return {"object": "artifact", "path": path, "size_bytes": size, "modified_at": TIME}


def prepare(service, *artifacts, **files):
    service.on("GET", "/v1/jobs/a1", job("a1")).on("GET", "/v1/jobs/a1/artifacts", page(*artifacts))
    for step, content in files.items():
        name = f"step-{int(step[1:]):010d}.json"
        service.on("GET", f"/v1/jobs/a1/artifacts/samples/{name}", httpx.Response(200, content=json.dumps(content)))


FILES = [artifact(path) for path in ("samples/step-0000000020.json", "samples/step-0000000200.json", "samples/x.json")]


def test_last_step_is_printed_without_escape_sequences(service, run):
    prepare(service, *FILES, s200=RECORD)
    done = run("samples", "a1")
    assert done.stdout == "step 200\n\n--- 1 token (cut)\nOnce upon a time\n\n--- 0 tokens\na\n"


def test_another_step_can_be_chosen(service, run):
    prepare(service, *FILES, s20=RECORD | {"step": 20})
    assert json.loads(run("samples", "a1", "--step", "20", "--json").stdout)["step"] == 20


@pytest.mark.parametrize(
    ("artifacts", "step", "message"),
    [
        ([], None, "the job has no samples yet"),
        ([artifact("samples/notes.json")], None, "the job has no samples yet"),
        (FILES, 30, "the job has no samples of step 30; it has those of steps 20, 200"),
        ([artifact("samples/step-0000000020.json", 2**21)], None, "larger than samples are"),
    ],
)
def test_missing_samples_are_explained(service, artifacts, step, message):
    prepare(service, *artifacts)
    with service.client() as client, pytest.raises(NotFoundError, match=message):
        client.samples("a1", step)


def test_a_file_of_the_users_own_is_no_record(service):
    prepare(service, *FILES, s200={"step": "no"})
    with service.client() as client, pytest.raises(ServerError):
        client.samples("a1")
