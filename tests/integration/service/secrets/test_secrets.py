"""Secrets are stored encrypted, delivered with the claim and never returned by another route."""

import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from structlog.testing import capture_logs

from service.diagnostics.checks import run_checks
from service.secrets.encryption import SecretCipher, SecretKeyError
from service.secrets.service import MAX_SECRETS
from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")

SECRET_VALUE = "hush-hush-4711"


def put(client: Any, name: str, value: Any = SECRET_VALUE) -> Any:
    return client.put(f"/v1/secrets/{name}", json={"value": value})


def with_secrets(*names: str) -> dict[str, Any]:
    return {**SPEC, "environment": {"secrets": list(names)}}


@pytest.mark.databases("sqlite", "postgres")
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


def test_refused_name_is_explained_in_one_sentence(world: World) -> None:
    message = put(world.client, "LD_PRELOAD").json()["error"]["message"]
    assert message == "`LD_PRELOAD` changes which code runs; a spec may not set this variable"


def test_json_sent_without_its_content_type_names_the_header(world: World) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = world.client.put("/v1/secrets/HF_TOKEN", content=b'{"value": "x"}', headers=form)
    assert answer.status_code == 422
    assert "`Content-Type: application/json`" in answer.json()["error"]["message"]


def test_value_given_as_the_name_is_not_audited(world: World) -> None:
    assert put(world.client, f"hf_{SECRET_VALUE}").status_code == 422
    assert SECRET_VALUE not in world.client.get("/v1/audit").text


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


@pytest.mark.parametrize("role", ["user", "viewer"])
def test_nobody_else_names_another_user(world: World, role: Any) -> None:
    put(world.new_user("user", "anna"), "HF_TOKEN")
    bert = world.new_user(role, "bert")
    for method, url in (("GET", "/v1/secrets?user=anna"), ("DELETE", "/v1/secrets/HF_TOKEN?user=anna")):
        refusal = bert.request(method, url).json()["error"]
        assert refusal["code"] == "forbidden"
        if role == "user":
            verb = {"GET": "list", "DELETE": "delete"}[method]
            assert refusal["message"] == f"only administrators {verb} the secrets of other users"
    assert bert.get("/v1/secrets?user=bert").status_code == 200
    assert len(world.client.get("/v1/secrets?user=anna").json()["data"]) == 1
    assert world.client.put("/v1/secrets/HF_TOKEN?user=anna", json={"value": "x"}).status_code == 422


@pytest.mark.databases("sqlite", "postgres")
def test_number_of_secrets_is_limited(world: World) -> None:
    for number in range(MAX_SECRETS):
        assert put(world.client, f"APP_{number}").status_code == 200
    assert put(world.client, "APP_0").status_code == 200
    assert put(world.client, "ONE_MORE").json()["error"]["code"] == "too_many_secrets"


def test_stored_value_is_encrypted_with_a_private_key(world: World) -> None:
    put(world.client, "HF_TOKEN")
    key = world.settings.state / "secrets.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with sqlite3.connect(world.settings.url.removeprefix("sqlite:///")) as connection:
        rows = connection.execute("select * from secrets").fetchall()
    assert len(rows) == 1
    assert SECRET_VALUE not in str(rows)


