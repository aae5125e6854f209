"""Secrets are stored encrypted, delivered with the claim and never returned by another route."""

import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import ServiceError
from service.secrets.encryption import SecretCipher
from service.secrets.service import MAX_SECRETS
from tests.support.world import SPEC, World

SECRET_VALUE = "hush-hush-4711"


def put(client: Any, name: str, value: Any = SECRET_VALUE) -> Any:
    return client.put(f"/v1/secrets/{name}", json={"value": value})


def with_secrets(*names: str) -> dict[str, Any]:
    return {**SPEC, "environment": {"secrets": list(names)}}


def test_secret_is_listed_by_name_and_never_returned(world: World) -> None:
    answer = put(world.client, "HF_TOKEN")
    assert answer.json().keys() == {"object", "name", "created_at", "updated_at"}
    world.clock.advance(60)
    put(world.client, "HF_TOKEN", SECRET_VALUE + "-2")
    (listed,) = world.client.get("/v1/secrets").json()["data"]
    assert listed["name"] == "HF_TOKEN"
    assert listed["created_at"] < listed["updated_at"]
    assert world.client.get("/v1/secrets/HF_TOKEN").status_code == 405
    assert world.client.delete("/v1/secrets/HF_TOKEN").status_code == 204
    assert world.client.delete("/v1/secrets/HF_TOKEN").json()["error"]["code"] == "secret_not_found"
    entries = world.client.get("/v1/audit").json()
    assert [(e["action"], e["target"]) for e in entries["data"]][-1] == ("set_secret", "HF_TOKEN")
    assert SECRET_VALUE not in str(entries)


def test_secrets_belong_to_one_user(world: World) -> None:
    anna, bert = world.new_user("user", "anna"), world.new_user("user", "bert")
    put(anna, "HF_TOKEN")
    assert bert.get("/v1/secrets").json()["data"] == world.client.get("/v1/secrets").json()["data"] == []
    assert bert.delete("/v1/secrets/HF_TOKEN").status_code == 404
    for client in (bert, world.client):
        answer = client.post("/v1/jobs", json=with_secrets("HF_TOKEN"))
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "environment.secrets.HF_TOKEN")
        assert "trainyard secrets set HF_TOKEN" in answer.json()["error"]["message"]
    grid = {"spec": with_secrets("HF_TOKEN"), "grid": {"seed": [1, 2]}}
    assert bert.post("/v1/sweeps", json=grid).json()["error"]["param"] == "members.0.environment.secrets.HF_TOKEN"
    assert anna.post("/v1/jobs", json=with_secrets("HF_TOKEN")).status_code == 201
    assert anna.post("/v1/sweeps", json=grid).status_code == 201
    viewer = world.new_user("viewer", "eve")
    assert (put(viewer, "X_TOKEN").status_code, viewer.delete("/v1/secrets/X_TOKEN").status_code) == (403, 403)


def test_secret_reaches_the_claim_and_nothing_else(world: World) -> None:
    put(world.client, "HF_TOKEN")
    job = world.client.post("/v1/jobs", json=with_secrets("HF_TOKEN")).json()["id"]
    world.tick()
    worker = world.worker(job)
    assert worker.claim().json()["secrets"] == {"HF_TOKEN": SECRET_VALUE}
    assert worker.claim().json()["secrets"] == {"HF_TOKEN": SECRET_VALUE}, "the other nodes repeat the claim"
    assert "secrets" not in worker.claim("another-nonce").json()
    plan = world.scheduler.submitted[0]
    assert SECRET_VALUE not in f"{plan}"
    for path in ("", "/events", "/attempts", "/script", "/stream?logs=false"):
        if "stream" not in path:
            assert SECRET_VALUE not in world.client.get(f"/v1/jobs/{job}{path}").text
    for file in world.settings.runs.rglob("*"):
        assert not file.is_file() or SECRET_VALUE not in file.read_text(errors="replace"), file
    worker.end("completed")
    world.tick()
    assert "secrets" not in worker.claim().json()


def test_deleted_secret_is_missing_in_the_claim(world: World) -> None:
    put(world.client, "A_TOKEN")
    put(world.client, "B_TOKEN")
    job = world.client.post("/v1/jobs", json=with_secrets("A_TOKEN", "B_TOKEN")).json()["id"]
    world.client.delete("/v1/secrets/B_TOKEN")
    world.tick()
    assert world.worker(job).claim().json()["secrets"] == {"A_TOKEN": SECRET_VALUE}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("lower", "x"), ("A-B", "x"), ("A" * 129, "x"), ("LD_PRELOAD", "x"), ("TRAINYARD_ATTEMPT", "x")),
        *(
            ("HF_TOKEN", ""),
            ("HF_TOKEN", SECRET_VALUE * 2000),
            ("HF_TOKEN", f"{SECRET_VALUE}\0"),
            ("HF_TOKEN", [SECRET_VALUE]),
        ),
    ],
)
def test_invalid_secret_is_rejected_without_its_value(world: World, name: str, value: Any) -> None:
    answer = put(world.client, name, value)
    assert answer.status_code == 422, answer.text
    assert SECRET_VALUE not in answer.text
    assert SECRET_VALUE not in world.client.get("/v1/audit").text


