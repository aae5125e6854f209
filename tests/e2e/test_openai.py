"""Three versions of OpenAI's client follow a real job through kills; a killed upload continues."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hf import save_llama
from tests.support.live import kill_rank, wait_for_status, wait_for_step
from tests.support.openai_clients import VERSIONS, run_program, start_program
from tests.support.terminal import run_trainyard
from trainyard.client import Client
from trainyard.client.uploads import PART_BYTES
from trainyard.contract.local_paths import admin_token_file
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.heavy, pytest.mark.e2e]

_EXAMPLES, _BATCH, _EPOCHS = 600, 2, 4
_STEPS = _EXAMPLES // _BATCH * _EPOCHS
_CREATE = """
upload = lambda name: client.files.create(file=open(name, "rb"), purpose="fine-tune").id
job = client.fine_tuning.jobs.create(
    model="tiny-llama", training_file=upload("train.jsonl"), validation_file=upload("valid.jsonl"), suffix="kills",
    seed=3, method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 4, "batch_size": 2}}},
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
    time.sleep(0.1)
checkpoints = [strict(FineTuningJobCheckpoint, one) for one in jobs.checkpoints.list(job_id)]
everything = [event.id for event in jobs.list_events(job_id, limit=100)]
model = strict(Model, client.models.retrieve(job.fine_tuned_model))["id"]
results = client.files.content(job.result_files[0]).text
out = {"events": list(seen.values()), "statuses": statuses, "job": strict(FineTuningJob, job), "model": model,
       "checkpoints": checkpoints, "everything": everything, "results": results}
"""


@pytest.fixture(scope="module")
def tuning_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service with a tiny Llama, whose jobs have two ranks and write a checkpoint every 50 steps."""
    folder = tmp_path_factory.mktemp("openai")
    model = save_llama(folder / "model")
    process = ServiceProcess(folder, local_slots="2", tick_seconds="0.3", allowed_roots=str(folder))
    process.state_dir.mkdir()
    (process.state_dir / "models.yaml").write_text(
        json.dumps(
            {
                "models": {
                    "tiny-llama": {
                        "path": str(model),
                        "spec": {
                            "gpus": 2,
                            "strategy": "ddp",
                            "precision": "fp32",
                            "lora_rank": 4,
                            "checkpoint": {"every_steps": 50},
                        },
                    }
                }
            }
        )
    )
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


@pytest.mark.timeout(400)
def test_three_clients_see_every_event_once_through_kills(tuning_service: ServiceProcess, tmp_path: Path) -> None:
    service = tuning_service
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
    service.kill()
    service.start()
    with service.client() as client:
        wait_for_step(client, job_id, 30)
        attempt = client.job(job_id).attempt
        assert attempt is not None
        kill_rank(attempt.id, 1)
        done = wait_for_status(client, job_id, "succeeded", "failed", seconds=300)
        assert done.status == "succeeded", done.status_message
        assert done.attempt is not None
        assert done.attempt.execution == 2, "the rank was killed after the end"
    for version, program in programs.items():
        output, _ = program.communicate(timeout=120)
        assert program.returncode == 0, output
        check_followed(json.loads((folders[version] / "out.json").read_text()))


def check_followed(out: dict[str, Any]) -> None:
    """Check what one client has read: every event once, in order, and the results."""
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
    model="tiny-llama", training_file=file, seed=3,
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


def test_second_job_starts_from_the_weights_of_the_first(tuning_service: ServiceProcess, tmp_path: Path) -> None:
    service = tuning_service
    service.client().close()
    token = token_of(service)
    write_chats(tmp_path / "train.jsonl", 40)
    model, losses = "tiny-llama", []
    for _ in range(2):
        with service.client() as client:
            job_id = run_program(f"model = {model!r}\n{_TUNE}", service.url, token, "installed", tmp_path)
            done = wait_for_status(client, job_id, "succeeded", "failed", seconds=200)
            assert done.status == "succeeded", (done.status_message, done.error)
            (series,) = client.metrics(job_id, ["train/loss"]).series
            losses.append(dict(zip(series.steps, series.values, strict=True)))
        read = f"out = client.fine_tuning.jobs.retrieve({job_id!r}).fine_tuned_model"
        model = run_program(read, service.url, token, "installed", tmp_path)
        assert model.startswith("ft:tiny-llama:")
        with service.client() as client:
            assert client.job(model).id == client.job(f"{model}:ckpt-step-20").id == job_id
    first, second = losses
    assert len(first) == len(second) == 20
    assert abs(second[1] - first[20]) < abs(second[1] - first[1]), "the second job begins where the first ended"


_KILLED_UPLOAD = """
import os, signal, sys
from trainyard.client import Client
def end(name, done, size):
    if done >= int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
Client().upload_file(sys.argv[1], progress=end)
"""


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
