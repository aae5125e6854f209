"""The exact answers to invalid input."""

import json
from typing import Any, ClassVar

import pytest

from service.core.settings import Settings
from tests.support.world import SPEC, World
from trainyard.contract.bounds import MAX_SPEC_BYTES

pytestmark = pytest.mark.databases("sqlite")

DIGITS: dict[str, Any] = {
    **SPEC,
    "task": "image_classification",
    "model": {"source": "builtin", "name": "convnet"},
    "data": {"source": "builtin", "name": "digits"},
}


def without(field: str) -> dict[str, Any]:
    return {key: value for key, value in SPEC.items() if key != field}


@pytest.mark.parametrize(
    ("spec", "param", "message"),
    [
        ({**SPEC, "gpsu": 1}, "gpsu", "unknown field; did you mean `gpus`?"),
        ({**SPEC, "seed": "x"}, "seed", "must be a whole number"),
        ({**SPEC, "gpus": 0}, "gpus", "must be greater than or equal to 1"),
        ({**SPEC, "epochs": 1}, "steps", "`steps` and `epochs` are both set; remove one"),
        (without("steps"), "steps", "set `steps` or `epochs`"),
        (
            {**SPEC, "gpus": 4, "batch": {"size": 3}},
            "batch.size",
            "is 3, smaller than the 4 ranks of `gpus`",
        ),
        ({**SPEC, "name": "two\nlines"}, "name", "contains a character that is not allowed"),
        ({**SPEC, "optimizer": {"lr": -1}}, "optimizer.lr", "must be greater than 0"),
        ({**SPEC, "strategy": "dp"}, "strategy", "`dp` needs GPUs, and this service's workers have none; use `ddp`"),
        (
            {**SPEC, "optimizer": {"name": "adamw", "momentum": 0.9}},
            "optimizer.momentum",
            "has no effect for `adamw`; it is for `sgd` and `muon`",
        ),
        (
            {**SPEC, "health": {"stall_timeout_minutes": 0}},
            "health.stall_timeout_minutes",
            "must be greater than 0",
        ),
        (
            {**DIGITS, "model": {"source": "builtin", "name": "convnet", "classes": 3}},
            "model.classes",
            "must be at least 10, the number of classes of the data set `digits`",
        ),
        (
            {**SPEC, "gpus": 64, "batch": {"size": 64}},
            "gpus",
            "is 64, but this service runs at most 4 ranks at once (TRAINYARD_LOCAL_SLOTS)",
        ),
        (
            {**SPEC, "strategy": "hsdp", "gpus": 2, "fsdp": {"replicas": 4}},
            "gpus",
            "is 2, fewer than `fsdp.replicas` 4; each replica needs a rank",
        ),
        (
            {**SPEC, "model": {"source": "builtin", "name": "mlp", "sizes": [8, 4, 3]}, "lora_rank": 5},
            "lora_rank",
            "is 5, larger than the smallest side of its target `0`; take 4 or less",
        ),
        (
            {**DIGITS, "lora_rank": 16},
            "lora_rank",
            "is 16, larger than the smallest side of its target `features.0`; take 9 or less",
        ),
        (
            {**DIGITS, "lora_rank": 4, "lora": {"targets": ["nope"]}},
            "lora.targets",
            "`nope` matches no layer that can be adapted; there are: 0, 2, 5",
        ),
        (
            {**DIGITS, "trainable": ["features.*", "hed.*"]},
            "trainable",
            "`hed.*` matches no parameter of the model; the closest: features.0.weight, features.0.bias, "
            "features.2.weight, features.2.bias, features.5.weight, features.5.bias, head.2.weight, head.2.bias",
        ),
        (
            {
                **SPEC,
                "task": "causal_lm",
                "model": {"source": "builtin", "name": "gpt", "vocab": 100},
                "data": {"source": "builtin", "name": "stdlib"},
            },
            "model.vocab",
            "is 100, but tokens are bytes; use 256 or more",
        ),
        (
            {**SPEC, "environment": {"variables": {"LD_PRELOAD": "x"}}},
            "environment.variables.LD_PRELOAD",
            "changes which code runs; a spec may not set this variable",
        ),
        (
            {**SPEC, "resources": {"partition": "gpu"}},
            "resources",
            "this service runs jobs on its own machine and supports only `resources.time_limit_minutes`",
        ),
        (
            {**SPEC, "resources": {"partition": "x\n#SBATCH"}},
            "resources.partition",
            "contains a character that is not allowed",
        ),
    ],
)
def test_invalid_spec_error_names_field_and_fix(world: World, spec: Any, param: str, message: str) -> None:
    answer = world.client.post("/v1/jobs", json=spec)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error == {"type": "invalid_request_error", "code": "invalid_spec", "param": param, "message": message}
    assert answer.json()["problems"][0] == {"param": param, "message": message}


