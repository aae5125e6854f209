"""Requests of OpenAI's API without its client."""

import json
from typing import Any

from tests.support.world import World

PREFIX = "/openai/v1"
JOBS = f"{PREFIX}/fine_tuning/jobs"
CHAT = {"messages": [{"role": "user", "content": "two and two?"}, {"role": "assistant", "content": "four"}]}


def upload(world: World, name: str = "chat.jsonl", count: int = 40) -> str:
    """Upload a file of conversations, and return its id."""
    content = "\n".join([json.dumps(CHAT)] * count).encode()
    answer = world.client.post(f"{PREFIX}/files", files={"file": (name, content)}, data={"purpose": "fine-tune"})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def try_create(world: World, **body: Any) -> Any:
    """Return the answer to the request for a job, of the model `tiny` and a new file unless the body names others."""
    body = {"model": "tiny", **body}
    if "training_file" not in body:
        body["training_file"] = upload(world)
    return world.client.post(JOBS, json=body)


def create(world: World, **body: Any) -> dict[str, Any]:
    """Create a job, and return it."""
    answer = try_create(world, **body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def get(world: World, path: str, status: int = 200, **query: Any) -> Any:
    """Return the document of an answer."""
    answer = world.client.get(f"{PREFIX}/{path}", params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


def status(world: World, job_id: str) -> str:
    """Return the status of a job."""
    return str(get(world, f"fine_tuning/jobs/{job_id}")["status"])


def change(world: World, job_id: str, action: str) -> str:
    """Pause, resume or cancel a job, and return its status."""
    answer = world.client.post(f"{JOBS}/{job_id}/{action}")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["status"])
