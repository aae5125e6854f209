"""`trainyard plan`."""

import json

import pytest

SPEC = {"task": "regression", "gpus": 2}
GIB = 2**30
PARTS = {"parameters": GIB, "gradients": GIB, "optimizer": 2 * GIB, "activations": GIB, "logits": GIB}
ANSWER = {
    "object": "plan",
    "spec": SPEC,
    "model": {"parameters": 1234567, "trained": 1000},
    "strategies": [
        {
            "strategy": "ddp",
            "micro_size": 4,
            "peak_bytes": 6 * GIB,
            "state_bytes": 4 * GIB,
            "parts": PARTS,
            "fits": False,
            "chosen": True,
            "host_bytes": GIB,
        },
        {"strategy": "fsdp", "state_bytes": 2 * GIB, "fits": None, "host_bytes": GIB},
    ],
    "strategy": "ddp",
    "strategy_reason": "set in the spec",
    "fits": False,
    "summary": "does not fit: needs about 6 GiB of 4 GiB per GPU",
    "gpus": [{"type": "t4", "min_bytes": 4 * GIB}, {"type": "odd"}],
    "changes": [{"set": {"strategy": "fsdp"}, "message": "strategy fsdp: 2 GiB", "peak_bytes": 2 * GIB}],
    "disk": {"checkpoint_bytes": 12000, "checkpoints": 3, "export_bytes": 4000, "total_bytes": 40000},
    "script": "#!/bin/sh\ntrue",
    "warnings": ["zero1 is zero2"],
}


def run_plan(service, run, *arguments):
    service.on("POST", "/v1/plans", ANSWER)
    return run("plan", "-", *arguments, input=json.dumps(SPEC))


def test_plan_is_printed(service, run):
    done = run_plan(service, run)
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        "1,234,567 parameters, 1,000 of them trained",
        "GPUs: t4 (4 GiB), odd (memory unknown)",
        "strategy ddp: set in the spec",
        "does not fit: needs about 6 GiB of 4 GiB per GPU",
        "host memory: roughly 1 GiB for each rank",
        "disk: 39.1 KiB at most (3 checkpoints of 11.7 KiB, export 3.91 KiB)",
        "STRATEGY FITS PER GPU WEIGHTS GRADS OPTIMIZER ACTIVATIONS OTHER MICRO SIZE",
        "ddp* no 6 GiB 1 GiB 1 GiB 2 GiB 1 GiB 1 GiB 4",
        "fsdp ? > 2 GiB",
        "?: unknown, because the available memory or the model's activation memory is unknown",
        "would fit: strategy fsdp: 2 GiB",
    ]
    assert done.stderr == "note: zero1 is zero2\n"


@pytest.mark.parametrize(("fits", "code"), [(True, 0), (None, 0), (False, 1)])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_exit_code_depends_on_whether_the_plan_fits(service, run, fits, code, options):
    service.on("POST", "/v1/plans", {**ANSWER, "fits": fits})
    assert run("plan", "-", *options, input=json.dumps(SPEC)).exit_code == code


def test_ranks_without_gpus(service, run):
    share = {"type": "this machine's memory", "min_bytes": 12 * GIB, "max_bytes": 12 * GIB}
    strategies = [ANSWER["strategies"][0] | {"peak_bytes": 2880 * GIB}]
    service.on("POST", "/v1/plans", ANSWER | {"accelerator": "cpu", "gpus": [share], "strategies": strategies})
    lines = [" ".join(line.split()) for line in run("plan", "-", input=json.dumps(SPEC)).stdout.splitlines()]
    assert lines[1] == "each rank: this machine's memory (12 GiB)"
    assert lines[6].startswith("STRATEGY FITS PER RANK WEIGHTS")
    assert lines[7].startswith("ddp* no 2.81 TiB 1 GiB")
    assert not any(line.startswith("?") for line in lines)


def test_script_option_prints_the_batch_script(service, run):
    assert run_plan(service, run, "--script").stdout.endswith("#!/bin/sh\ntrue\n")


def test_json(service, run):
    assert json.loads(run_plan(service, run, "--json").stdout)["changes"][0]["set"] == {"strategy": "fsdp"}


def test_set_overrides_fields(service, run):
    run_plan(service, run, "--set", "gpus=8")
    assert json.loads(service.requests[-1].content)["gpus"] == 8


ASK = {
    "object": "start_estimate",
    "id": "est_" + "0" * 26,
    "state": "waiting",
    "message": "the scheduler is being asked",
}


def ask(service, run, *answers, arguments=()):
    service.on("POST", "/v1/plans", {**ANSWER, "fits": None, "start_estimate": ASK})
    if answers:
        service.on("GET", f"/v1/start-estimates/{ASK['id']}", *({**ASK, **answer} for answer in answers))
    return run("plan", "-", "--start-estimate", *arguments, input=json.dumps(SPEC))


def test_start_estimate_is_awaited(service, run, monkeypatch):
    monkeypatch.setattr("trainyard.cli.plan.time.sleep", lambda seconds: None)
    answer = {"state": "answered", "accepted": True, "message": "Slurm would accept the job"}
    done = ask(service, run, {}, {**answer, "estimated_start": "2020-01-01T00:00:00Z"})
    assert "Slurm would accept the job (at once)" in done.stdout.splitlines()
    assert service.requests[0].url.params["estimate_start"] == "true"
    assert len(service.requests) == 3


def test_slow_start_estimate_is_abandoned(service, run):
    done = ask(service, run, arguments=("--timeout", "0"))
    assert f"the scheduler has not answered yet: GET /v1/start-estimates/{ASK['id']} will" in done.stdout.splitlines()
    assert done.exit_code == 0


def test_json_plan_has_the_start_estimate(service, run, monkeypatch):
    monkeypatch.setattr("trainyard.cli.plan.time.sleep", lambda seconds: None)
    refused = {"state": "answered", "accepted": False, "message": "Slurm refused the job"}
    plan = json.loads(ask(service, run, refused, arguments=("--json",)).stdout)
    assert (plan["start_estimate"]["accepted"], plan["start_estimate"]["message"]) == (False, "Slurm refused the job")


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (
            {"venv": "/v", "modules": ["gcc", "cuda/12"], "setup": ["a"]},
            "venv /v, modules gcc cuda/12, 1 line of setup",
        ),
        ({"container": {"image": "/i.sif"}}, "container /i.sif"),
        ({"conda": "torch", "setup": ["a", "b"]}, "conda torch, 2 lines of setup"),
    ],
)
def test_environment_of_the_ranks_is_printed(service, run, environment, line):
    service.on("POST", "/v1/plans", {**ANSWER, "spec": {**SPEC, "environment": environment}})
    done = run("plan", "-", input=json.dumps(SPEC))
    assert f"environment: {line}\n" in done.stdout