def test_all_spec_problems_are_reported_at_once(world: World) -> None:
    answer = world.client.post("/v1/jobs", json={**SPEC, "gpus": 0, "seed": -1})
    assert [problem["param"] for problem in answer.json()["problems"]] == ["gpus", "seed"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not valid YAML: line 2, column 1: did not find expected node content"),
        (
            "!!python/object/apply:os.system [x]",
            "not valid YAML: line 1, column 1: tags are not allowed",
        ),
        ("a: &a [1,1]\nb: [*a,*a]", "not valid YAML: line 1, column 4: anchors and aliases are not allowed"),
    ],
)
def test_yaml_accepts_no_tags_or_anchors(world: World, text: str, message: str) -> None:
    answer = world.client.post("/v1/jobs", content=text, headers={"Content-Type": "application/yaml"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)
    assert answer.json()["error"]["code"] == "invalid_yaml"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[" * 100_000, 400, "invalid_json"),
        (b'{"a": 1, "a": 2}', 400, "invalid_json"),
        (b"\xff\xfe", 400, "invalid_encoding"),
        (b"[]", 422, "invalid_spec"),
        (b"null", 422, "invalid_spec"),
    ],
)
def test_malformed_spec_bodies_are_rejected(world: World, body: bytes, status: int, code: str) -> None:
    answer = world.client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_oversized_body_is_rejected_before_parsing(world: World) -> None:
    answer = world.client.post("/v1/jobs", content=b" " * (MAX_SPEC_BYTES + 1))
    assert answer.status_code == 413
    assert answer.json()["error"] == {
        "message": "the body is larger than 262144 bytes",
        "type": "invalid_request_error",
        "param": None,
        "code": "body_too_large",
    }

    def endless() -> Any:
        for _ in range(40):
            yield b" " * 65536

    chunked = world.client.post("/v1/jobs", content=endless())
    assert (chunked.status_code, chunked.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("header", [None, "Bearer nonsense", "Bearer ty_00000000_" + "x" * 43, "Basic YTpi"])
def test_missing_and_invalid_tokens_get_the_same_response(world: World, header: str | None) -> None:
    client = world.new_client(None)
    answer = client.get("/v1/jobs", headers={"Authorization": header} if header else {})
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["error"] == {
        "message": "missing, unknown, expired or revoked token: send the header `Authorization: Bearer <token>`",
        "type": "authentication_error",
        "param": None,
        "code": "invalid_token",
    }


@pytest.mark.parametrize(
    "path", ["", "/events", "/attempts", "/metrics", "/logs", "/stream", "/checkpoints", "/script"]
)
def test_unknown_job_returns_404(world: World, path: str) -> None:
    answer = world.client.get(f"/v1/jobs/job_nope{path}")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["message"], error["code"], error["param"]) == (
        "there is no job 'job_nope'",
        "job_not_found",
        "job_id",
    )


def test_cancelling_a_finished_job_returns_409(world: World) -> None:
    job = world.submit()
    world.start(job).end("completed")
    world.tick()
    answer = world.client.post(f"/v1/jobs/{job}/cancel")
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "job_finished"
    assert answer.json()["error"]["message"] == f"job {job} has already succeeded; it cannot be cancelled"


