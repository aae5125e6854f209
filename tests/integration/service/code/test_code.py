"""Upload of code, and permission to run it."""

import hashlib
import os
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.world import SPEC, World
from trainyard.contract.spec.user_code import MAX_CODE_BYTES

pytestmark = pytest.mark.databases("sqlite")

CODE = b"any bytes: the service never looks inside"
DIGEST = f"sha256:{hashlib.sha256(CODE).hexdigest()}"
SCRIPT = {"task": "script", "argv": ["train.py"], "code": DIGEST}
CUSTOM = {"task": "custom", "target": "mine:build", "steps": 3}


def files(world: World) -> list[str]:
    return sorted(path.name for path in (world.settings.runs / "code").glob("*"))


def test_code_is_stored_once_by_digest(world: World) -> None:
    assert world.client.head(f"/v1/code/{DIGEST}").status_code == 404
    assert world.client.put(f"/v1/code/{DIGEST}", content=CODE).status_code == 201
    assert world.client.put(f"/v1/code/{DIGEST}", content=CODE).status_code == 200
    assert world.client.head(f"/v1/code/{DIGEST}").status_code == 200
    assert world.client.get(f"/v1/code/{DIGEST}").content == CODE
    assert files(world) == [f"{DIGEST.removeprefix('sha256:')}.tar"]


def test_wrong_digest_is_rejected_and_leaves_no_file(world: World) -> None:
    answer = world.client.put(f"/v1/code/{DIGEST}", content=CODE + b"!")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "digest_mismatch")
    assert world.client.put(f"/v1/code/{DIGEST}", content=b"").status_code == 422
    assert files(world) == []


def test_oversized_upload_is_rejected_with_or_without_length(world: World) -> None:
    chunk = b"x" * (1024 * 1024)
    chunks = MAX_CODE_BYTES // len(chunk) + 1
    announced = world.client.put(
        f"/v1/code/{DIGEST}", content=CODE, headers={"Content-Length": str(MAX_CODE_BYTES + 1)}
    )
    assert announced.status_code == 413
    streamed = world.client.put(f"/v1/code/{DIGEST}", content=(chunk for _ in range(chunks)))
    assert streamed.status_code == 413
    assert files(world) == []


@pytest.mark.parametrize("name", ["sha256:xyz", "../../etc/passwd", DIGEST.upper(), "sha1:" + "0" * 40])
def test_malformed_digest_is_rejected(world: World, name: str) -> None:
    assert world.client.put(f"/v1/code/{name}", content=CODE).status_code in (404, 422)
    assert files(world) == []


def test_spec_with_unknown_code_is_rejected(world: World) -> None:
    answer = world.client.post("/v1/jobs", json=SCRIPT)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "code")
    assert "has a digest of which no code was uploaded" in answer.json()["error"]["message"]
    world.client.put(f"/v1/code/{DIGEST}", content=CODE)
    assert world.client.post("/v1/jobs", json=SCRIPT).status_code == 201


def test_script_file_requires_uploaded_code(world: World) -> None:
    answer = world.client.post("/v1/jobs", json={**SCRIPT, "code": None})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "code")
    for argv in (["/opt/train.py"], ["-m", "train"]):
        assert world.client.post("/v1/jobs", json={**SCRIPT, "code": None, "argv": argv}).status_code == 201


@pytest.mark.parametrize("spec", [CUSTOM, {**SCRIPT, "code": None, "argv": ["-m", "train"]}])
def test_running_uploaded_code_requires_a_granted_role(world: World, spec: dict[str, object]) -> None:
    user = world.new_user("user", "ada")
    answer = user.post("/v1/jobs", json=spec)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "code_role_required")
    assert answer.json()["error"]["message"].startswith(f"the code of task `{spec['task']}` requires")
    assert "role admin; yours has the role user" in answer.json()["error"]["message"]
    assert user.put(f"/v1/code/{DIGEST}", content=CODE).status_code == 403
    assert user.get(f"/v1/code/{DIGEST}").status_code == 403
    assert world.client.post("/v1/jobs", json=spec).status_code == 201
    world.app_state.settings = world.settings.model_copy(update={"code_roles": ("admin", "user")})
    assert user.post("/v1/jobs", json=spec).status_code == 201
    assert world.new_user("viewer", "eve").post("/v1/jobs", json=spec).status_code == 403


