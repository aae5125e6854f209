"""Plans store nothing, and jobs that cannot fit are not submitted."""

import json
import threading
import time

import pytest

from service.plugins.planner.hf_folder import FolderContents, read_folder
from service.plugins.planner.model_reader import ModelReader
from service.plugins.planner.part import part_of
from service.specs.acceptance import MSG_FP8_WITHOUT_COMPILE, MSG_FP16_ON_CPU
from tests.integration.service.cluster.test_cluster import on_slurm
from tests.support.hf import save_llama
from tests.support.images import save_vit
from tests.support.world import SPEC, World
from trainyard.contract.allowed_roots import AllowedRoots
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


@pytest.mark.cpu_seconds(5)
def test_images_are_planned_and_submitted(world: World) -> None:
    folder = save_vit(world.settings.runs / "vit")
    data = {"source": "images", "path": str(folder), "eval_fraction": 0.1, "crop": 0.5}
    model = {"source": "hf", "path": str(folder)}
    document = {"task": "image_classification", "model": model, "data": data, "steps": 10}
    planned = plan(world, document)
    assert planned.unknown is None
    assert planned.model is not None
    assert planned.strategies[0].parts is not None
    assert planned.strategies[0].parts.activations > 0
    answer = world.client.post("/v1/jobs", json=document)
    assert (answer.status_code, answer.json()["spec"]["data"]["crop"]) == (201, 0.5)
    refused = world.client.post("/v1/jobs", json={**document, "data": data | {"path": "/etc"}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "data.path")


def test_plan_of_texts_states_that_shorter_ones_need_less(world: World) -> None:
    folder = save_llama(world.settings.runs / "llama")
    data = {"source": "jsonl", "path": str(folder), "max_length": 32}
    document = {"task": "text_embedding", "model": {"source": "hf", "path": str(folder)}, "data": data, "steps": 10}
    planned = plan(world, document)
    assert planned.strategies[0].peak_bytes is not None
    assert any("each text is counted" in warning for warning in planned.warnings)


class TestPlans:
    @pytest.mark.parametrize(("gpus", "offered"), [(2, False), (3, False), (4, True)])
    def test_hsdp_on_one_node_needs_several_ranks_per_replica(self, world: World, gpus: int, offered: bool) -> None:
        result = {one.strategy: one for one in plan(world, {**SPEC, "strategy": "ddp", "gpus": gpus}).strategies}
        assert ("hsdp" in result) is offered
        if offered:
            assert result["ddp"].state_bytes > result["hsdp"].state_bytes > result["fsdp"].state_bytes

    def test_task_with_its_own_program_has_no_strategy(self, world: World) -> None:
        result = plan(world, {"task": "comm_check", "gpus": 2})
        assert (result.model, result.strategy_reason) == (
            None,
            "a `comm_check` job runs its own program, to which no strategy applies",
        )

    def test_each_strategy_is_estimated_by_part(self, world: World) -> None:
        gpus(world)
        result = plan(world, {**TOO_LARGE, "strategy": "ddp", "gpus": 4})
        assert [one.strategy for one in result.strategies] == ["dp", "ddp", "zero1", "zero2", "fsdp", "hsdp"]
        assert [one.chosen for one in result.strategies] == [False, True, False, False, False, False]
        assert [one.fits for one in result.strategies] == [False, False, False, True, True, True]
        for one in result.strategies:
            assert one.parts is not None
            assert sum(one.parts.model_dump().values()) == one.peak_bytes
        assert result.model is not None
        assert result.model.parameters == result.model.trained == 1276088320
        assert result.fits is False
        assert result.summary.startswith("does not fit: needs about 28.4 GiB of 16 GiB per GPU: ")
        assert result.changes[0].set == {"strategy": "fsdp"}
        assert result.disk is not None
        assert result.disk.checkpoint_bytes == pytest.approx(12 * result.model.parameters, rel=1e-3)
        assert (result.disk.checkpoint_bytes > 12 * result.model.parameters, result.disk.checkpoints) == (True, 2)
        assert result.gpus[0].type == "t4"

    def test_plan_stores_and_submits_nothing(self, world: World) -> None:
        plan(world, SPEC)
        world.tick()
        assert world.client.get("/v1/jobs").json()["data"] == []
        assert (world.scheduler.submitted, list(world.settings.runs.iterdir())) == ([], [])

    def test_plan_script_equals_the_submitted_script(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
        result = plan(world, SPEC)
        job = world.submit()
        world.tick()
        submitted = world.client.get(f"/v1/jobs/{job}/script").json()["script"]
        attempt = world.job(job)["attempt"]["id"]
        assert result.script is not None
        assert result.script.replace("ATTEMPT-ID", attempt).replace("JOB-ID", job) == submitted

    def test_plan_contains_a_slurm_batch_script(self, world: World) -> None:
        gpus(world)
        script = plan(world, {**TOO_LARGE, "gpus": 8, "strategy": "fsdp", "resources": {"gpus_per_node": 4}}).script
        assert script is not None
        assert "#SBATCH --nodes=2" in script
        assert world.token not in script

    def test_plan_accepts_yaml(self, world: World) -> None:
        answer = world.client.post("/v1/plans", content=json.dumps(SPEC), headers={"Content-Type": "application/yaml"})
        assert answer.status_code == 200

    def test_invalid_spec_gets_the_error_of_a_submission(self, world: World) -> None:
        bad = {**SPEC, "gpus": 0, "colour": "red"}
        plans, jobs = (world.client.post(path, json=bad) for path in ("/v1/plans", "/v1/jobs"))
        assert (plans.status_code, plans.json()) == (422, jobs.json())

    def test_plan_requires_a_token(self, world: World) -> None:
        assert world.new_client(None).post("/v1/plans", json=SPEC).status_code == 401

    def test_plan_states_what_the_job_would_wait_for(self, world: World) -> None:
        job = world.submit()
        answer = world.client.post("/v1/plans", json={**SPEC, "after": [job]})
        assert answer.json()["warnings"][0] == f"Waiting for {job} to succeed, as `after` of the spec requests."
        unknown = world.client.post("/v1/plans", json={**SPEC, "after": ["job_" + "0" * 26]})
        assert "You cannot submit this spec: after.0: there is no job" in unknown.json()["warnings"][0]

    def test_viewer_can_plan(self, world: World) -> None:
        assert world.new_user("viewer", "ann").post("/v1/plans", json=SPEC).status_code == 200

    def test_unknown_gpu_memory_is_reported(self, world: World) -> None:
        gpus(world, "gpu9000")
        result = plan(world, TOO_LARGE)
        assert result.fits is None
        assert result.summary.endswith("the memory of gpu9000 is not known (TRAINYARD_GPU_MEMORY_GB)")
        world.settings.gpu_memory_gb = "gpu9000=8"
        assert plan(world, TOO_LARGE).fits is False

    def test_model_of_a_script_is_unknown(self, world: World) -> None:
        result = plan(world, {"task": "script", "argv": ["/usr/bin/true"]})
        assert (result.model, result.strategies, result.fits) == (None, [], None)
        assert result.unknown == "task `script` runs its own program, whose memory is not known"


class TestMachineMemory:
    def test_model_larger_than_the_machine_is_rejected(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("service.plugins.planner.service.machine_bytes", lambda: 16 * 2**30)
        document = {**TOO_LARGE, "gpus": 2, "strategy": "ddp"}
        result = plan(world, document)
        assert (result.accelerator, result.fits, [gpu.type for gpu in result.gpus]) == (
            "cpu",
            False,
            ["this machine's memory"],
        )
        assert result.summary.startswith("does not fit: needs about 27.2 GiB of 8 GiB per rank (this machine's memory)")
        assert result.warnings[-1].endswith("are more than this machine's memory: a job would be rejected")
        job, forced = world.submit(**document), world.client.post("/v1/jobs?force=true", json=document).json()["id"]
        world.tick()
        assert (world.job(job)["status"], world.job(job)["status_reason"]) == ("failed", "rejected")
        assert world.status(forced) == "pending"

    def test_model_that_fits_the_machine_is_submitted(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("service.plugins.planner.service.machine_bytes", lambda: 80 * 2**30)
        assert plan(world, {**TOO_LARGE, "gpus": 2, "strategy": "ddp"}).fits
        job = world.submit(**TOO_LARGE)
        world.tick()
        assert world.status(job) == "pending"

    def test_memory_of_cluster_nodes_is_unknown(self, world: World) -> None:
        world.settings.backend = "slurm"
        result = plan(world, TOO_LARGE)
        assert (result.fits, result.gpus) == (None, [])
        assert result.summary.endswith("this is host memory, because the workers have no GPUs")


class TestFolders:
    def spec(self, folder: object, **changes: object) -> dict:
        data = {"source": "jsonl", "path": f"{folder}/x.jsonl", "max_length": 33}
        return {**TOO_LARGE, "model": {"source": "hf", "path": str(folder)}, "data": data, **changes}

    def test_folder_is_counted_from_its_headers(self, world: World) -> None:
        folder = save_llama(world.settings.runs / "llama", tied=True)
        result = plan(world, self.spec(folder, lora_rank=4))
        assert result.model is not None
        assert result.model.trained == 2 * 4 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 128))
        assert result.strategies[0].peak_bytes is not None

    def test_broken_folder_is_unknown_with_the_reason(self, world: World) -> None:
        folder = save_llama(world.settings.runs / "llama")
        (folder / "config.json").write_text("{")
        result = plan(world, self.spec(folder))
        assert (result.unknown, result.model) == ("model.path: config.json is not valid JSON", None)

    def test_folder_outside_of_the_roots_is_rejected(self, world: World) -> None:
        answer = world.client.post("/v1/plans", json=self.spec("/etc"))
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "model.path")

    def test_hanging_filesystem_costs_its_time_limit(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        part_of(world.app_state).planner.models = ModelReader(seconds=0.05)
        monkeypatch.setattr("service.plugins.planner.model_reader.read_folder", lambda *_: time.sleep(0.5))
        result = plan(world, self.spec(world.settings.runs))
        assert result.unknown == f"model.path: {world.settings.runs} was not read within 0.05 s"

    def test_hanging_filesystem_of_one_user_leaves_threads_to_others(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        part_of(world.app_state).planner.models = ModelReader(seconds=0.5)
        hanging, folder, over = world.settings.runs / "hanging", world.settings.runs / "whole", threading.Event()
        save_llama(folder)

        def read(path: str, roots: AllowedRoots) -> FolderContents:
            if path.startswith(str(hanging)):
                over.wait(30)
            return read_folder(path, roots)

        monkeypatch.setattr("service.plugins.planner.model_reader.read_folder", read)
        try:
            for number in range(7):
                result = plan(world, self.spec(f"{hanging}{number}"))
            assert result.unknown == "model.path: too many folders are being read; try again in a few seconds"
            answer = world.new_user("user", "bert").post("/v1/plans", json=self.spec(folder))
            assert answer.json()["unknown"] is None
        finally:
            over.set()


class TestAutomatic:
    def test_auto_strategy_that_fits_is_stored(self, world: World) -> None:
        gpus(world)
        document = {**TOO_LARGE, "strategy": "auto", "gpus": 4}
        result = plan(world, document)
        assert (result.strategy, result.fits) == ("zero2", True)
        assert result.strategy_reason == "`auto` selects zero2: ddp needs 28.4 GiB per GPU, zero2 9.02 GiB"
        job = world.submit(**document)
        assert world.job(job)["spec"]["strategy"] == "zero2"

    @pytest.mark.databases("sqlite", "postgres")
    def test_idempotency_key_ignores_cluster_changes(self, world: World) -> None:
        document, key = {**TOO_LARGE, "strategy": "auto", "gpus": 4}, {"Idempotency-Key": "one"}
        gpus(world)
        first = world.client.post("/v1/jobs", json=document, headers=key)
        world.settings.gpu_memory_gb = "t4=80"
        again = world.client.post("/v1/jobs", json=document, headers=key)
        assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])

    def test_auto_is_ddp_without_gpus(self, world: World) -> None:
        assert plan(world, {**SPEC, "strategy": "auto", "gpus": 2}).strategy == "ddp"


class TestRefusals:
    def test_plan_warns_of_unavailable_resources(self, world: World) -> None:
        gpus(world)
        document = {**SPEC, "resources": {"partition": "cpu"}}
        warnings = plan(world, document).warnings
        job = world.submit(**document)
        world.tick()
        messages = world.job(job)["status_message"]
        assert (world.status(job), f"{messages}: a job would be rejected" in warnings) == ("failed", True), warnings
        assert plan(world, {**SPEC, "resources": {"partition": "gpu"}}).warnings[-1:] != [
            f"{messages}: a job would be rejected"
        ]
        world.settings.slurm_preflight = False
        assert not any("would be rejected" in one for one in plan(world, document).warnings)

    def test_job_that_cannot_fit_is_rejected(self, world: World) -> None:
        gpus(world)
        job = world.submit(**TOO_LARGE)
        world.tick()
        shown = world.job(job)
        assert (shown["status"], shown["status_reason"], world.scheduler.submitted) == ("failed", "rejected", [])
        assert "--force" in shown["error"]["hint"]
        assert shown["status_message"].startswith(
            "strategy: needs about 23.6 GiB of 16 GiB per GPU: optimizer 9.51 GiB"
        )
        assert "would fit" in shown["status_message"]

    def test_force_submits_and_records_an_event(self, world: World) -> None:
        gpus(world)
        answer = world.client.post("/v1/jobs?force=true", json=TOO_LARGE)
        job = answer.json()["id"]
        world.tick()
        assert world.status(job) == "pending"
        events = world.client.get(f"/v1/jobs/{job}/events").json()["data"]
        assert [event["level"] for event in events if event["type"] == "preflight_overridden"] == ["warning"]

    def test_fp16_on_cpus_has_a_warning(self, world: World) -> None:
        assert MSG_FP16_ON_CPU in plan(world, {**SPEC, "precision": "fp16"}).warnings
        assert MSG_FP16_ON_CPU not in plan(world, SPEC).warnings
        events = world.client.get(f"/v1/jobs/{world.submit(precision='fp16')}/events").json()["data"]
        assert [event["message"] for event in events if event["type"] == "spec_warning"] == [MSG_FP16_ON_CPU]

    def test_fp8_without_compile_has_a_warning(self, world: World) -> None:
        gpus(world, "h100")
        document = {**SPEC, "precision": "fp8"}
        assert MSG_FP8_WITHOUT_COMPILE in plan(world, document).warnings
        assert MSG_FP8_WITHOUT_COMPILE not in plan(world, {**document, "compile": True}).warnings

    def test_idempotency_key_distinguishes_forced_jobs(self, world: World) -> None:
        key = {"Idempotency-Key": "one"}
        assert world.client.post("/v1/jobs", json=SPEC, headers=key).status_code == 201
        assert world.client.post("/v1/jobs?force=true", json=SPEC, headers=key).status_code == 409

    @pytest.mark.parametrize("setting", ["unknown", "off"])
    def test_unknown_memory_or_disabled_preflight_rejects_nothing(self, world: World, setting: str) -> None:
        gpus(world, "gpu9000" if setting == "unknown" else "t4")
        world.settings.slurm_preflight = setting != "off"
        job = world.submit(**TOO_LARGE)
        world.tick()
        assert world.status(job) == "pending"
