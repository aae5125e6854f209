"""No request body takes much processor time."""

import gc
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from service.api.middleware.authentication import SIGN_IN_PATHS
from service.core.errors import TooManyRequestsError
from tests.support.cpu_limit import slowdown
from tests.support.world import SPEC, FakeWorker, World
from trainyard.contract.bounds import MAX_SPEC_BYTES

pytestmark = pytest.mark.databases("sqlite")

MAX_SECONDS = 1.0
GPT: dict[str, Any] = {
    "task": "causal_lm",
    "model": {"source": "builtin", "name": "gpt", "layers": 512, "width": 128},
    "data": {"source": "builtin", "name": "stdlib"},
    "steps": 5,
}
LARGE = {"source": "builtin", "name": "gpt", "layers": 512, "width": 2**20, "heads": 1024, "context": 2**30}
YAML = "application/yaml"
JSON = "application/json"


def many(count: int) -> dict[str, Any]:
    return {f"optimizr{number}": 1 for number in range(count)}


SPECS: dict[str, Any] = {
    "sixty targets": {**GPT, "lora_rank": 4, "lora": {"targets": ["*"] * 60}},
    "targets over the limit": {**GPT, "lora_rank": 4, "lora": {"targets": ["*"] * 4000}},
    "starred targets": {**GPT, "lora_rank": 4, "lora": {"targets": ["*a" * 100 + str(n) for n in range(64)]}},
    "starred parameters": {**GPT, "trainable": ["*[!x]" * 50 for _ in range(64)]},
    "misspelled parameter": {**GPT, "trainable": ["blocks.7.attention.qkv.weights"]},
    "model that never fits": {**GPT, "gpus": 4096, "batch": {"size": 2**53}, "model": LARGE, "strategy": "auto"},
    "starred parameters that never fit": {**GPT, "model": LARGE, "trainable": ["*[!x]" * 50 for _ in range(64)]},
    "units by size": {**GPT, "gpus": 64, "batch": {"size": 2**40}, "strategy": "fsdp", "fsdp": {"wrap": "size"}},
    "traced ranks": {**GPT, "gpus": 2, "profile": {"start_step": 1, "ranks": list(range(50_000))}},
    "unknown fields": {**GPT, **many(3900)},
    "more unknown fields": {**GPT, **many(15_000)},
    "unknown labels": {**GPT, "metadata": many(3900)},
    "long name": {**GPT, "name": "x" * 250_000},
    "long number": {**GPT, "seed": int("9" * 4000)},
    "deep": {**GPT, "lora": json.loads("[" * 400 + "]" * 400)},
}

DOCUMENTS: dict[str, tuple[str, str]] = {
    "flow of lists": ("a: [" + "[]," * 87_000 + "]", YAML),
    "flow of numbers": ("a: [" + "1," * 130_000 + "]", YAML),
    "deep flow": ("[" * 260_000, YAML),
    "deep block": ("- " * 130_000, YAML),
    "sexagesimal number": ("seed: 1" + ":1" * 130_000, YAML),
    "short sexagesimal numbers": ("a: [" + ("1" + ":1" * 2000 + ",") * 60 + "]", YAML),
    "keys": ("\n".join(f"optimizr{number}: 1" for number in range(14_000)), YAML),
    "merge keys": ("<<: {a: 1}\n" * 23_000, YAML),
    "anchors": ("&a " * 87_000, YAML),
    "quotes": ('"' + "\\" * 260_000, YAML),
    "empty documents": ("---\n" * 65_000, YAML),
    "JSON lists": ("[" + "[]," * 87_000 + "1]", JSON),
    "JSON depth": ("[" * 260_000, JSON),
    "JSON surrogates": (json.dumps({"name": ["\ud800"] * 26_000}), JSON),
    "JSON number": ("9" * 260_000, JSON),
    "JSON keys": (json.dumps({f"{number}": 1 for number in range(20_000)}), JSON),
}