@pytest.mark.parametrize(
    "environment",
    [
        {"variables": {"PYTHONWARNINGS": "all:0:antigravity.x:0:0", "BROWSER": "/bin/sh -c id"}},
        {"variables": {"TORCH_LOGS": "+antigravity.x"}},
        {"variables": {"APP_MODE": "x", "NCCL_NET_PLUGIN": "/tmp/x.so"}},
        {"secrets": ["PYTHONWARNINGS"]},
    ],
)
def test_code_loading_variable_requires_a_granted_role(world: World, environment: dict[str, object]) -> None:
    spec, user = {**SPEC, "environment": environment}, world.new_user("user", "ada")
    assert user.put("/v1/secrets/PYTHONWARNINGS", json={"value": "x"}).status_code == 200
    for route, body in (("jobs", spec), ("sweeps", {"spec": spec, "grid": {"seed": [1, 2]}})):
        answer = user.post(f"/v1/{route}", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (403, "code_role_required"), answer.text
        assert error["param"].startswith("environment.")
        assert error["param"] in error["message"]
    plan = user.post("/v1/plans", json=spec).json()
    assert plan["warnings"][0].startswith(f"You cannot submit this spec: `{error['param']}`")
    world.app_state.settings = world.settings.model_copy(update={"code_roles": ("admin", "user")})
    if "variables" in environment:
        assert user.post("/v1/jobs", json=spec).status_code == 201


def test_administrator_permits_further_variables(world: World) -> None:
    spec, user = {**SPEC, "environment": {"variables": {"WANDB_MODE": "offline"}}}, world.new_user("user", "ada")
    assert user.post("/v1/jobs", json=spec).status_code == 403
    world.app_state.settings = world.settings.model_copy(update={"allowed_variables": ("WANDB_*",)})
    assert user.post("/v1/jobs", json=spec).status_code == 201


def test_only_a_script_with_progress_is_continued_forever(world: World) -> None:
    spec = {**SCRIPT, "code": None, "argv": ["-m", "train"]}
    for makes_progress in (True, False):
        job_id = str(world.client.post("/v1/jobs", json=spec).json()["id"])
        for number in range(1, 6):
            worker = world.start(job_id)
            step = 10 * number if makes_progress else 10
            worker.metrics([("train/loss", step, 1.0)], progress={"step": step, "total_steps": 100})
            worker.end("time_limit", step=step)
            world.tick()
            if world.status(job_id) == "failed":
                break
        assert world.status(job_id) == ("queued" if makes_progress else "failed")
        world.client.post(f"/v1/jobs/{job_id}/cancel")
        world.tick()


class TestUnusedCode:
    """Archives grow old by the time of their files: the clock of the world stands in January."""

    def aged(self, world: World, days: float, digest: str = DIGEST) -> Path:
        world.client.put(f"/v1/code/{digest}", content=CODE)
        path = world.settings.runs / "code" / f"{digest.removeprefix('sha256:')}.tar"
        then = (world.clock() - timedelta(days=days)).timestamp()
        os.utime(path, (then, then))
        return path

    @pytest.mark.databases("sqlite", "postgres")
    def test_unreferenced_code_is_removed_after_a_week(self, world: World) -> None:
        path = self.aged(world, 6.9)
        world.run_maintenance()
        assert path.is_file()
        world.clock.advance(6 * 3600)
        world.run_maintenance()
        assert not path.is_file()
        assert world.client.put(f"/v1/code/{DIGEST}", content=CODE).status_code == 201

    @pytest.mark.databases("sqlite", "postgres")
    def test_referenced_code_stays_until_the_job_is_deleted(self, world: World) -> None:
        self.aged(world, 0)
        job = world.client.post("/v1/jobs", json=SCRIPT).json()["id"]
        path = self.aged(world, 30)
        world.run_maintenance()
        assert path.is_file()
        world.client.post(f"/v1/jobs/{job}/cancel")
        world.tick(2)
        assert world.client.delete(f"/v1/jobs/{job}").status_code == 204
        world.run_maintenance()
        assert not path.is_file()

    def test_checking_for_code_renews_its_age(self, world: World) -> None:
        path = self.aged(world, 30)
        assert world.client.head(f"/v1/code/{DIGEST}").status_code == 200
        world.run_maintenance()
        assert path.is_file()
        assert world.client.post("/v1/jobs", json=SCRIPT).status_code == 201

    def test_unfinished_upload_is_removed(self, world: World) -> None:
        left = self.aged(world, 8).with_name(".upload-x7")
        left.write_bytes(b"half")
        then = (world.clock() - timedelta(days=8)).timestamp()
        os.utime(left, (then, then))
        world.run_maintenance()
        assert files(world) == []


@pytest.mark.parametrize(
    "environment",
    [{"python": "/p"}, {"venv": "/v"}, {"conda": "torch"}, {"modules": ["cuda/12"]}, {"setup": ["true"]}],
)
def test_own_environment_requires_the_code_role(world: World, environment: dict[str, object]) -> None:
    (field,) = environment
    spec = {**SPEC, "environment": environment}
    answer = world.new_user("user", "ada").post("/v1/jobs", json=spec)
    assert (answer.status_code, answer.json()["error"]["param"]) == (403, f"environment.{field}")
    assert answer.json()["error"]["code"] == "code_role_required"
    assert world.client.post("/v1/jobs", json=spec).status_code == 201
