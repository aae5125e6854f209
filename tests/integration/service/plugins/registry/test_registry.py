"""Registered models: versions of jobs, aliases that move, owners, and files that cannot be deleted under them."""

import hashlib
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from service.plugins.registry import service as registry
from tests.support.world import World
from trainyard.contract.wire.manifest import Manifest

pytestmark = pytest.mark.databases("sqlite")

NOTE = b'{"kind": "model"}'


def succeeded(world: World, **changes: Any) -> str:
    """Return a job that succeeded with an export, and checkpoints at steps 5 and 10, the first of which is the best."""
    job = world.submit(checkpoint={"every_steps": 5, "keep_last": 9}, **changes)
    worker = world.start(job)
    worker.metrics(
        [("train/loss", 10, 0.5), ("perf/mfu", 10, 0.1), ("eval/loss", 10, 0.25)],
        progress={"step": 10, "total_steps": 10},
    )
    for step, loss in ((5, 0.1), (10, 0.25)):
        worker.checkpoint(step, metrics={"eval/loss": loss})
    export = world.app_state.run_layout(job).export
    export.mkdir(parents=True)
    (export / "export.json").write_bytes(NOTE)
    worker.end("completed")
    world.tick()
    return job


def cancelled(world: World) -> str:
    """Return a cancelled job with a checkpoint at step 5 and no export."""
    job = world.submit()
    worker = world.start(job)
    worker.checkpoint(5, metrics={"eval/loss": 1})
    world.client.post(f"/v1/jobs/{job}/cancel")
    worker.end("user_cancelled")
    world.tick()
    assert world.status(job) == "cancelled"
    return job


def register(client: Any, name: str, job: str, **fields: Any) -> Any:
    return client.post(f"/v1/models/{name}/versions", json={"job_id": job, **fields})


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


