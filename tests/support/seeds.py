"""Fills a service with resources for each route: jobs in all states, checkpoints, files, tokens, webhooks, code."""

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from service.core.ids import new_id
from service.db.models import Job, NodeFault, Orphan, StartEstimate
from service.plugins.webhooks.part import part_of
from service.scheduler.base import Observation
from tests.support.world import SPEC, World

CODE = b"any bytes"
DIGEST = f"sha256:{hashlib.sha256(CODE).hexdigest()}"
LINES = b'{"text": "one example"}\n{"text": "another one"}\n'
LINES_DIGEST = f"sha256:{hashlib.sha256(LINES).hexdigest()}"
CHAT = b'{"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}\n'
BASE_MODEL = "tiny"
"""A base model that clients of OpenAI's API can fine-tune."""
EXPORTED = ("model.safetensors", "config.json", "export.json")
TRACES = ("profile/step-0000000010-rank-0.json.gz", "profile/step-0000000010-rank-0.txt")
ORPHAN = "job_01kdvdna00az9cxjnszk8v8abh"
VICTIMS = 4
"""Number of each resource that a route deletes."""


@dataclass
class Seeds:
    """The ids for path parameters, by the name of the parameter or by operation and name."""

    worker_token: str
    values: dict[str, list[str]]
    special: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def of(self, operation: str, parameter: str) -> list[str] | None:
        return self.special.get(operation, {}).get(parameter, self.values.get(parameter))


