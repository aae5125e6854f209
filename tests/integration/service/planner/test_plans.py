"""Plans: what a spec will need, said without anything being stored; and jobs that cannot fit are not submitted."""

import json
import time

import pytest

from service.planner.model_reader import Models
from tests.integration.service.cluster.test_cluster import on_slurm
from tests.support.hf import save_llama
from tests.support.world import SPEC, World
from trainyard.contract.wire.cluster import ClusterSnapshot, NodeShape, PartitionResource
from trainyard.contract.wire.plans import PlanResource

pytestmark = pytest.mark.databases("sqlite")

LARGE = {"source": "builtin", "name": "gpt", "layers": 24, "width": 2048, "heads": 16, "context": 1024, "vocab": 32000}
TOO_LARGE = {
    "task": "causal_lm",
    "strategy": "single",
    "gpus": 1,
    "model": LARGE,
    "data": {"source": "builtin", "name": "stdlib"},
    "batch": {"size": 8, "micro_size": 1},
    "steps": 10,
}


def gpus(world: World, name: str = "t4", count: int = 4) -> None:
    world.settings.accelerator = "cuda"
    shape = NodeShape(nodes=2, gpus={name: count})
    partition = PartitionResource(name="gpu", default=True, nodes={"idle": 2}, shapes=[shape])
    on_slurm(world, ClusterSnapshot(partitions=[partition]))
    world.tick()


def plan(world: World, document: dict) -> PlanResource:
    answer = world.client.post("/v1/plans", json=document)
    assert answer.status_code == 200, answer.text
    return PlanResource.model_validate(answer.json())