class TestVersions:
    @pytest.mark.databases("sqlite", "postgres")
    def test_export_and_checkpoints_are_versions_with_their_lineage(self, world: World) -> None:
        job = succeeded(world, name="parity", seed=3)
        whole = register(world.client, "digits", job, description="for tests").json()
        assert (whole["version"], whole["job_id"], whole["job_name"], whole["checkpoint_id"]) == (
            1,
            job,
            "parity",
            None,
        )
        assert whole["digest"] == f"sha256:{hashlib.sha256(NOTE).hexdigest()}"
        assert (whole["step"], whole["metrics"]) == (10, {"eval/loss": 0.25, "train/loss": 0.5})
        assert whole["data"]["name"] == "parity"
        best = register(world.client, "digits", job, checkpoint="best").json()
        newest = register(world.client, "digits", job, checkpoint=10).json()
        assert [(v["version"], v["step"], v["metrics"]["eval/loss"]) for v in (best, newest)] == [
            (2, 5, 0.1),
            (3, 10, 0.25),
        ]
        detail = world.client.get("/v1/models/digits").json()
        assert [version["version"] for version in detail["versions"]] == [3, 2, 1]
        assert (detail["latest_version"], detail["description"], detail["created_by"]) == (3, "for tests", "admin")

    def test_repeated_registration_keeps_the_version_and_moves_aliases(self, world: World) -> None:
        job = succeeded(world)
        assert register(world.client, "m", job).json()["version"] == 1
        assert register(world.client, "m", job, checkpoint="latest").json()["version"] == 2
        repeated = register(world.client, "m", job, aliases=["prod"])
        assert (repeated.status_code, repeated.json()["version"], repeated.json()["aliases"]) == (201, 1, ["prod"])

    def test_fork_names_the_checkpoint_from_which_it_started(self, world: World) -> None:
        source = succeeded(world)
        spec = world.client.get(f"/v1/jobs/{source}").json()["spec"]
        fork = {**spec, "resume_from": f"{source}:10", "resume": "weights", "name": "fork"}
        checkpoint = world.app_state.run_layout(source).checkpoint(10)
        checkpoint.root.mkdir(parents=True, exist_ok=True)
        (checkpoint.root / "weights").write_bytes(b"w")
        checkpoint.manifest.write_text("{}")
        job = world.client.post("/v1/jobs", json=fork)
        assert job.status_code == 201, job.text
        worker = world.start(job.json()["id"])
        worker.checkpoint(5)
        worker.end("completed")
        world.tick()
        version = register(world.client, "m", job.json()["id"], checkpoint=5).json()
        assert version["parent"] == {"job_id": source, "step": 10}

    def test_job_without_such_a_model_is_refused(self, world: World) -> None:
        running, ended = world.submit(), cancelled(world)
        world.start(running).checkpoint(5)
        assert code(register(world.client, "m", running)) == (409, "no_export")
        assert code(register(world.client, "m", running, checkpoint="latest")) == (409, "job_not_finished")
        assert code(register(world.client, "m", ended)) == (409, "no_export")
        assert code(register(world.client, "m", ended, checkpoint=7)) == (404, "checkpoint_not_found")
        assert code(register(world.client, "m", "job_01kdvdna00az9cxjnszk8v8abh")) == (404, "job_not_found")
        check = world.client.post("/v1/jobs", json={"task": "comm_check", "gpus": 2})
        assert code(register(world.client, "m", check.json()["id"])) == (409, "no_model")
        assert code(world.client.get("/v1/models/m")) == (404, "model_not_found")

    def test_checkpoint_without_the_names_of_its_classes_is_refused(self, world: World) -> None:
        folder = str(world.settings.runs / "base-model")
        data = {"source": "images", "path": folder}
        task = {"task": "image_classification", "model": {"source": "hf", "path": folder}, "data": data}
        job = succeeded(world, **task)
        refused = register(world.client, "m", job, checkpoint="latest")
        assert code(refused) == (409, "no_model")
        assert f"register the export of job {job}" in refused.json()["error"]["message"]
        about = {"job_id": job, "step": 10, "execution": 1, "attempt": 1, "world_size": 1, "strategy": "ddp"}
        manifest = Manifest(**about, files={}, classes=("wren",), created_at=datetime.now(UTC))
        assert register(world.client, "m", job).status_code == 201
        checkpoint = world.app_state.run_layout(job).checkpoint(10)
        checkpoint.root.mkdir(parents=True, exist_ok=True)
        checkpoint.manifest.write_text(manifest.model_dump_json(exclude={"classes"}))
        assert code(register(world.client, "m", job, checkpoint="latest")) == (409, "no_model")
        checkpoint.manifest.write_text(manifest.model_dump_json())
        assert register(world.client, "m", job, checkpoint="latest").status_code == 201

    @pytest.mark.parametrize("name", ["-x", "a b", "x" * 101, "ü", ".."])
    def test_names_that_no_url_or_shell_needs_to_quote(self, world: World, name: str) -> None:
        assert code(register(world.client, name, world.submit())) in (
            (404, "model_not_found"),
            (404, "route_not_found"),
        )

    @pytest.mark.parametrize(
        "body",
        [{"aliases": ["Prod"]}, {"aliases": ["3"]}, {"aliases": ["latest"]}, {"checkpoint": "newest"}, {"step": 3}, {}],
    )
    def test_invalid_bodies(self, world: World, body: dict[str, Any]) -> None:
        job = succeeded(world)
        answer = world.client.post("/v1/models/m/versions", json={"job_id": job, **body} if body else {})
        assert answer.status_code == 422, answer.text

    def test_limits(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        job = succeeded(world)
        monkeypatch.setattr(registry, "MAX_VERSIONS", 1)
        monkeypatch.setattr(registry, "MAX_MODELS", 1)
        monkeypatch.setattr(registry, "MAX_ALIASES", 1)
        assert register(world.client, "m", job, aliases=["prod"]).status_code == 201
        assert code(register(world.client, "m", job, checkpoint=5)) == (409, "too_many_versions")
        assert code(register(world.client, "n", job)) == (409, "too_many_models")
        alias = world.client.put("/v1/models/m/aliases/beta", json={"version": 1})
        assert code(alias) == (409, "too_many_aliases")

    @pytest.mark.databases("postgres")
    def test_versions_that_are_registered_at_once_have_different_numbers(self, world: World) -> None:
        jobs = [succeeded(world) for _ in range(4)]
        answers: list[Any] = []
        threads = [
            threading.Thread(target=lambda job=job: answers.append(register(world.client, "m", job))) for job in jobs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answer.json()["version"] for answer in answers) == [1, 2, 3, 4]


class TestAliases:
    def test_alias_names_one_version_and_moves(self, world: World) -> None:
        job = succeeded(world)
        register(world.client, "m", job, aliases=["prod", "beta"])
        register(world.client, "m", job, checkpoint=5)
        moved = world.client.put("/v1/models/m/aliases/prod", json={"version": 2}).json()
        assert moved["aliases"] == {"prod": 2, "beta": 1}
        assert [version["aliases"] for version in moved["versions"]] == [["prod"], ["beta"]]
        assert world.client.delete("/v1/models/m/aliases/beta").status_code == 204
        assert code(world.client.delete("/v1/models/m/aliases/beta")) == (404, "alias_not_found")
        assert code(world.client.put("/v1/models/m/aliases/prod", json={"version": 3})) == (
            404,
            "model_version_not_found",
        )
        assert code(world.client.put("/v1/models/m/aliases/latest", json={"version": 1})) == (422, "reserved_alias")

    @pytest.mark.databases("sqlite", "postgres")
    def test_list_has_newest_version_and_aliases_in_pages(self, world: World) -> None:
        job = succeeded(world)
        for name in ("c", "a", "b"):
            register(world.client, name, job, aliases=["prod"])
        first = world.client.get("/v1/models?limit=2").json()
        assert ([one["name"] for one in first["data"]], first["has_more"]) == (["a", "b"], True)
        second = world.client.get(f"/v1/models?limit=2&after={first['last_id']}").json()
        assert [(one["name"], one["latest_version"], one["aliases"]) for one in second["data"]] == [
            ("c", 1, {"prod": 1})
        ]


class TestDeletion:
    @pytest.mark.databases("sqlite", "postgres")
    def test_numbers_of_deleted_versions_are_not_given_again(self, world: World) -> None:
        job = succeeded(world)
        register(world.client, "m", job)
        assert world.client.delete("/v1/models/m/versions/1").status_code == 204
        assert world.client.get("/v1/models/m").json()["latest_version"] is None
        assert register(world.client, "m", job).json()["version"] == 2

    def test_version_with_an_alias_stays(self, world: World) -> None:
        job = succeeded(world)
        register(world.client, "m", job, aliases=["prod"])
        answer = world.client.delete("/v1/models/m/versions/1")
        assert code(answer) == (409, "model_version_in_use")
        message = answer.json()["error"]["message"]
        assert "is prod; move the alias (`trainyard models alias m ALIAS VERSION`) or delete it" in message
        assert world.client.delete("/v1/models/m").status_code == 204
        assert code(world.client.get("/v1/models/m")) == (404, "model_not_found")

    def test_job_of_a_version_stays_until_the_version_is_deleted(self, world: World) -> None:
        job = succeeded(world)
        register(world.client, "m", job)
        answer = world.client.delete(f"/v1/jobs/{job}")
        assert code(answer) == (409, "job_registered")
        assert "m@1; delete those versions first" in answer.json()["error"]["message"]
        assert world.client.delete(f"/v1/jobs/{job}?only=checkpoints").status_code == 204
        world.client.delete("/v1/models/m")
        assert world.client.delete(f"/v1/jobs/{job}").status_code == 204
        world.run_maintenance()
        assert not world.app_state.run_layout(job).root.exists()

    def test_checkpoint_of_a_version_stays_and_its_job_is_not_retried(self, world: World) -> None:
        job = cancelled(world)
        register(world.client, "m", job, checkpoint=5)
        (checkpoint,) = world.client.get(f"/v1/jobs/{job}/checkpoints").json()["data"]
        assert code(world.client.delete(f"/v1/jobs/{job}/checkpoints/{checkpoint['id']}")) == (409, "job_registered")
        assert code(world.client.delete(f"/v1/jobs/{job}?only=checkpoints")) == (409, "job_registered")
        retry = world.client.post(f"/v1/jobs/{job}/retry", json={})
        assert code(retry) == (409, "job_registered")
        assert "fork it instead" in retry.json()["error"]["message"]
        world.client.delete("/v1/models/m/versions/1")
        assert world.client.post(f"/v1/jobs/{job}/retry", json={}).status_code == 202


class TestOwners:
    @pytest.mark.databases("sqlite", "postgres")
    def test_models_belong_to_who_registered_them_first(self, world: World) -> None:
        anna, bert = world.new_user("user", "anna"), world.new_user("user", "bert")
        job = succeeded(world)
        with world.database.write() as session:
            from service.db.models import Job

            session.query(Job).update({"created_by": "anna"})
        assert code(register(bert, "m", job)) == (403, "forbidden")
        assert register(anna, "m", job).status_code == 201
        assert bert.get("/v1/models/m").json()["created_by"] == "anna"
        for answer in (
            bert.put("/v1/models/m/aliases/prod", json={"version": 1}),
            bert.delete("/v1/models/m/versions/1"),
            bert.delete("/v1/models/m"),
        ):
            assert code(answer) == (403, "forbidden")
        assert world.client.put("/v1/models/m/aliases/prod", json={"version": 1}).status_code == 200

    def test_hidden_model_takes_its_name_without_saying_whose_it_is(self, world: World) -> None:
        register(world.client, "m", succeeded(world))
        anna, job = world.new_user("user", "anna"), succeeded(world)
        with world.database.write() as session:
            from service.db.models import Job

            session.query(Job).filter(Job.id == job).update({"created_by": "anna"})
        world.settings.run_as = world.app_state.settings.run_as = "owner"
        answer = register(anna, "m", job)
        assert code(answer) == (409, "model_name_taken")
        assert "admin" not in answer.text
        assert code(anna.get("/v1/models/m")) == (404, "model_not_found")
        assert anna.get("/v1/models").json()["data"] == []

    @pytest.mark.databases("sqlite", "postgres")
    def test_changes_are_audited(self, world: World) -> None:
        job = succeeded(world)
        register(world.client, "m", job)
        world.client.put("/v1/models/m/aliases/prod", json={"version": 1})
        world.client.delete("/v1/models/m")
        entries = world.client.get("/v1/audit?limit=3").json()["data"]
        assert {(entry["action"], entry["target"]) for entry in entries} == {
            ("register_model_version", "m"),
            ("set_model_alias", "m/prod"),
            ("delete_model", "m"),
        }