@pytest.mark.parametrize(
    ("point", "param"),
    [
        ({"step": -1}, "points.1.step"),
        ({"step": True}, "points.1.step"),
        ({"step": 2**63}, "points.1.step"),
        ({"value": True}, "points.1.value"),
        ({"value": "x"}, "points.1.value"),
        ({"key": ""}, "points.1.key"),
        ({"key": "x" * 251}, "points.1.key"),
    ],
)
def test_case_16_invalid_point_rejects_its_whole_batch(world: World, point: Any, param: str) -> None:
    job = world.submit()
    worker = world.start(job)
    good = {"key": "a", "step": 1, "value": 1.0, "time": "2026-01-01T00:00:00Z"}
    answer = worker.post("metrics", {"execution": 1, "resumed_from_step": 0, "points": [good, {**good, **point}]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)
    assert world.client.get(f"/v1/jobs/{job}/metrics").json()["series"] == []


@pytest.mark.databases("sqlite", "postgres")
def test_case_16_nan_and_infinity_are_stored(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    odd = [("a", 1, "NaN"), ("a", 2, "Infinity"), ("a", 3, "-Infinity"), ("a", 4, 1.5)]
    assert worker.metrics(odd).status_code == 200
    raw = json.dumps(
        {
            "execution": 1,
            "resumed_from_step": 0,
            "points": [{"key": "b", "step": 1, "value": float("nan"), "time": "2026-01-01T00:00:00Z"}],
        }
    )
    headers = {"Content-Type": "application/json"}
    path = f"/v1/attempts/{worker.attempt_id}/metrics"
    assert worker.client.post(path, content=raw, headers=headers).status_code == 200
    answer = world.client.get(f"/v1/jobs/{job}/metrics")
    assert json.loads(answer.text, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    series = answer.json()["series"]
    assert series[0]["values"] == ["NaN", "Infinity", "-Infinity", 1.5]
    assert series[1]["values"] == ["NaN"]
    assert world.job(job)["metrics"] == {"a": 1.5, "b": "NaN"}


def test_case_07_attempt_token_is_limited_to_its_attempt(world: World) -> None:
    first, second = world.submit(), world.submit()
    world.tick()
    one, two = world.worker(first), world.worker(second)
    foreign = one.client.post(f"/v1/attempts/{two.attempt_id}/heartbeat", json={"execution": 1})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "forbidden")
    for method, path in [
        ("GET", "/v1/jobs"),
        ("GET", f"/v1/jobs/{first}"),
        ("POST", "/v1/jobs"),
        ("GET", "/v1/templates"),
    ]:
        answer = one.client.request(method, path)
        assert answer.status_code == 403, path
        assert answer.json()["error"]["message"] == "an attempt token is valid only for the routes of its attempt"
    user = world.client.post(f"/v1/attempts/{one.attempt_id}/heartbeat", json={"execution": 1})
    assert user.status_code == 403


def test_second_claim_of_an_attempt_is_rejected(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    assert worker.claim().status_code == 200, "the claimant's own repeated request is granted again"
    other = worker.claim("another-nonce")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "claim_refused")
    assert other.json()["error"]["message"] == f"attempt 1 of job {job} must not run"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("order=up", "order"),
        ("status=odd", "status"),
        ("sort=unknown", "sort"),
        ("created_after=2026-01-01", "created_after"),
        ("after=job_zzz", "after"),
    ],
)
def test_case_23_invalid_query_parameters_are_named(world: World, query: str, param: str) -> None:
    answer = world.client.get(f"/v1/jobs?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)


@pytest.mark.parametrize("timestamp", ["2026-01-01", "2026-01-01T00:00:00", "yesterday", "2026-13-01T00:00:00Z"])
def test_invalid_timestamp_error_shows_the_format(world: World, timestamp: str) -> None:
    answer = world.client.get("/v1/jobs", params={"created_after": timestamp})
    assert "2026-01-01T00:00:00Z" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", "/nope", 404, "route_not_found"), ("PUT", "/v1/jobs", 405, "method_not_allowed")],
)
def test_routing_errors_use_the_error_envelope(world: World, method: str, path: str, status: int, code: str) -> None:
    answer = world.client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_case_21_unknown_host_is_rejected(world: World) -> None:
    answer = world.client.get("/v1/jobs", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_host")


def test_malformed_last_event_id_is_rejected(world: World) -> None:
    job = world.submit()
    answer = world.client.get(f"/v1/jobs/{job}/stream", headers={"Last-Event-ID": "x"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "Last-Event-ID")


class TestPathsOfModelsAndData:
    HF: ClassVar[dict[str, Any]] = {
        "task": "causal_lm",
        "steps": 1,
        "model": {"source": "hf", "path": "/etc/model"},
        "data": {"source": "jsonl", "path": "/srv/../data.jsonl"},
    }

    def test_paths_outside_the_allowed_roots_are_rejected(self, world: World) -> None:
        answer = world.client.post("/v1/jobs", json=self.HF)
        assert answer.status_code == 422
        outside = (
            f"is outside the folders that this service allows: {world.settings.runs}; "
            "an administrator adds folders in TRAINYARD_ALLOWED_ROOTS"
        )
        assert answer.json()["problems"] == [
            {"param": "model.path", "message": outside},
            {"param": "data.path", "message": "must not contain `..`"},
        ]

    def test_export_of_a_job_is_an_allowed_model_path(self, world: World) -> None:
        export = str(world.settings.runs / "job_1" / "export")
        data = {"source": "jsonl", "path": f"{world.settings.runs}/data.jsonl"}
        spec = {**self.HF, "model": {"source": "hf", "path": export}, "data": data}
        assert world.client.post("/v1/jobs", json=spec).status_code == 201

    def test_allowed_roots_come_from_the_settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRAINYARD_ALLOWED_ROOTS", "/shared/models, /shared/data")
        assert Settings().site.roots == ("/shared/models", "/shared/data", str(Settings().runs))
        monkeypatch.setenv("TRAINYARD_ALLOWED_ROOTS", "models")
        with pytest.raises(ValueError, match="`models` is not an absolute path"):
            Settings()


@pytest.mark.parametrize("path", ["logs?rank=abc", "logs?rank=", "stream?rank=-1"])
def test_invalid_rank_error_describes_the_format(world: World, path: str) -> None:
    answer = world.client.get(f"/v1/jobs/{world.submit()}/{path}")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (422, "rank")
    assert error["message"] == "must be a rank, such as 0, or `launch` for the launcher"