SWEEPS: dict[str, Any] = {
    "unknown fields": {"spec": {**SPEC, **many(3900)}, "grid": {"seed": list(range(200))}},
    "large model": {"spec": {**GPT, "lora_rank": 4}, "grid": {"seed": list(range(200))}},
    "large models": {"spec": {**GPT, "lora_rank": 4}, "grid": {"model.layers": list(range(300, 500))}},
    "members": {"spec": SPEC, "members": [{"seed": number} for number in range(200)]},
    "paths": {"spec": SPEC, "members": [{f"a{number}": 1 for number in range(20_000)}]},
    "grid over the limit": {"spec": SPEC, "grid": {f"a{axis}": list(range(1000)) for axis in range(10)}},
    "deep path": {"spec": SPEC, "grid": {".".join("a" * 100): [1, 2]}},
    "deep spec": {"spec": {"a": json.loads("[" * 700 + "]" * 700)}, "grid": {"seed": [1, 2]}},
    "surrogate": {"spec": SPEC, "members": [{"name": "\ud800"}]},
}


_BATCH = '{"execution": 1, "resumed_from_step": 0, "points": ['
REPORTS: dict[str, tuple[str, str]] = {
    "empty points": ("metrics", _BATCH + "{}," * 340_000 + "{}]}"),
    "numbers instead of points": ("metrics", _BATCH + "1," * 500_000 + "1]}"),
    "unknown fields of a batch": ("metrics", json.dumps({f"k{number}": 1 for number in range(60_000)})),
    "deep batch": ("metrics", "[" * 1_000_000),
    "empty events": ("events", '{"execution": 1, "events": [' + "{}," * 340_000 + "{}]}"),
    "unknown fields of a checkpoint": ("checkpoints", json.dumps({"metrics": many(15_000)})),
    "steps of a checkpoint": ("checkpoints", json.dumps({"removed_steps": list(range(39_000))})),
    "long nonce": ("claim", json.dumps({"nonce": "x" * 900_000})),
}