class TestLostKey:
    pytestmark = pytest.mark.databases("sqlite")

    def test_lost_key_is_never_replaced_while_secrets_exist(self, world: World) -> None:
        put(world.client, "HF_TOKEN")
        job = world.client.post("/v1/jobs", json=with_secrets("HF_TOKEN")).json()["id"]
        key = world.settings.state / "secrets.key"
        saved = key.read_bytes()
        key.unlink()
        for answer in (
            put(world.client, "B_TOKEN"),
            world.client.post("/v1/jobs", json=with_secrets("HF_TOKEN")),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "secrets_key_unavailable")
            assert answer.headers["Retry-After"] == "600", "clients must not wait for an administrator"
            assert "restore it from a backup, or delete all" in answer.json()["error"]["message"]
        ready = world.client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ok")
        (note,) = ready.json()["notes"]
        assert "secrets.key does not exist" in note
        (finding,) = [result for result in run_checks(world.settings) if result.name == "secrets"]
        assert (finding.state, "users with secrets: admin" in finding.message) == ("error", True)
        assert finding.fix.startswith("restore it from a backup")
        world.tick()
        with capture_logs() as logs:
            assert world.worker(job).claim().json()["secrets"] == {}
        assert [("does not exist" in entry["reason"], entry["names"]) for entry in logs if "reason" in entry] == [
            (True, ["HF_TOKEN"])
        ]
        assert not key.exists()
        key.write_bytes(saved)
        key.chmod(0o600)
        assert "notes" not in world.client.get("/readyz").json()
        assert world.worker(job).claim().json()["secrets"] == {"HF_TOKEN": SECRET_VALUE}

    def test_new_key_is_made_after_all_secrets_are_deleted(self, world: World) -> None:
        put(world.client, "HF_TOKEN")
        (world.settings.state / "secrets.key").unlink()
        assert world.client.delete("/v1/secrets/HF_TOKEN").status_code == 204
        assert "notes" not in world.client.get("/readyz").json()
        assert put(world.client, "HF_TOKEN").status_code == 200

    def test_claim_with_another_key_logs_the_reason(self, world: World) -> None:
        put(world.client, "HF_TOKEN")
        job = world.client.post("/v1/jobs", json=with_secrets("HF_TOKEN")).json()["id"]
        (world.settings.state / "secrets.key").write_bytes(Fernet.generate_key())
        world.tick()
        with capture_logs() as logs:
            assert world.worker(job).claim().json()["secrets"] == {}
        assert any("encrypted with another key" in entry.get("reason", "") for entry in logs)

    def test_another_key_is_reported_before_a_job_starts(self, world: World) -> None:
        put(world.client, "HF_TOKEN")
        (world.settings.state / "secrets.key").write_bytes(Fernet.generate_key())
        answer = world.client.post("/v1/jobs", json=with_secrets("HF_TOKEN"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "secrets_key_unavailable")
        (note,) = world.client.get("/readyz").json()["notes"]
        assert "is not the key of the secrets that are stored" in note
        (finding,) = [result for result in run_checks(world.settings) if result.name == "secrets"]
        assert (finding.state, "users with secrets: admin" in finding.message) == ("error", True)
        assert world.client.delete("/v1/secrets/HF_TOKEN").status_code == 204
        assert "notes" not in world.client.get("/readyz").json()


def new_cipher(file: Path) -> SecretCipher:
    cipher = SecretCipher(file)
    cipher.create_key()
    return cipher


class TestSecretCipher:
    def test_value_is_bound_to_owner_and_name(self, tmp_path: Path) -> None:
        cipher = new_cipher(tmp_path / "key")
        encrypted = cipher.encrypt("anna", "A", "value")
        assert cipher.decrypt("anna", "A", encrypted) == "value"
        assert cipher.decrypt("bert", "A", encrypted) is None
        assert cipher.decrypt("anna", "B", encrypted) is None

    def test_value_of_another_key_cannot_be_decrypted(self, tmp_path: Path) -> None:
        encrypted = new_cipher(tmp_path / "one").encrypt("anna", "A", "value")
        assert new_cipher(tmp_path / "two").decrypt("anna", "A", encrypted) is None

    def test_key_survives_a_restart_and_is_created_once(self, tmp_path: Path) -> None:
        first, second = (new_cipher(tmp_path / "key") for _ in range(2))
        assert second.decrypt("anna", "A", first.encrypt("anna", "A", "value")) == "value"

    def test_decryption_creates_no_key(self, tmp_path: Path) -> None:
        with pytest.raises(SecretKeyError, match="does not exist"):
            SecretCipher(tmp_path / "key").decrypt("anna", "A", "x")
        assert not (tmp_path / "key").exists()
