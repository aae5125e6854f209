"""API tokens: roles, expiry and storage."""

import pytest
import sqlalchemy as sa

from service.db.models import Token
from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")


def create_token(world: World, **body: object) -> dict[str, object]:
    answer = world.client.post("/v1/tokens", json={"name": "ada", **body})
    assert answer.status_code == 201, answer.text
    token: dict[str, object] = answer.json()
    return token


def test_token_is_returned_once_and_stored_as_a_hash(world: World) -> None:
    token = create_token(world)
    client = world.new_client(str(token["token"]))
    own = client.get("/v1/tokens/self").json()
    assert (own["name"], own["role"], own["created_by"]) == ("ada", "user", "admin")
    listed = world.client.get("/v1/tokens").text
    assert str(token["id"]) in listed
    assert str(token["token"]) not in listed
    with world.database.read() as session:
        row = session.get_one(Token, token["id"])
        columns = [str(getattr(row, column.key)) for column in sa.inspect(Token).columns]
    secret = str(token["token"])[-43:]  # `token_urlsafe(32)`, which may contain underscores.
    assert not any(secret in value for value in columns)


def test_idempotency_key_is_rejected_for_new_tokens(world: World) -> None:
    answer = world.client.post("/v1/tokens", json={"name": "ada"}, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "not_replayable")
    assert len(world.client.get("/v1/tokens").json()["data"]) == 1


def test_revocation_is_immediate_and_idempotent(world: World) -> None:
    token = create_token(world)
    client = world.new_client(str(token["token"]))
    assert client.get("/v1/jobs").status_code == 200
    assert world.client.delete(f"/v1/tokens/{token['id']}").status_code == 204
    assert client.get("/v1/jobs").status_code == 401
    assert world.client.delete(f"/v1/tokens/{token['id']}").status_code == 204
    assert world.client.delete("/v1/tokens/000000000000").status_code == 404


def test_token_expires(world: World) -> None:
    client = world.new_client(str(create_token(world, expires_in_days=1)["token"]))
    world.clock.advance(86_399)
    assert client.get("/v1/jobs").status_code == 200
    world.clock.advance(1)
    assert client.get("/v1/jobs").status_code == 401


@pytest.mark.databases("sqlite", "postgres")
def test_last_used_at_is_updated_once_a_minute(world: World) -> None:
    token = create_token(world)
    client = world.new_client(str(token["token"]))

    def last_used_at() -> str:
        return str(client.get("/v1/tokens/self").json()["last_used_at"])

    first = last_used_at()
    world.clock.advance(59)
    assert last_used_at() == first
    world.clock.advance(1)
    assert last_used_at() > first


def test_token_routes_require_an_administrator(world: World) -> None:
    for role in ("user", "viewer"):
        client = world.new_client(str(create_token(world, name=f"a-{role}", role=role)["token"]))
        assert client.get("/v1/tokens/self").json()["role"] == role
        for method, path in (("GET", "/v1/tokens"), ("POST", "/v1/tokens"), ("DELETE", "/v1/tokens/0123456789ab")):
            answer = client.request(method, path, json={"name": "x"} if method == "POST" else None)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_required"), (role, path)


@pytest.mark.databases("sqlite", "postgres")
def test_last_admin_token_cannot_be_revoked(world: World) -> None:
    own = world.client.get("/v1/tokens/self").json()["id"]
    answer = world.client.delete(f"/v1/tokens/{own}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "last_admin")
    other = world.new_client(str(create_token(world, role="admin")["token"]))
    assert other.delete(f"/v1/tokens/{own}").status_code == 204


def test_reserved_names_are_rejected(world: World) -> None:
    for name in ("admin", "service", "anonymous"):
        answer = world.client.post("/v1/tokens", json={"name": name})
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "name"), name


def test_single_token_may_be_allowed_to_run_code(world: World) -> None:
    script = {"task": "script", "gpus": 1, "argv": ["/bin/true"]}
    plain = world.new_client(str(create_token(world)["token"]))
    granted = world.new_client(str(create_token(world, may_run_code=True)["token"]))
    assert plain.post("/v1/jobs", json=script).json()["error"]["code"] == "code_role_required"
    assert plain.get("/v1/tokens/self").json()["may_run_code"] is False
    assert granted.post("/v1/jobs", json=script).status_code == 201
    assert granted.get("/v1/tokens/self").json()["may_run_code"] is True
    useless = world.client.post("/v1/tokens", json={"name": "x", "role": "viewer", "may_run_code": True})
    assert useless.status_code == 422


@pytest.mark.parametrize("action", ["retry", "resume"])
def test_starting_a_job_again_requires_the_permission_to_run_its_code(world: World, action: str) -> None:
    script = {"task": "script", "gpus": 1, "argv": ["/bin/true"]}
    plain = world.new_client(str(create_token(world)["token"]))
    granted = world.new_client(str(create_token(world, may_run_code=True)["token"]))
    job = granted.post("/v1/jobs", json=script).json()["id"]
    assert plain.post(f"/v1/jobs/{job}/{'cancel' if action == 'retry' else 'pause'}").status_code == 202
    world.tick(2)
    refused = plain.post(f"/v1/jobs/{job}/{action}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "code_role_required")
    assert granted.post(f"/v1/jobs/{job}/{action}").status_code == 202


def test_roles_limit_changes(world: World) -> None:
    viewer = world.new_client(str(create_token(world, name="eve", role="viewer")["token"]))
    ada = world.new_client(str(create_token(world, name="ada")["token"]))
    bob = world.new_client(str(create_token(world, name="bob")["token"]))
    job = ada.post("/v1/jobs", json=SPEC).json()["id"]
    assert viewer.post("/v1/jobs", json=SPEC).status_code == 403
    for client in (viewer, bob):
        assert client.get(f"/v1/jobs/{job}").status_code == 200
        for change in ("cancel", "pause", "resume"):
            assert client.post(f"/v1/jobs/{job}/{change}").status_code == 403, change
        assert client.delete(f"/v1/jobs/{job}").status_code == 403
    assert ada.post(f"/v1/jobs/{job}/cancel").status_code == 202


@pytest.mark.databases("sqlite", "postgres")
def test_token_list_is_paged(world: World) -> None:
    for name in ("a1", "a2", "a3"):
        create_token(world, name=name)
    names: list[str] = []
    after = ""
    while True:
        page = world.client.get(f"/v1/tokens?order=asc&limit=2{after}").json()
        names += [token["name"] for token in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert sorted(names) == ["a1", "a2", "a3", "admin"]


@pytest.mark.parametrize("name", ["ADA", "aDa", "Admin", "SERVICE", "Anonymous"])
def test_name_that_differs_only_by_case_is_refused(world: World, name: str) -> None:
    assert world.client.post("/v1/tokens", json={"name": "Ada"}).status_code == 201
    assert world.client.post("/v1/tokens", json={"name": "Ada"}).status_code == 201, "two tokens of one user"
    answer = world.client.post("/v1/tokens", json={"name": name})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "name")