class TestPlans:
    @pytest.mark.parametrize(("gpus", "offered"), [(2, False), (3, False), (4, True)])
    def test_two_replicas_on_one_node_where_each_has_several_ranks(
        self, world: World, gpus: int, offered: bool
    ) -> None:
        found = {one.strategy: one for one in plan(world, {**SPEC, "strategy": "ddp", "gpus": gpus}).strategies}
        assert ("hsdp" in found) is offered
        if offered:
            assert found["ddp"].state_bytes > found["hsdp"].state_bytes > found["fsdp"].state_bytes

    def test_a_program_of_its_own_takes_no_strategy(self, world: World) -> None:
        found = plan(world, {"task": "comm_check", "gpus": 2})
        assert (found.model, found.why) == (
            None,
            "a `comm_check` job runs its own program, which no strategy is applied to",
        )

    def test_every_strategy_with_its_parts(self, world: World) -> None:
        gpus(world)
        found = plan(world, {**TOO_LARGE, "strategy": "ddp", "gpus": 4})
        assert [one.strategy for one in found.strategies] == ["dp", "ddp", "zero1", "zero2", "fsdp", "hsdp"]
        assert [one.chosen for one in found.strategies] == [False, True, False, False, False, False]
        assert [one.fits for one in found.strategies] == [False, False, False, True, True, True]
        for one in found.strategies:
            assert one.parts is not None
            assert sum(one.parts.model_dump().values()) == one.peak_bytes
        assert found.model is not None
        assert found.model.parameters == found.model.trained == 1276088320
        assert found.fits is False
        assert found.verdict.startswith("does not fit: needs about 28.4 GiB of 16 GiB per GPU: ")
        assert found.changes[0].set == {"strategy": "fsdp"}
        assert found.disk is not None
        assert found.disk.checkpoint_bytes == pytest.approx(12 * found.model.parameters, rel=1e-3)
        assert (found.disk.checkpoint_bytes > 12 * found.model.parameters, found.disk.checkpoints) == (True, 2)
        assert found.gpus[0].type == "t4"

    def test_nothing_is_stored_and_nothing_is_asked(self, world: World) -> None:
        plan(world, SPEC)
        world.tick()
        assert world.client.get("/v1/jobs").json()["data"] == []
        assert (world.scheduler.submitted, list(world.settings.runs.iterdir())) == ([], [])

    def test_the_script_is_the_one_that_is_submitted(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
        found = plan(world, SPEC)
        job = world.submit()
        world.tick()
        submitted = world.client.get(f"/v1/jobs/{job}/script").json()["script"]
        attempt = world.job(job)["attempt"]["id"]
        assert found.script is not None
        assert found.script.replace("ATTEMPT-ID", attempt).replace("JOB-ID", job) == submitted

    def test_a_batch_script_of_slurm(self, world: World) -> None:
        gpus(world)
        script = plan(world, {**TOO_LARGE, "gpus": 8, "strategy": "fsdp", "resources": {"gpus_per_node": 4}}).script
        assert script is not None
        assert "#SBATCH --nodes=2" in script
        assert world.token not in script

    def test_yaml(self, world: World) -> None:
        answer = world.client.post("/v1/plans", content=json.dumps(SPEC), headers={"Content-Type": "application/yaml"})
        assert answer.status_code == 200

    def test_a_bad_spec_is_refused_as_a_job_would_be(self, world: World) -> None:
        bad = {**SPEC, "gpus": 0, "colour": "red"}
        plans, jobs = (world.client.post(path, json=bad) for path in ("/v1/plans", "/v1/jobs"))
        assert (plans.status_code, plans.json()) == (422, jobs.json())

    def test_it_takes_a_token(self, world: World) -> None:
        assert world.new_client(None).post("/v1/plans", json=SPEC).status_code == 401

    def test_a_viewer_may_ask(self, world: World) -> None:
        assert world.new_user("viewer", "ann").post("/v1/plans", json=SPEC).status_code == 200

    def test_a_gpu_that_is_not_known(self, world: World) -> None:
        gpus(world, "gpu9000")
        found = plan(world, TOO_LARGE)
        assert found.fits is None
        assert found.verdict.endswith("the memory of gpu9000 is not known (TRAINYARD_GPU_MEMORY_GB)")
        world.settings.gpu_memory_gb = "gpu9000=8"
        assert plan(world, TOO_LARGE).fits is False

    def test_a_custom_task_is_unknown(self, world: World) -> None:
        found = plan(world, {"task": "script", "argv": ["/usr/bin/true"]})
        assert (found.model, found.strategies, found.fits) == (None, [], None)
        assert found.unknown == "task `script` runs its own program; nothing is known of its memory"


class TestThisMachine:
    def test_a_model_larger_than_it_is_told_and_refused(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("service.planner.service.machine_bytes", lambda: 16 * 2**30)
        document = {**TOO_LARGE, "gpus": 2, "strategy": "ddp"}
        found = plan(world, document)
        assert (found.accelerator, found.fits, [gpu.type for gpu in found.gpus]) == (
            "cpu",
            False,
            ["this machine's memory"],
        )
        assert found.verdict.startswith("does not fit: needs about 27.2 GiB of 8 GiB per rank (this machine's memory)")
        assert found.warnings[-1].endswith("are more than this machine's memory: submitted, it is refused")
        job, forced = world.submit(**document), world.client.post("/v1/jobs?force=true", json=document).json()["id"]
        world.tick()
        assert (world.job(job)["status"], world.job(job)["status_reason"]) == ("failed", "rejected")
        assert world.status(forced) == "pending"

    def test_a_model_that_fits_runs(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("service.planner.service.machine_bytes", lambda: 80 * 2**30)
        assert plan(world, {**TOO_LARGE, "gpus": 2, "strategy": "ddp"}).fits
        job = world.submit(**TOO_LARGE)
        world.tick()
        assert world.status(job) == "pending"

    def test_the_nodes_of_a_cluster_are_not_this_machine(self, world: World) -> None:
        world.settings.backend = "slurm"
        found = plan(world, TOO_LARGE)
        assert (found.fits, found.gpus) == (None, [])
        assert found.verdict.endswith("it is the host's memory, since the workers have no GPUs")


class TestFolders:
    def spec(self, folder: object, **changes: object) -> dict:
        data = {"source": "jsonl", "path": f"{folder}/x.jsonl", "max_length": 33}
        return {**TOO_LARGE, "model": {"source": "hf", "path": str(folder)}, "data": data, **changes}

    def test_a_folder_is_counted_from_its_headers(self, world: World) -> None:
        folder = save_llama(world.settings.runs / "llama", tied=True)
        found = plan(world, self.spec(folder, lora_rank=4))
        assert found.model is not None
        assert found.model.trained == 2 * 4 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 128))
        assert found.strategies[0].peak_bytes is not None

    def test_a_folder_that_is_broken_is_unknown_with_the_reason(self, world: World) -> None:
        folder = save_llama(world.settings.runs / "llama")
        (folder / "config.json").write_text("{")
        found = plan(world, self.spec(folder))
        assert (found.unknown, found.model) == ("model.path: config.json is not valid JSON", None)

    def test_a_folder_outside_of_the_roots(self, world: World) -> None:
        answer = world.client.post("/v1/plans", json=self.spec("/etc"))
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "model.path")

    def test_a_filesystem_that_hangs_costs_its_time_limit(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        world.services.models = Models(seconds=0.05)
        monkeypatch.setattr("service.planner.model_reader.read_folder", lambda *_: time.sleep(0.5))
        found = plan(world, self.spec(world.settings.runs))
        assert found.unknown == f"model.path: {world.settings.runs} was not read within 0.05 s"


class TestAutomatic:
    def test_what_fits_is_taken_and_stored(self, world: World) -> None:
        gpus(world)
        document = {**TOO_LARGE, "strategy": "auto", "gpus": 4}
        found = plan(world, document)
        assert (found.strategy, found.fits) == ("zero2", True)
        assert found.why == "`auto` takes zero2: ddp needs 28.4 GiB a GPU, zero2 9.02 GiB"
        job = world.submit(**document)
        assert world.job(job)["spec"]["strategy"] == "zero2"

    @pytest.mark.databases("sqlite", "postgres")
    def test_a_key_stands_for_the_spec_whatever_the_cluster_has_become(self, world: World) -> None:
        document, key = {**TOO_LARGE, "strategy": "auto", "gpus": 4}, {"Idempotency-Key": "one"}
        gpus(world)
        first = world.client.post("/v1/jobs", json=document, headers=key)
        world.settings.gpu_memory_gb = "t4=80"
        again = world.client.post("/v1/jobs", json=document, headers=key)
        assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])

    def test_without_gpus_it_is_ddp(self, world: World) -> None:
        assert plan(world, {**SPEC, "strategy": "auto", "gpus": 2}).strategy == "ddp"


