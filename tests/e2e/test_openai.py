"""Three versions of OpenAI's client follow a real job through kills; a killed upload continues."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hf import save_llama
from tests.support.live import kill_rank, losses, run_of, spooled_losses, wait_for_status, wait_for_step
from tests.support.openai_clients import VERSIONS, run_program, start_program
from tests.support.terminal import run_trainyard
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.client.uploads import PART_BYTES
from trainyard.contract.local_paths import admin_token_file
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.heavy, pytest.mark.e2e]

_EXAMPLES, _BATCH, _EPOCHS = 160, 2, 2
_STEPS = _EXAMPLES // _BATCH * _EPOCHS
_CREATE = """
upload = lambda name: client.files.create(file=open(name, "rb"), purpose="fine-tune").id
job = client.fine_tuning.jobs.create(
    model="tiny-llama", training_file=upload("train.jsonl"), validation_file=upload("valid.jsonl"), suffix="kills",
    seed=3, method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 2}}},
)
out = strict(FineTuningJob, job)["id"]
"""
_FOLLOW = """
import time
jobs, seen, statuses, ended = client.fine_tuning.jobs, {}, [], False
while not ended:
    try:
        job, new = jobs.retrieve(job_id), []
        for event in jobs.list_events(job_id, limit=50):
            if event.id in seen:
                break
            new.append(event)
    except (openai.APIConnectionError, openai.InternalServerError):
        time.sleep(0.2)
        continue
    seen |= {event.id: strict(FineTuningJobEvent, event) for event in reversed(new)}
    if strict(FineTuningJob, job)["status"] not in statuses[-1:]:
        statuses.append(job.status)
    ended = job.finished_at is not None
    time.sleep(1)
checkpoints = [strict(FineTuningJobCheckpoint, one) for one in jobs.checkpoints.list(job_id)]
everything = [event.id for event in jobs.list_events(job_id, limit=100)]
model = strict(Model, client.models.retrieve(job.fine_tuned_model))["id"]
results = client.files.content(job.result_files[0]).text
out = {"events": list(seen.values()), "statuses": statuses, "job": strict(FineTuningJob, job), "model": model,
       "checkpoints": checkpoints, "everything": everything, "results": results}
"""


@pytest.fixture(scope="module")
def tuning_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service with a tiny Llama, whose jobs have two ranks, and a name of it for jobs on one rank."""
    folder = tmp_path_factory.mktemp("openai")
    model = save_llama(folder / "model")
    process = ServiceProcess(folder, local_slots="2", tick_seconds="0.3", allowed_roots=str(folder))
    process.state_dir.mkdir()
    spec = {"gpus": 2, "strategy": "ddp", "precision": "fp32", "lora_rank": 4, "checkpoint": {"every_steps": 50}}
    models = {
        "tiny-llama": {"path": str(model), "spec": spec},
        "on-one-rank": {"path": str(model), "spec": spec | {"gpus": 1, "strategy": "single"}},
    }
    (process.state_dir / "models.yaml").write_text(json.dumps({"models": models}))
    process.start()
    yield process
    process.stop()


def token_of(service: ServiceProcess) -> str:
    return admin_token_file(service.state_dir).read_text().strip()


