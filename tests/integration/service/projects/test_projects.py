"""Created projects over the API: who creates, manages, submits and moves, project tokens and quotas."""

from collections.abc import Mapping
from typing import Any

import pytest

from service.db.models import Job
from tests.support.world import SPEC, World

GRID = {"optimizer.lr": [0.1, 0.2]}


@pytest.fixture
def users(world: World) -> Mapping[str, Any]:
    """Return clients of users, of whom `mona` manages the private project `zoo`, and `max` and `vic` are members."""
    clients = {name: world.new_user("user", name) for name in ("mona", "max", "vic", "otto")}
    clients["admin"] = world.client
    made = clients["mona"].post("/v1/projects", json={"name": "zoo", "visibility": "private"})
    assert (made.status_code, made.json()["role"]) == (201, "manager")
    for name, role in (("max", "member"), ("vic", "viewer")):
        answer = clients["mona"].put(f"/v1/projects/zoo/members/{name}", json={"role": role})
        assert answer.status_code == 200, answer.text
    return clients


def submit(client: Any, project: str | None = "zoo", status: int = 201, **headers: str) -> Any:
    answer = client.post("/v1/jobs", json={**SPEC, "project": project}, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def code_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_only_members_submit_in_any_case_of_the_name(users: Mapping[str, Any]) -> None:
    for spelling in ("zoo", "ZOO", "\uff3aoo"):
        assert submit(users["max"], spelling)["project"] == "zoo"
        for name in ("vic", "otto"):
            assert submit(users[name], spelling, 403)["error"]["code"] == "project_member_required"
            sweep = users[name].post("/v1/sweeps", json={"spec": {**SPEC, "project": spelling}, "grid": GRID})
            assert code_of(sweep) == (403, "project_member_required")
    assert users["otto"].get("/v1/jobs").json()["data"] == []
    assert len(users["vic"].get("/v1/jobs").json()["data"]) == 3


def test_a_sweep_belongs_to_the_project_as_its_members_do(users: Mapping[str, Any]) -> None:
    sweep = users["max"].post("/v1/sweeps", json={"spec": {**SPEC, "project": "Zoo"}, "grid": GRID}).json()
    assert sweep["project"] == "zoo"
    jobs = users["vic"].get(f"/v1/jobs?sweep={sweep['id']}").json()["data"]
    assert {job["project"] for job in jobs} == {"zoo"}
    assert users["otto"].get(f"/v1/sweeps/{sweep['id']}").status_code == 404
    assert users["otto"].get("/v1/sweeps").json()["data"] == []
    mixed = {"spec": SPEC, "members": [{"project": "zoo"}, {"project": "other"}]}
    assert users["max"].post("/v1/sweeps", json=mixed).status_code == 422


def test_moving_a_member_into_a_private_project_hides_its_sweep(users: Mapping[str, Any]) -> None:
    sweep = users["max"].post("/v1/sweeps", json={"spec": SPEC, "grid": GRID}).json()
    assert users["otto"].get(f"/v1/sweeps/{sweep['id']}").status_code == 200
    moved = users["max"].patch(f"/v1/jobs/{sweep['members'][0]['job_id']}", json={"project": "ZOO"})
    assert moved.json()["project"] == "zoo"
    assert users["otto"].get(f"/v1/sweeps/{sweep['id']}").status_code == 404


def test_members_cancel_and_restart_but_do_not_delete_jobs_of_others(users: Mapping[str, Any]) -> None:
    job = submit(users["mona"])["id"]
    assert users["otto"].post(f"/v1/jobs/{job}/cancel").status_code == 404
    assert users["vic"].post(f"/v1/jobs/{job}/cancel").status_code == 403
    assert users["max"].post(f"/v1/jobs/{job}/pause").status_code == 202
    assert users["max"].post(f"/v1/jobs/{job}/cancel").status_code == 202
    assert users["max"].delete(f"/v1/jobs/{job}").status_code == 403
    sweep = users["mona"].post("/v1/sweeps", json={"spec": {**SPEC, "project": "zoo"}, "grid": GRID}).json()["id"]
    assert users["vic"].post(f"/v1/sweeps/{sweep}/cancel").status_code == 403
    assert users["max"].post(f"/v1/sweeps/{sweep}/cancel").status_code == 202


def test_only_members_move_jobs_into_and_out_of_it(users: Mapping[str, Any]) -> None:
    own = submit(users["otto"], None)["id"]
    for spelling in ("zoo", "Zoo"):
        refused = users["otto"].patch(f"/v1/jobs/{own}", json={"project": spelling})
        assert code_of(refused) == (403, "project_member_required")
    job = submit(users["max"])["id"]
    assert users["vic"].patch(f"/v1/jobs/{job}", json={"project": ""}).status_code == 403
    assert users["otto"].patch(f"/v1/jobs/{job}", json={"project": ""}).status_code == 404
    assert users["mona"].patch(f"/v1/jobs/{job}", json={"project": "open label"}).status_code == 200
    assert users["otto"].get(f"/v1/jobs/{job}").status_code == 200


def test_a_removed_member_loses_even_own_jobs_and_replays(users: Mapping[str, Any]) -> None:
    job = submit(users["max"], "zoo", **{"Idempotency-Key": "k"})["id"]
    assert users["mona"].delete("/v1/projects/zoo/members/max").status_code == 204
    assert users["max"].get(f"/v1/jobs/{job}").status_code == 404
    assert users["max"].post(f"/v1/jobs/{job}/cancel").status_code == 404
    assert submit(users["max"], "zoo", 403, **{"Idempotency-Key": "k"})["error"]["param"] == "project"
    assert users["max"].get("/v1/projects/zoo").status_code == 404
    assert "zoo" not in users["max"].get("/v1/projects").text


def test_a_copy_of_a_moved_job_stays_in_its_project(users: Mapping[str, Any]) -> None:
    job = submit(users["max"], None)["id"]
    users["max"].patch(f"/v1/jobs/{job}", json={"project": "zoo"})
    changes = {"changes": [{"field": "seed", "before": 0, "after": 1}]}
    assert users["mona"].post(f"/v1/jobs/{job}/changes", json=changes).json()["project"] == "zoo"
    assert users["vic"].post(f"/v1/jobs/{job}/changes", json=changes).status_code == 403


def test_a_label_that_others_use_is_created_by_administrators_alone(users: Mapping[str, Any]) -> None:
    theirs, own = submit(users["otto"], "Shared")["id"], submit(users["max"], "Own")["id"]
    for name in ("shared", "SHARED"):
        taken = users["max"].post("/v1/projects", json={"name": name, "visibility": "private"})
        assert code_of(taken) == (409, "project_in_use")
    assert users["max"].post("/v1/projects", json={"name": "OWN", "visibility": "private"}).status_code == 201
    assert users["max"].get(f"/v1/jobs/{own}").json()["project"] == "OWN"
    assert users["otto"].get(f"/v1/jobs/{own}").status_code == 404
    assert users["admin"].post("/v1/projects", json={"name": "shared"}).status_code == 201
    assert users["otto"].get(f"/v1/jobs/{theirs}").json()["project"] == "shared"
    assert submit(users["otto"], "shared", 403)
    for name in ("zoo", "ZOO", "\uff3aoo"):
        assert code_of(users["otto"].post("/v1/projects", json={"name": name})) == (409, "project_exists")
    assert code_of(users["otto"].post("/v1/projects", json={"name": "Mona"})) == (409, "project_in_use")


def test_managers_change_it_and_members_do_not(users: Mapping[str, Any]) -> None:
    for name, status in (("otto", 404), ("vic", 403), ("max", 403), ("mona", 200), ("admin", 200)):
        client = users[name]
        assert client.patch("/v1/projects/zoo", json={"description": "x"}).status_code == status
        assert client.put("/v1/projects/zoo/members/new", json={"role": "member"}).status_code == status
    assert users["vic"].delete("/v1/projects/zoo/members/max").status_code == 403
    assert code_of(users["mona"].patch("/v1/projects/zoo", json={"max_gpus": 9})) == (403, "admin_required")
    assert code_of(users["mona"].delete("/v1/projects/zoo/members/mona")) == (409, "last_manager")
    demoted = users["mona"].put("/v1/projects/zoo/members/mona", json={"role": "viewer"})
    assert code_of(demoted) == (409, "last_manager")
    assert users["max"].delete("/v1/projects/zoo/members/max").status_code == 204, "members leave"


def test_a_private_project_with_jobs_is_not_deleted(users: Mapping[str, Any]) -> None:
    job = submit(users["max"])["id"]
    assert users["max"].delete("/v1/projects/zoo").status_code == 403
    assert code_of(users["mona"].delete("/v1/projects/zoo")) == (409, "project_in_use")
    assert users["mona"].patch("/v1/projects/zoo", json={"visibility": "open"}).status_code == 200
    assert users["otto"].get(f"/v1/jobs/{job}").status_code == 200
    assert users["otto"].post(f"/v1/jobs/{job}/cancel").status_code == 403
    assert users["mona"].delete("/v1/projects/zoo").status_code == 204
    assert submit(users["otto"], "zoo")["project"] == "zoo", "a label again"


def test_a_program_names_no_created_project(users: Mapping[str, Any], world: World) -> None:
    outside, inside = submit(users["otto"], None)["id"], submit(users["max"])["id"]
    world.tick()
    for job in (outside, inside):
        worker = world.worker(job)
        worker.execution = worker.claim().json()["execution"]
        for name in ("ZOO", "elsewhere"):
            body = {"execution": 1, "parameters": {}, "tags": {"project": name, "run": "x"}}
            assert worker.post("parameters", body).status_code < 300
    assert users["max"].get(f"/v1/jobs/{inside}").json()["project"] == "zoo"
    assert users["otto"].get(f"/v1/jobs/{outside}").json()["project"] in (None, "elsewhere")


def test_project_tokens_are_worth_nothing_elsewhere(users: Mapping[str, Any], world: World) -> None:
    inside, elsewhere = submit(users["max"])["id"], submit(users["max"], None)["id"]
    body = {"name": "max", "role": "user", "project": "ZOO"}
    made = users["admin"].post("/v1/tokens", json=body).json()
    assert made["project"] == "zoo"
    token = world.new_client(made["token"])
    assert [job["id"] for job in token.get("/v1/jobs").json()["data"]] == [inside]
    assert token.get(f"/v1/jobs/{elsewhere}").status_code == 404
    assert token.post(f"/v1/jobs/{elsewhere}/cancel").status_code == 404
    assert submit(token, None, 403)["error"]["code"] == "project_token"
    assert submit(token, "zoo")["project"] == "zoo"
    assert token.patch(f"/v1/jobs/{inside}", json={"project": ""}).status_code == 403
    for path in ("/v1/files", "/v1/secrets", "/v1/views", "/v1/webhooks", "/v1/models", "/v1/tokens", "/v1/audit"):
        assert token.get(path).status_code == 403, path
    for path in ("/v1/projects", "/v1/job-keys", "/v1/usage", "/v1/tokens/self", "/v1/sweeps", "/v1/templates"):
        assert token.get(path).status_code == 200, path
    assert token.post("/v1/sign-in/codes").status_code == 403
    assert token.patch("/v1/projects/zoo", json={"description": "x"}).status_code == 403
    users["admin"].post("/v1/projects", json={"name": "other"})
    assert token.get("/v1/projects/other").status_code == 404
    signed_in = token.post("/sign-in", data={"token": made["token"]}, headers={"Origin": "http://localhost"})
    assert signed_in.status_code == 401
    assert users["mona"].delete("/v1/projects/zoo/members/max").status_code == 204
    assert token.get("/v1/jobs").json()["data"] == []
    assert users["admin"].post("/v1/tokens", json={**body, "role": "admin"}).status_code == 422
    assert users["admin"].post("/v1/tokens", json={**body, "project": "none"}).status_code == 422
    submit(users["admin"])
    users["admin"].patch("/v1/projects/zoo", json={"visibility": "open"})
    assert code_of(users["admin"].delete("/v1/projects/zoo")) == (409, "project_in_use")


def test_quotas_of_a_project_hold_whoever_submits(users: Mapping[str, Any], world: World) -> None:
    quotas = {"max_gpus": 2, "max_queued": 2}
    assert users["admin"].patch("/v1/projects/zoo", json=quotas).status_code == 200
    large = users["max"].post("/v1/jobs", json={**SPEC, "project": "zoo", "gpus": 4, "strategy": "ddp"})
    assert "the quota of 2 GPUs of the project 'zoo'" in large.text
    jobs = [submit(users["max"])["id"], submit(users["mona"])["id"]]
    assert "the project 'zoo' has 2 queued jobs; its quota is 2" in submit(users["max"], "zoo", 409)["error"]["message"]
    grid = users["max"].post("/v1/sweeps", json={"spec": {**SPEC, "project": "zoo"}, "grid": GRID})
    assert code_of(grid) == (409, "too_many_queued")
    label = submit(users["max"], "label")["id"]
    moved = users["max"].patch(f"/v1/jobs/{label}", json={"project": "zoo"})
    assert code_of(moved) == (409, "job_not_finished")
    assert code_of(users["max"].patch(f"/v1/jobs/{jobs[0]}", json={"project": ""})) == (409, "job_not_finished")
    world.tick()
    third = submit(users["mona"])["id"]
    world.tick()
    usage = users["vic"].get("/v1/projects/zoo/usage").json()
    assert (usage["gpus"], usage["jobs"], usage["queued"]) == (2, 3, 2)
    assert "the project zoo uses 2 of 2 GPUs, and this job needs 2" in world.job(jobs[1])["status_message"]
    assert "older jobs of the project zoo are ahead" in world.job(third)["status_message"]


def test_jobs_that_a_user_does_not_see_count_towards_the_users_quota(users: Mapping[str, Any], world: World) -> None:
    world.settings.max_queued_per_user = world.app_state.settings.max_queued_per_user = 2
    submit(users["max"], None)
    made = users["admin"].post("/v1/tokens", json={"name": "max", "role": "user", "project": "zoo"}).json()
    token = world.new_client(made["token"])
    submit(token)
    assert submit(token, "zoo", 409)["error"]["code"] == "too_many_queued"
    users["mona"].delete("/v1/projects/zoo/members/max")
    assert submit(users["max"], None, 409)["error"]["code"] == "too_many_queued"


def test_jobs_belong_to_a_project_of_their_user_by_default_if_it_is_set(users: Mapping[str, Any], world: World) -> None:
    assert submit(users["max"], None)["project"] is None
    world.settings.default_project = world.app_state.settings.default_project = "user"
    assert submit(users["max"], None)["project"] == "max"
    assert submit(users["max"], "zoo")["project"] == "zoo"
    sweep = users["max"].post("/v1/sweeps", json={"spec": SPEC, "grid": GRID}).json()
    assert sweep["project"] == "max"


def test_a_webhook_for_all_jobs_learns_of_no_hidden_job(users: Mapping[str, Any], world: World) -> None:
    from service.plugins.webhooks.part import part_of

    part_of(world.app_state).resolver = lambda host, port, owner: ["93.184.216.34"]
    hooks = {}
    for name in ("otto", "vic", "admin"):
        body = {"url": "https://example.org/hook", "jobs": "all"}
        hooks[name] = users[name].post("/v1/webhooks", json=body).json()["id"]
    job = submit(users["max"])["id"]
    for name, count in (("otto", 0), ("vic", 1), ("admin", 1)):
        sent = users[name].get(f"/v1/webhooks/{hooks[name]}/deliveries").json()["data"]
        assert len([one for one in sent if one["job_id"] == job]) == count, name


def test_changes_of_projects_are_in_the_audit_log(users: Mapping[str, Any]) -> None:
    entries = users["admin"].get("/v1/audit?limit=200").json()["data"]
    done = {(one["action"], one["target"]) for one in entries}
    assert {("create_project", "zoo"), ("set_project_member", "zoo/max")} <= done


def test_an_upgrade_hides_no_job(world: World) -> None:
    jobs = [world.submit(name=name, project=name) for name in ("one", "two")]
    listed = world.new_user("viewer", "vera").get("/v1/jobs").json()["data"]
    assert {job["id"] for job in listed} == set(jobs)
    with world.database.read() as session:
        assert session.query(Job).count() == 2
    assert world.new_user("user", "otto").get("/v1/projects/one").status_code == 404
