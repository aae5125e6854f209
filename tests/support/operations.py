"""All operations of the application, each with a request that its route can read."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import FastAPI
from fastapi.routing import APIRoute

from tests.support.seeds import BASE_MODEL, CODE, LINES, LINES_DIGEST, Seeds
from tests.support.world import SPEC, World

TIME = "2026-01-01T00:00:00Z"
REPORT = {"execution": 1, "time": TIME}
"""The fields that several reports of a worker have in common."""

BODIES: dict[str, Any] = {
    "submit_job": SPEC,
    "make_plan": SPEC,
    "plan_data": SPEC,
    "submit_sweep": {"spec": SPEC, "grid": {"optimizer.lr": [0.1, 0.2]}, "max_parallel": 1},
    "resume_job": {},
    "retry_job": {},
    "submit_changes": {"changes": [{"field": "seed", "before": 0, "after": 1}]},
    "profile_job": {},
    "enter_job": {"kind": "shell", "rank": 0},
    "resolve_job": {"action": "give_up"},
    "resolve_lost_jobs": {"action": "give_up"},
    "resolve_orphan": {"action": "adopt"},
    "search_mlflow_experiments": {"max_results": 10},
    "search_mlflow_runs": {"experiment_ids": ["0"]},
    "create_token": {"name": "new", "role": "viewer"},
    "create_webhook": {"url": "https://example.org/hook"},
    "sign_in_with_munge": {"nonce": "n" * 43, "credential": "MUNGE:AwQFAACj:"},
    "exchange_sign_in_code": {"code": "c" * 43},
    "edit_job": {"tags": {"baseline": ""}},
    "set_oidc_user": {"disabled": True},
    "create_view": {"name": "new"},
    "create_project": {"name": "new"},
    "change_project": {"description": "changed"},
    "set_project_member": {"role": "viewer"},
    "replace_view": {"name": "replaced"},
    "set_secret": {"value": "x"},
    "create_fine_tune": {"model": BASE_MODEL, "training_file": "of the seeds"},
    "start_upload": {"name": "text.jsonl", "size_bytes": len(LINES), "digest": LINES_DIGEST},
    "set_model_alias": {"version": 1},
    "set_maintenance": {"active": False},
    "claim_attempt": {"nonce": "nonce-0001", "host": "node1", "pid": 7},
    "send_heartbeat": {"execution": 1},
    "report_metrics": {"execution": 1, "resumed_from_step": 0, "points": []},
    "report_events": {"execution": 1, "events": [{"sequence": 1, "type": "note", "message": "x", "time": TIME}]},
    "report_checkpoint": {**REPORT, "step": 1, "size_bytes": 1, "digest": "sha256:" + "0" * 64, "world_size": 1},
    "report_parameters": {"execution": 1, "parameters": {"lr": 0.1}, "tags": {"team": "nlp"}, "notes": "x"},
    "report_media": {
        "execution": 1,
        "items": [{"key": "samples", "step": 1, "type": "image", "path": "images/1.png", "time": TIME}],
    },
    "finish_attempt": {**REPORT, "reason": "completed"},
}
RAW_BODIES = {"put_code": CODE, "append_log": b"x", "send_part": LINES}
BOUNDARY = "boundary-of-the-form"
FILE_FORMS = ("upload_file", "create_openai_file")
"""Operations that read a form with a file."""
FORMS = ("sign_in", "sign_out", "check_sign_in_code", "sign_in_with_code")
QUERIES = {
    "append_log": {"rank": "0", "offset": "0"},
    "send_part": {"offset": "0"},
    "search_log": {"text": "x"},
    "find_log_position": {"time": TIME},
    "get_mlflow_experiment": {"experiment_id": "0"},
    "find_mlflow_experiment": {"experiment_name": "Default"},
    "get_mlflow_history": {"metric_key": "train/loss"},
    "compare_media_steps": {"key": "samples"},
}
PATH_VALUES = {"group": ["any"], "page": ["me/project/runs/1"]}
"""Values of path parameters that name no resource; those of all others are seeds."""


_LAST = ("link_unix_user", "sign_out", "sign_in_with_code")


@dataclass(frozen=True)
class Operation:
    """One method of one route."""

    id: str
    method: str
    path: str

    @property
    def safe(self) -> bool:
        """Whether the method changes nothing."""
        return self.method in ("GET", "HEAD")


def page_routes(app: FastAPI) -> Iterator[Operation]:
    """The routes that the OpenAPI document does not describe."""
    for included in app.routes:
        for route in getattr(getattr(included, "original_router", None), "routes", [included]):
            if isinstance(route, APIRoute) and not route.include_in_schema:
                for method in sorted(route.methods or ()):
                    yield Operation(route.operation_id or route.name, method, route.path)


def all_operations(world: World) -> list[Operation]:
    """The operations by what they remove: those that change accounts and sessions of the identities are the last."""
    document = world.client.get("/openapi.json").json()
    documented = [
        Operation(operation["operationId"], verb.upper(), path)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    ]
    operations = [*documented, *page_routes(world.app)]
    ends = {id_: number for number, id_ in enumerate(_LAST, 1)}
    return sorted(operations, key=lambda operation: (ends.get(operation.id, 0), operation.method == "DELETE"))


@dataclass(frozen=True)
class RawRequest:
    """A request as it is passed to the application."""

    method: str
    path: str
    query: str = ""
    body: bytes = b""
    content_type: str = "application/json"


def request_for(operation: Operation, seeds: Seeds, number: int, form: Mapping[str, str]) -> RawRequest:
    """Return a request of the operation.

    Args:
        number: Selects among the seeds of each path parameter.
        form: The fields for operations that read a form.
    """
    path, query = operation.path, dict(QUERIES.get(operation.id, {}))
    for part in [part for part in path.split("/") if part.startswith("{")]:
        name = part[1:-1].partition(":")[0]
        values = PATH_VALUES.get(name) or seeds.of(operation.id, name)
        assert values, f"add a value of `{name}` to tests/support/seeds.py"
        path = path.replace(part, quote(values[number % len(values)], safe=":/"))
    if operation.id in ("compare_metrics", "compare_media_keys", "compare_media_steps", "show_compare"):
        query["job"] = seeds.values["job_id"][1]
    if operation.id in ("get_mlflow_run", "get_mlflow_history"):
        query["run_id"] = seeds.values["job_id"][1]
    if operation.id == "list_mlflow_artifacts":
        query["path"] = seeds.values["job_id"][1]
    if operation.id in FORMS:
        body, content_type = urlencode(form).encode(), "application/x-www-form-urlencoded"
    elif operation.id in FILE_FORMS:
        body, content_type = file_form("text.jsonl", LINES), f"multipart/form-data; boundary={BOUNDARY}"
    elif operation.id in RAW_BODIES:
        body, content_type = RAW_BODIES[operation.id], "application/octet-stream"
    else:
        document = BODIES.get(operation.id)
        if operation.id == "create_fine_tune":
            document = {**BODIES[operation.id], "training_file": seeds.values["training_file"][0]}
        if operation.id == "register_model_version":
            document = {"job_id": seeds.values["job_id"][2]}
        body, content_type = b"" if document is None else json.dumps(document).encode(), "application/json"
    return RawRequest(operation.method, path, urlencode(query), body, content_type)


def file_form(name: str, content: bytes) -> bytes:
    """Return a form with one file and the purpose that OpenAI's clients send."""
    purpose = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return (purpose + head).encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()


async def status_of(app: FastAPI, request: RawRequest, headers: Mapping[str, str], address: str = "127.0.0.1") -> int:
    """Return the status of the response to a client with this address. It disconnects then: some streams do not end."""
    sent = {"host": "localhost", "content-type": request.content_type, **headers}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": quote(request.path).encode(),
        "query_string": request.query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
        "client": (address, 1),
        "server": ("localhost", 80),
    }
    messages = [{"type": "http.request", "body": request.body, "more_body": False}]
    statuses: list[int] = []
    started = asyncio.Event()

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await started.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
            started.set()

    await app(scope, receive, send)
    return statuses[0]