def seed(world: World) -> Seeds:
    """Create the resources, with jobs in each state that a fake worker can cause."""
    running = world.submit(name="running")
    done = world.submit(name="done", checkpoint={"every_steps": 5, "keep_last": 9})
    failed = world.submit(name="failed")
    part_of(world.app_state).resolver = lambda host, port, owner: ["93.184.216.34"]
    worker = world.start(running)
    worker.metrics([("train/loss", step, 1.0 / (step + 1)) for step in range(20)])
    worker.log("0", 0, b"one line\n")
    world.folder(running).placement(0).write_text('{"node": "node1", "ranks": [0, 1]}')
    checkpoints = _finish(world, done)
    loser = world.worker(failed)
    loser.execution = loser.claim().json()["execution"]
    loser.finish("error", failure={"type": "ValueError", "message": "it failed"})
    queued = world.submit(name="waiting", metadata={"team": "nlp"})
    deletable_jobs = [_cancelled(world) for _ in range(VICTIMS)]
    secrets = [_secret(world, f"OLD_{number}_TOKEN") for number in range(VICTIMS)]
    views = [_view(world, f"view {number}") for number in range(VICTIMS + 1)]
    webhooks = [_webhook(world) for _ in range(VICTIMS + 1)]
    tokens = [_token(world, f"person-{n}") for n in range(VICTIMS + 1)]
    kinds = ("kept", "deleted", "unnamed", "renamed")
    models = {kind: [_model(world, f"{kind}-{number}", done, kind) for number in range(VICTIMS)] for kind in kinds}
    projects = [_project(world, f"seeded-{number}") for number in range(VICTIMS + 1)]
    assert world.client.put(f"/v1/code/{DIGEST}", content=CODE).status_code == 201
    training_file = _file(world, CHAT)
    write_models_file(world)
    tunes = [_fine_tune(world, training_file) for _ in range(VICTIMS + 1)]
    files = [_file(world) for _ in range(VICTIMS + 1)]
    uploads = [_upload(world) for _ in range(2 * VICTIMS + 1)]
    received = [_upload(world, received=True) for _ in range(VICTIMS)]
    body = {"spec": SPEC, "grid": {"optimizer.lr": [0.1, 0.2]}, "max_parallel": 1}
    sweep = world.client.post("/v1/sweeps", json=body).json()
    with world.database.write() as session:
        now = world.clock()
        estimate = StartEstimate(id=new_id("est", now), created_by="admin", created_at=now, script="#!/bin/bash\n")
        session.add(estimate)
        folder = world.settings.runs / ORPHAN
        folder.mkdir()
        shutil.copy(world.settings.runs / running / "spec.json", folder)
        session.add(Orphan(id=ORPHAN, job_id=ORPHAN, name="running", folder=str(folder), first_observed_at=now))
        session.add_all(_node_fault(number, now) for number in range(VICTIMS + 1))
        session.flush()
        estimate_id = estimate.id
    return Seeds(
        worker_token=world.folder(running).token.read_text().strip(),
        values={
            "job_id": [queued, running, done, failed],
            "aid": [worker.attempt_id],
            "checkpoint_id": checkpoints[2:],
            "path": ["manifest.json", "inner/data"],
            "name": ["digits_ddp"],
            "digest": [DIGEST],
            "file_id": files[:1],
            "upload_id": uploads[:1],
            "training_file": [training_file],
            "model": [BASE_MODEL],
            "token_id": tokens[:1],
            "user_name": ["daemon"],
            "oidc_user": ["ada"],
            "webhook_id": webhooks[:1],
            "view_id": views[:1],
            "sweep_id": [sweep["id"]],
            "model_name": models["kept"][:1],
            "alias": ["prod"],
            "version": ["1"],
            "estimate_id": [estimate_id],
            "orphan_id": [ORPHAN],
            "node": ["node0"],
            "project": projects[:1],
            "member": ["daemon"],
        },
        special={
            "delete_job": {"job_id": deletable_jobs},
            "delete_checkpoint": {"job_id": [done], "checkpoint_id": checkpoints[:2]},
            "delete_project": {"project": projects[1:]},
            "delete_view": {"view_id": views[1:]},
            "delete_webhook": {"webhook_id": webhooks[1:]},
            "delete_file": {"file_id": files[1:]},
            **{name: {"job_id": [tunes[0]["id"]]} for name in _FINE_TUNE_ROUTES},
            "delete_openai_model": {"model": [_result(world, tune["id"]) for tune in tunes[1:]]},
            "delete_openai_file": {"file_id": [_file(world) for _ in range(VICTIMS)]},
            **{
                f"refuse_openai_{verb}": {"path": ["chat/completions"]}
                for verb in ("get", "post", "put", "patch", "delete")
            },
            "cancel_fine_tune": {"job_id": [_fine_tune(world, training_file)["id"]]},
            "send_part": {"upload_id": uploads[1 : VICTIMS + 1]},
            "complete_upload": {"upload_id": received},
            "abandon_upload": {"upload_id": uploads[VICTIMS + 1 :]},
            "set_secret": {"secret_name": ["HF_TOKEN"]},
            "delete_secret": {"secret_name": secrets},
            "delete_model": {"model_name": models["deleted"]},
            "delete_model_version": {"model_name": models["unnamed"]},
            "delete_model_alias": {"model_name": models["renamed"]},
            "revoke_token": {"token_id": tokens[1:]},
            "include_node": {"node": [f"node{number}" for number in range(1, VICTIMS + 1)]},
            "stream_job": {"job_id": [done]},
            "show_help_text": {"name": ["openai"]},
            **{name: {"job_id": [done]} for name in _SUCCEEDED_JOB_ROUTES},
            **{f"{verb}_export_file": {"job_id": [done], "path": list(EXPORTED)} for verb in _FILE_VERBS},
            **{f"{verb}_artifact": {"job_id": [done], "path": list(TRACES)} for verb in _FILE_VERBS},
            "download_mlflow_artifact": {"job_id": [done], "path": list(TRACES)},
            **{
                f"refuse_mlflow_{verb}": {"path": ["api/2.0/mlflow/none"]}
                for verb in ("get", "post", "put", "patch", "delete")
            },
        },
    )


_SUCCEEDED_JOB_ROUTES = (
    "get_checkpoint",
    "list_checkpoint_files",
    "download_checkpoint_file",
    "download_checkpoint",
    "list_export_files",
    "download_export",
)
_FINE_TUNE_ROUTES = (
    *("get_fine_tune", "pause_fine_tune", "resume_fine_tune"),
    *("list_fine_tune_events", "list_fine_tune_checkpoints"),
)
_FILE_VERBS = ("download", "check")


def _finish(world: World, job_id: str) -> list[str]:
    """Let a job succeed with checkpoints, export and artifacts; return the ids of its checkpoints."""
    worker = world.worker(job_id)
    worker.execution = worker.claim().json()["execution"]
    worker.metrics([("train/loss", step, 1.0 / (step + 1)) for step in range(20)])
    worker.log("0", 0, b"first line\nlast line\n")
    for step in (5, 10, 15):
        worker.checkpoint(step, metrics={"eval/loss": 0.5})
    run = world.app_state.run_layout(job_id)
    checkpoint = run.checkpoint(15)
    files = [checkpoint.manifest, checkpoint.root / "inner" / "data"]
    files += [run.export / name for name in EXPORTED] + [run.artifacts / name for name in TRACES]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"0123456789")
    checkpoint.manifest.write_text("{}")
    worker.finish("completed")
    world.scheduler.states |= {t: Observation("ended") for t in world.scheduler.states if t.endswith(worker.attempt_id)}
    world.tick()
    return [one["id"] for one in _page(world, f"/v1/jobs/{job_id}/checkpoints")]