def write_chats(path: Path, count: int) -> None:
    lines = (
        {
            "messages": [
                {"role": "user", "content": f"What is {n} and {n}? Explain it in some detail, please."},
                {"role": "assistant", "content": f"{n} and {n} is {2 * n}, since two times {n} is {2 * n}."},
            ]
        }
        for n in range(count)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def followed(tuning_service: ServiceProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What three clients read of a job whose service and one of whose ranks were killed, by the client's version."""
    service, tmp_path = tuning_service, tmp_path_factory.mktemp("clients")
    service.client().close()
    token = token_of(service)
    write_chats(tmp_path / "train.jsonl", _EXAMPLES)
    write_chats(tmp_path / "valid.jsonl", 8)
    job_id = run_program(_CREATE, service.url, token, "installed", tmp_path)
    folders = {version: tmp_path / version for version in VERSIONS}
    for folder in folders.values():
        folder.mkdir()
    programs = {
        version: start_program(f"job_id = {job_id!r}\n{_FOLLOW}", service.url, token, version, folder)
        for version, folder in folders.items()
    }
    with service.client() as client:
        wait_for_step(client, job_id, 12)
        attempt = client.job(job_id).attempt
        assert attempt is not None
    service.kill()
    run, before = run_of(service.runs_dir, job_id), len(spooled_losses(run_of(service.runs_dir, job_id), 1, 1))
    wait_until(lambda: len(spooled_losses(run, 1, 1)) > max(before, 30), 60, "a step without the service")
    # The run must not end before the rank is killed.
    kill_rank(attempt.id, 1, signal.SIGSTOP)
    service.start()
    with service.client() as client:
        wait_for_step(client, job_id, 30)
        kill_rank(attempt.id, 1)
        done = wait_for_status(client, job_id, "succeeded", "failed", seconds=300)
        assert done.status == "succeeded", done.status_message
        assert done.attempt is not None
        assert done.attempt.execution == 2, "the rank was killed after the end"
    for program in programs.values():
        output, _ = program.communicate(timeout=120)
        assert program.returncode == 0, output
    return {version: json.loads((folder / "out.json").read_text()) for version, folder in folders.items()}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("version", VERSIONS)
def test_three_clients_see_every_event_once_through_kills(followed: dict[str, dict[str, Any]], version: str) -> None:
    out = followed[version]
    events, job = out["events"], out["job"]
    assert [event["id"] for event in events] == out["everything"][::-1]
    losses = [event["data"]["step"] for event in events if "train_loss" in (event["data"] or {})]
    assert sorted(losses) == list(range(1, _STEPS + 1)), "a step is missing, or has two events"
    assert any("valid_loss" in (event["data"] or {}) for event in events)
    order = [status for status in ("validating_files", "queued", "running", "succeeded") if status in out["statuses"]]
    assert out["statuses"] == order
    assert (job["status"], job["seed"], job["error"]) == ("succeeded", 3, None)
    assert out["model"] == job["fine_tuned_model"]
    assert out["checkpoints"][0]["step_number"] == _STEPS
    lines = out["results"].splitlines()
    assert [int(line.split(",")[0]) for line in lines[1:]] == list(range(1, _STEPS + 1))
    assert float(lines[-1].split(",")[1]) < float(lines[1].split(",")[1]), "the loss must fall"


_DPO = """
file = client.files.create(file=open("pairs.jsonl", "rb"), purpose="fine-tune").id
job = client.fine_tuning.jobs.create(
    model="on-one-rank", training_file=file, seed=3,
    method={"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 2, "batch_size": 4, "beta": 0.3}}},
)
out = strict(FineTuningJob, job)["id"]
"""


def test_dpo_job_learns_the_preferred_answers(tuning_service: ServiceProcess, tmp_path: Path) -> None:
    service = tuning_service
    with service.client() as client:
        lines = (
            {
                "input": {"messages": [{"role": "user", "content": f"What is {n} and {n}?"}]},
                "preferred_output": [{"role": "assistant", "content": f"It is {2 * n}."}],
                "non_preferred_output": [{"role": "assistant", "content": "Nobody knows that."}],
            }
            for n in range(40)
        )
        (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        job_id = run_program(_DPO, service.url, token_of(service), "installed", tmp_path)
        done = wait_for_status(client, job_id, "succeeded", "failed", seconds=200)
        assert done.status == "succeeded", (done.status_message, done.error)
        (series,) = client.metrics(job_id, ["train/rewards/margins"]).series
        assert series.steps[-1] == 20
        assert series.values[-1] > series.values[0], "the margin must grow"


_TUNE = """
upload = lambda name: client.files.create(file=open(name, "rb"), purpose="fine-tune").id
method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 4}}}
out = client.fine_tuning.jobs.create(model=model, training_file=upload("train.jsonl"), method=method, seed=1).id
"""


def test_second_job_starts_from_the_weights_of_the_first(
    tuning_service: ServiceProcess, followed: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    service, model = tuning_service, followed["installed"]["model"]
    write_chats(tmp_path / "train.jsonl", 40)
    with service.client() as client:
        first_id = client.job(model).id
        program = f"model = {model!r}\n{_TUNE}"
        job_id = run_program(program, service.url, token_of(service), "installed", tmp_path)
        done = wait_for_status(client, job_id, "succeeded", "failed", seconds=200)
        assert done.status == "succeeded", (done.status_message, done.error)
        first, second = ({int(n): float(loss) for n, loss in losses(client, id_).items()} for id_ in (first_id, job_id))
        read = f"out = client.fine_tuning.jobs.retrieve({job_id!r}).fine_tuned_model"
        second_model = run_program(read, service.url, token_of(service), "installed", tmp_path)
        for name, id_, last in ((model, first_id, _STEPS), (second_model, job_id, 20)):
            assert name.startswith("ft:tiny-llama:")
            assert client.job(name).id == client.job(f"{name}:ckpt-step-{last}").id == id_
    assert (len(first), len(second)) == (_STEPS, 20)
    assert abs(second[1] - first[_STEPS]) < abs(second[1] - first[1]), "the second job begins where the first ended"


_KILLED_UPLOAD = """
import os, signal, sys
from trainyard.client import Client
def end(name, done, size):
    if done >= int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
Client().upload_file(sys.argv[1], progress=end)
"""


@pytest.mark.slow
def test_upload_killed_with_its_service_continues_with_the_same_command(
    tuning_service: ServiceProcess, tmp_path: Path
) -> None:
    service, file = tuning_service, tmp_path / "large.jsonl"
    line = json.dumps({"text": "x" * 10_000}).encode() + b"\n"
    file.write_bytes(line * 3000)
    assert file.stat().st_size > 3 * PART_BYTES
    service.client().close()
    environ = {**os.environ, "TRAINYARD_URL": service.url, "TRAINYARD_TOKEN": token_of(service), "TERM": "dumb"}
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED_UPLOAD, str(file), str(PART_BYTES)], env=environ, timeout=120, check=False
    )
    assert killed.returncode == -9
    service.kill()
    service.start()
    with service.client() as client:
        (upload,) = uploads_of(client, service)
        assert upload["received_bytes"] == PART_BYTES
        done = run_trainyard(environ, "files", "upload", str(file))
        assert done.returncode == 0, done.stderr
        assert "3000 examples in the format text" in done.stderr
        file_id = done.stdout.strip()
        assert uploads_of(client, service) == []
        made = client.data_file(file_id)
        assert made.digest == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
        same = client._http.get(f"/v1/uploads/{upload['id']}").json()
        assert same["file_id"] == file_id, "the second command must continue the first upload"
        target = tmp_path / "again.jsonl"
        assert run_trainyard(environ, "files", "download", file_id, "-o", str(target)).returncode == 0
        assert target.read_bytes() == file.read_bytes()


def uploads_of(client: Client, service: ServiceProcess) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = client._http.get("/v1/uploads").json()["data"]
    return listed