@pytest.fixture(scope="module")
def gpu_world(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    return new_world(migrated_sqlite, tmp_path_factory.mktemp("cost"))


@pytest.fixture(scope="module")
def submitted_job(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[World, str]:
    """Return the only job of a service of its own, since the jobs of `gpu_world` would all be submitted with it."""
    world = new_world(migrated_sqlite, tmp_path_factory.mktemp("reports"))
    job_id = world.submit()
    world.tick()
    return world, job_id


@pytest.fixture(scope="module")
def worker(submitted_job: tuple[World, str]) -> FakeWorker:
    world, job_id = submitted_job
    return world.worker(job_id)


def new_world(migrated_sqlite: Path, folder: Path) -> World:
    database = folder / "test.sqlite"
    database.write_bytes(migrated_sqlite.read_bytes())
    made = World(f"sqlite:///{database}", folder / "state", accelerator="cuda", gpu_memory_gb="=24", local_slots=10_000)
    made.client.get("/v1/jobs")
    return made


def post_within_budget(client: Any, path: str, **request: Any) -> Any:
    """Post, and compare the processor time: the least of three, since a busy machine inflates single measurements.

    Slow processors, and others that share their cores, inflate all of them, and fixed work after each as much.
    """
    measured = []
    for _ in range(3):
        gc.disable()  # A collection scans the objects of all tests; the service excludes those that exist at its start.
        try:
            started = time.process_time()
            answer = client.post(path, **request)
            seconds = time.process_time() - started
            if seconds < MAX_SECONDS or (seconds := seconds / slowdown()) < MAX_SECONDS:
                return answer
            measured.append(seconds)
        finally:
            gc.enable()
    raise AssertionError(f"{min(measured):.2f} s, as by a fast processor")


def post_text_within_budget(world: World, path: str, body: str, kind: str = JSON) -> Any:
    """The response to a request, which must take little processor time."""
    content = body.encode("utf-8", "surrogatepass")
    answer = post_within_budget(world.client, path, content=content, headers={"Content-Type": kind})
    assert answer.status_code < 500, answer.text[:300]
    assert len(answer.content) < 1_000_000
    return answer


@pytest.mark.heavy
@pytest.mark.parametrize("name", SPECS)
def test_every_spec_is_planned_cheaply(gpu_world: World, name: str) -> None:
    post_text_within_budget(gpu_world, "/v1/plans", json.dumps(SPECS[name]))


@pytest.mark.heavy
@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_document_is_parsed_cheaply(gpu_world: World, name: str) -> None:
    text, kind = DOCUMENTS[name]
    assert len(text) <= MAX_SPEC_BYTES
    assert post_text_within_budget(gpu_world, "/v1/plans", text, kind).status_code in (400, 422)


@pytest.mark.heavy
@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_is_expanded_cheaply(gpu_world: World, name: str) -> None:
    post_text_within_budget(gpu_world, "/v1/sweeps", json.dumps(SWEEPS[name]))


@pytest.mark.heavy
@pytest.mark.parametrize("name", REPORTS)
def test_every_report_is_refused_cheaply(worker: FakeWorker, name: str) -> None:
    route, body = REPORTS[name]
    path, headers = f"/v1/attempts/{worker.attempt_id}/{route}", {"Content-Type": JSON}
    answer = post_within_budget(worker.client, path, content=body, headers=headers)
    assert answer.status_code in (400, 422)


@pytest.mark.heavy
def test_user_requests_are_limited_to_the_size_of_a_spec(gpu_world: World) -> None:
    for path in ("/v1/jobs", "/v1/plans", "/v1/sweeps", "/v1/tokens", "/v1/webhooks"):
        assert post_text_within_budget(gpu_world, path, " " * (MAX_SPEC_BYTES + 1)).status_code == 413


def json_routes(world: World) -> list[tuple[str, str]]:
    return [
        (method.upper(), path)
        for path, operations in world.app.openapi()["paths"].items()
        for method, operation in operations.items()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    ]


"""Routes that refuse bodies of more than 8 KiB before they parse them."""


@pytest.mark.parametrize(
    "body",
    ["[" * 450 + "]" * 450, "[" * 100_000, '{"\\ud800": 1}', '{"name": "\\udfff"}', '{"a": ' * 450 + "1" + "}" * 450],
)
def test_deep_json_and_surrogates_are_refused_on_every_route(
    submitted_job: tuple[World, str], worker: FakeWorker, body: str
) -> None:
    world, job_id = submitted_job
    routes = json_routes(world)
    assert len(routes) > 10
    for method, path in routes:
        client = worker.client if "{aid}" in path else world.client
        filled = path.replace("{aid}", worker.attempt_id).replace("{job_id}", job_id)
        answer = client.request(method, filled, content=body, headers={"Content-Type": JSON})
        too_large = path in SIGN_IN_PATHS and len(body) > 8192
        assert answer.status_code in ((413,) if too_large else (400, 422, 404)), (method, path, answer.text)


def test_every_json_route_parses_its_body_within_the_bounds(
    submitted_job: tuple[World, str], worker: FakeWorker
) -> None:
    """Before it reads anything else, such as the resource in its path."""
    world, _ = submitted_job
    for method, path in json_routes(world):
        client = worker.client if "{aid}" in path else world.client
        filled = re.sub(r"\{\w+\}", "HF_TOKEN", path.replace("{aid}", worker.attempt_id))
        answer = client.request(method, filled, content="[" * 100_000, headers={"Content-Type": JSON})
        # Points are decoded straight into bounded types, without a document of any depth.
        expected = (422, "invalid_value") if path.endswith("/metrics") else (400, "invalid_json")
        if path in SIGN_IN_PATHS:
            expected = (413, "body_too_large")
        assert (answer.status_code, answer.json()["error"]["code"]) == expected, (method, path)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=20), inner, max_size=20),
    max_leaves=60,
)
fields = st.sampled_from(["model", "data", "lora", "trainable", "argv", "batch", "metadata", "profile", "strategy"])