def test_value_given_as_the_name_is_not_audited(world: World) -> None:
    assert put(world.client, f"hf_{SECRET_VALUE}").status_code == 422
    assert SECRET_VALUE not in world.client.get("/v1/audit").text


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"value": "x", "y": ' + b"[" * 33 + b"]" * 33 + b"}", 400),
        (b'{"value": "x", "y": ' + b"[" * 50_000, 400),
        (b'{"value": [' + b"0," * 50_000 + b"0]}", 400),
        (b'{"value": "' + b"x" * 300_000 + b'"}', 413),
        (b'{"value": "\xff"}', 400),
        (b'{"value": "\\ud800"}', 400),
        (b'{"value": "x", "value": "y"', 400),
    ],
    ids=range(7),
)
def test_bodies_have_the_bounds_of_other_routes(world: World, body: bytes, status: int) -> None:
    headers = {"Content-Type": "application/json"}
    answer = world.client.put("/v1/secrets/HF_TOKEN", content=body, headers=headers)
    other = world.client.post("/v1/tokens", content=body.replace(b"value", b"name"), headers=headers)
    assert (answer.status_code, other.status_code) == (status, status)
    assert answer.json()["error"]["code"] == other.json()["error"]["code"]
    assert world.client.get("/v1/secrets").json()["data"] == []


@pytest.mark.databases("sqlite")
def test_an_administrator_deletes_the_secrets_of_a_user_who_left(world: World) -> None:
    put(world.new_user("user", "anna"), "HF_TOKEN")
    put(world.client, "HF_TOKEN", "of the administrator")
    listed = world.client.get("/v1/secrets?user=anna")
    assert [secret["name"] for secret in listed.json()["data"]] == ["HF_TOKEN"]
    assert SECRET_VALUE not in listed.text
    url = "/v1/secrets/HF_TOKEN?user=anna"
    assert world.client.delete(url).status_code == 204
    refusal = world.client.delete(url)
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (404, "secret_not_found")
    assert "anna has no secret" in refusal.json()["error"]["message"]
    assert world.client.get("/v1/secrets?user=anna").json()["data"] == []
    assert [secret["name"] for secret in world.client.get("/v1/secrets").json()["data"]] == ["HF_TOKEN"]
    entries = world.client.get("/v1/audit?order=asc&actor=admin&limit=200").json()["data"]
    of_anna = [(e["action"], e["target"], e["outcome"]) for e in entries if e["detail"].get("user") == "anna"]
    assert of_anna == [
        ("list_secrets", None, "done"),
        ("delete_secret", "HF_TOKEN", "done"),
        ("delete_secret", "HF_TOKEN", "refused"),
    ], "the second list is counted in the summary of the minute"


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("role", ["user", "viewer"])
def test_nobody_else_names_another_user(world: World, role: Any) -> None:
    put(world.new_user("user", "anna"), "HF_TOKEN")
    bert = world.new_user(role, "bert")
    for method, url in (("GET", "/v1/secrets?user=anna"), ("DELETE", "/v1/secrets/HF_TOKEN?user=anna")):
        assert bert.request(method, url).json()["error"]["code"] == "forbidden"
    assert bert.get("/v1/secrets?user=bert").status_code == 200
    assert len(world.client.get("/v1/secrets?user=anna").json()["data"]) == 1
    assert world.client.put("/v1/secrets/HF_TOKEN?user=anna", json={"value": "x"}).status_code == 422


def test_number_of_secrets_is_limited(world: World) -> None:
    for number in range(MAX_SECRETS):
        assert put(world.client, f"APP_{number}").status_code == 200
    assert put(world.client, "APP_0").status_code == 200
    assert put(world.client, "ONE_MORE").json()["error"]["code"] == "too_many_secrets"


@pytest.mark.databases("sqlite")
def test_stored_value_is_encrypted_with_a_private_key(world: World) -> None:
    put(world.client, "HF_TOKEN")
    key = world.settings.state / "secrets.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with sqlite3.connect(world.settings.url.removeprefix("sqlite:///")) as connection:
        rows = connection.execute("select * from secrets").fetchall()
    assert len(rows) == 1
    assert SECRET_VALUE not in str(rows)


class TestSecretCipher:
    def test_value_is_bound_to_owner_and_name(self, tmp_path: Path) -> None:
        cipher = SecretCipher(tmp_path / "key", create=True)
        encrypted = cipher.encrypt("anna", "A", "value")
        assert cipher.decrypt("anna", "A", encrypted) == "value"
        assert cipher.decrypt("bert", "A", encrypted) is None
        assert cipher.decrypt("anna", "B", encrypted) is None

    def test_value_of_another_key_cannot_be_decrypted(self, tmp_path: Path) -> None:
        encrypted = SecretCipher(tmp_path / "one", create=True).encrypt("anna", "A", "value")
        assert SecretCipher(tmp_path / "two", create=True).decrypt("anna", "A", encrypted) is None

    def test_key_survives_a_restart_and_is_created_once(self, tmp_path: Path) -> None:
        first, second = (SecretCipher(tmp_path / "key", create=True) for _ in range(2))
        assert second.decrypt("anna", "A", first.encrypt("anna", "A", "value")) == "value"

    def test_shared_key_file_must_exist_and_be_private(self, tmp_path: Path) -> None:
        with pytest.raises(ServiceError, match="cannot be read"):
            SecretCipher(tmp_path / "key", create=False).encrypt("anna", "A", "value")
        SecretCipher(tmp_path / "key", create=True).encrypt("anna", "A", "value")
        (tmp_path / "key").chmod(0o644)
        with pytest.raises(ServiceError, match="readable by others"):
            SecretCipher(tmp_path / "key", create=False).encrypt("anna", "A", "value")