def _cancelled(world: World) -> str:
    job_id = world.submit(name="victim")
    world.client.post(f"/v1/jobs/{job_id}/cancel")
    world.tick()
    return job_id


def _node_fault(number: int, now: datetime) -> NodeFault:
    return NodeFault(
        attempt_id=f"attempt{number}",
        node=f"node{number}",
        job_id=ORPHAN,
        created_by="admin",
        attempt=1,
        kind="launch_failed",
        message="Slurm: FAILED, exit code 0:53",
        created_at=now,
    )


def _webhook(world: World) -> str:
    answer = world.client.post("/v1/webhooks", json={"url": "https://example.org/hook"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def _project(world: World, name: str) -> str:
    """Create a project that `olga` manages, too."""
    assert world.client.post("/v1/projects", json={"name": name}).status_code == 201
    for user, role in (("olga", "manager"), ("daemon", "member")):
        answer = world.client.put(f"/v1/projects/{name}/members/{user}", json={"role": role})
        assert answer.status_code == 200, answer.text
    return name


def _view(world: World, name: str) -> str:
    answer = world.client.post("/v1/views", json={"name": name})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def _secret(world: World, name: str) -> str:
    answer = world.client.put(f"/v1/secrets/{name}", json={"value": "x"})
    assert answer.status_code == 200, answer.text
    return name


def write_models_file(world: World, **spec: Any) -> Path:
    """Let clients of OpenAI's API fine-tune a model, and return its folder, which has all but weights.

    Args:
        spec: Fields of the model's spec, beside others.
    """
    folder = world.settings.runs / "base-model"
    folder.mkdir(exist_ok=True)
    sizes = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 128}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes, **layers}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    fields = {"lora_rank": 4, "strategy": "ddp", "precision": "fp32", **spec}
    document = {"models": {BASE_MODEL: {"path": str(folder), "spec": fields}}}
    (world.settings.state / "models.yaml").write_text(json.dumps(document))
    return folder


def _fine_tune(world: World, training_file: str) -> dict[str, Any]:
    body = {"model": BASE_MODEL, "training_file": training_file}
    answer = world.client.post("/openai/v1/fine_tuning/jobs", json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def _result(world: World, job_id: str) -> str:
    """Let a fine-tuning job be one that succeeded, and return the name of its model."""
    with world.database.write() as session:
        session.execute(sa.update(Job).where(Job.id == job_id).values(status="succeeded", desired="run"))
    return str(world.client.get(f"/openai/v1/fine_tuning/jobs/{job_id}").json()["fine_tuned_model"])


def _file(world: World, content: bytes = LINES) -> str:
    answer = world.client.post("/v1/files", files={"file": ("text.jsonl", content)})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def _upload(world: World, *, received: bool = False) -> str:
    """Start an upload, and send its bytes if they are to be received."""
    body = {"name": "text.jsonl", "size_bytes": len(LINES), "digest": LINES_DIGEST}
    answer = world.client.post("/v1/uploads", json=body)
    assert answer.status_code == 201, answer.text
    upload_id = str(answer.json()["id"])
    if received:
        assert world.client.put(f"/v1/uploads/{upload_id}?offset=0", content=LINES).status_code == 200
    return upload_id


def _model(world: World, name: str, job_id: str, kind: str) -> str:
    """Register a model with one version, which is `prod` unless the kind is `unnamed`."""
    body = {"job_id": job_id, "aliases": [] if kind == "unnamed" else ["prod"]}
    answer = world.client.post(f"/v1/models/{name}/versions", json=body)
    assert answer.status_code == 201, answer.text
    return name


def _token(world: World, name: str) -> str:
    answer = world.client.post("/v1/tokens", json={"name": name, "role": "user"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def _page(world: World, path: str) -> list[dict[str, Any]]:
    resources: list[dict[str, Any]] = world.client.get(path).json()["data"]
    return resources