@pytest.mark.heavy
@seed(17)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(fields, plain, max_size=4), repeat=st.sampled_from([1, 10, 1000]))
def test_no_generated_spec_takes_long(gpu_world: World, changes: dict[str, Any], repeat: int) -> None:
    repeated = {name: value * repeat if isinstance(value, list | str) else value for name, value in changes.items()}
    body = json.dumps({**GPT, **repeated})
    post_text_within_budget(gpu_world, "/v1/plans", body[:MAX_SPEC_BYTES])
    post_text_within_budget(
        gpu_world, "/v1/sweeps", json.dumps({"spec": {**GPT, **repeated}, "grid": {"seed": [1, 2]}})[:MAX_SPEC_BYTES]
    )


@pytest.mark.heavy
def test_expensive_sweep_is_checked_in_another_process(gpu_world: World) -> None:
    spec = {**GPT, "lora_rank": 4, "lora": {"targets": ["*"] * 60}}
    body = json.dumps({"spec": spec, "grid": {"model.layers": list(range(450, 490))}})
    answer = post_text_within_budget(gpu_world, "/v1/sweeps", body)
    assert answer.status_code == 201 or answer.json()["error"]["code"] == "too_expensive"


@pytest.mark.heavy
def test_problems_of_an_expensive_sweep_name_their_members(gpu_world: World) -> None:
    spec = {**GPT, "lora_rank": 4, "lora": {"targets": ["*"] * 60}}
    members = [{"model.layers": number} for number in range(490, 510)] + [{"model.heads": 7}]
    answer = post_text_within_budget(gpu_world, "/v1/sweeps", json.dumps({"spec": spec, "members": members}))
    assert answer.status_code == 422
    if answer.json()["error"]["code"] != "too_expensive":
        assert answer.json()["error"]["param"].startswith("members.20.")


def many_tensors(folder: Path, count: int) -> Path:
    """A model folder whose header names very many tensors."""
    folder.mkdir(parents=True)
    names = [f"model.layers.{number % 64}.mlp.experts.{number // 64}.up_proj.weight" for number in range(count)]
    tensors = {
        name: {"dtype": "BF16", "shape": [1, 1], "data_offsets": [2 * index, 2 * index + 2]}
        for index, name in enumerate(names)
    }
    header = json.dumps(tensors).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * (2 * count))
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 256}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    return folder


def hf_spec(folder: Path) -> dict[str, Any]:
    return {
        "task": "causal_lm",
        "gpus": 8,
        "model": {"source": "hf", "path": str(folder)},
        "data": {"source": "jsonl", "path": str(folder / "data.jsonl")},
        "steps": 5,
    }


@pytest.mark.heavy
def test_model_with_many_tensors_is_planned_in_another_process(gpu_world: World) -> None:
    folder = many_tensors(gpu_world.settings.runs / "large", 20_000)
    spec = hf_spec(folder) | {
        "lora_rank": 1,
        "lora": {"targets": [f"*{number % 10}*" for number in range(63)] + ["*"]},
    }
    answer = post_text_within_budget(gpu_world, "/v1/plans", json.dumps(spec))
    assert answer.status_code == 200 or answer.json()["error"]["code"] == "too_expensive"
    if answer.status_code == 200:
        assert answer.json()["model"]["parameters"] == 60_000


def test_estimate_of_a_large_model_uses_the_slot_of_its_user(gpu_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    owners: list[str] = []

    def refuse(owner: str, *_arguments: object) -> None:
        owners.append(owner)
        raise TooManyRequestsError("busy")

    monkeypatch.setattr(gpu_world.app_state.process_pool, "run", refuse)
    folder = many_tensors(gpu_world.settings.runs / "larger", 5001)
    assert gpu_world.new_user("user", "ada").post("/v1/plans", json=hf_spec(folder)).status_code == 429
    assert set(owners) == {"ada"}