class TestRefusals:
    def test_what_the_cluster_can_never_give_is_in_the_plan_already(self, world: World) -> None:
        gpus(world)
        document = {**SPEC, "resources": {"partition": "cpu"}}
        warnings = plan(world, document).warnings
        job = world.submit(**document)
        world.tick()
        told = world.job(job)["status_message"]
        assert (world.status(job), f"{told}: submitted, it is refused" in warnings) == ("failed", True), warnings
        assert plan(world, {**SPEC, "resources": {"partition": "gpu"}}).warnings[-1:] != [
            f"{told}: submitted, it is refused"
        ]
        world.settings.slurm_preflight = False
        assert not any("it is refused" in one for one in plan(world, document).warnings)

    def test_what_can_never_fit_is_not_submitted(self, world: World) -> None:
        gpus(world)
        job = world.submit(**TOO_LARGE)
        world.tick()
        shown = world.job(job)
        assert (shown["status"], shown["status_reason"], world.scheduler.submitted) == ("failed", "rejected", [])
        assert "--force" in shown["error"]["hint"]
        assert shown["status_message"].startswith("strategy: needs about 23.6 GiB of 16 GiB per GPU: optimizer 9.51")
        assert "would fit" in shown["status_message"]

    def test_force_submits_it_and_says_who(self, world: World) -> None:
        gpus(world)
        answer = world.client.post("/v1/jobs?force=true", json=TOO_LARGE)
        job = answer.json()["id"]
        world.tick()
        assert world.status(job) == "pending"
        events = world.client.get(f"/v1/jobs/{job}/events").json()["data"]
        assert [event["level"] for event in events if event["type"] == "preflight_overridden"] == ["warning"]

    def test_a_forced_job_is_another_one_than_the_unforced(self, world: World) -> None:
        key = {"Idempotency-Key": "one"}
        assert world.client.post("/v1/jobs", json=SPEC, headers=key).status_code == 201
        assert world.client.post("/v1/jobs?force=true", json=SPEC, headers=key).status_code == 409

    @pytest.mark.parametrize("setting", ["unknown", "off"])
    def test_without_knowledge_or_wish_nothing_is_refused(self, world: World, setting: str) -> None:
        gpus(world, "gpu9000" if setting == "unknown" else "t4")
        world.settings.slurm_preflight = setting != "off"
        job = world.submit(**TOO_LARGE)
        world.tick()
        assert world.status(job) == "pending"
