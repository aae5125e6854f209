"""Every change that a failure or an advice proposes is accepted by the task that it is proposed for."""

import re
from itertools import product
from typing import Any

import pytest

from trainyard.contract.advice import advise
from trainyard.contract.failure_summaries import summarize_failure
from trainyard.contract.kinds.tasks import TASKS
from trainyard.contract.spec.changes import changed_document, problems_of_change
from trainyard.contract.spec.forks import fixed_differences
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec, parse_spec
from trainyard.contract.wire.reports import Failure
from worker.core.memory_hints import memory_hint

HF = {"model": {"source": "hf", "path": "/m"}, "data": {"source": "jsonl", "path": "/d.jsonl"}}
BUILTIN = {"model": {"source": "builtin", "name": "gpt"}, "data": {"source": "builtin", "name": "stdlib"}}
IMAGES = {
    "model": {"source": "builtin", "name": "convnet", "channels": 8},
    "data": {"source": "builtin", "name": "digits"},
}
MLP = {"model": {"source": "builtin", "name": "mlp", "sizes": [2, 3]}, "data": {"source": "builtin", "name": "parity"}}
PAIRS = {"model": {"source": "hf", "path": "/m"}, "data": {"source": "jsonl", "path": "/d", "format": "preference"}}
OF_TASKS: dict[str, list[dict[str, Any]]] = {
    "causal_lm": [
        {"steps": 9, **BUILTIN},
        {"steps": 9, **HF, "lora_rank": 8},
        {"steps": 9, **HF, "lora_rank": 8, "lora": {"base_dtype": "nf4"}},
        {"steps": 9, **PAIRS, "objective": "dpo"},
    ],
    "sequence_classification": [{"steps": 9, **HF}],
    "text_embedding": [{"steps": 9, **HF}],
    "image_classification": [{"steps": 9, **IMAGES}],
    "regression": [{"steps": 9, **MLP}],
    "custom": [{"steps": 9, "target": "mine:Task", "code": f"sha256:{'0' * 64}"}],
    "script": [{"argv": ["train.py"], "code": f"sha256:{'0' * 64}"}, {"argv": ["torchrun", "train.py"]}],
    "comm_check": [{}],
}
COMMON: list[dict[str, Any]] = [
    {},
    {"gpus": 4},
    {"gpus": 4, "strategy": "fsdp", "precision": "bf16"},
    {"gpus": 4, "strategy": "zero1", "batch": {"size": 4}},
    {"activation_checkpointing": "full", "batch": {"size": 1}},
    {"optimizer": {"name": "muon", "lr": 0.1, "clip_norm": None}},
    {"optimizer": {"name": "sgd", "lr": 0.0, "clip_norm": None}},
    {"param_dtype": "bf16", "precision": "bf16"},
]
PROPOSED = {"profile": {"start_step": 1}, "gpus": 1, "batch.loaders": 4, "argv": ["other.py"]}
"""A value of each field that advice names."""
JOB = "job_" + "0" * 26
LATEST = {"system/node-0/idle_gpus": 1.0, "perf/data_seconds": 0.5, "perf/step_seconds": 1.0}


def specs(task: str) -> list[TrainingSpec]:
    """Return accepted specs of a task, on GPUs and without."""
    accepted = []
    for of_task, common, accelerator in product(OF_TASKS[task], COMMON, ("cpu", "cuda")):
        try:
            spec = parse_spec({"task": task, **of_task, **common})
            accepted.append(resolve(spec, Site(accelerator=accelerator)))  # type: ignore[arg-type]
        except ValueError:
            continue
    return accepted


def test_each_task_has_accepted_specs() -> None:
    assert set(OF_TASKS) == set(TASKS)
    assert {task: len(specs(task)) > 1 for task in TASKS} == dict.fromkeys(TASKS, True)


@pytest.mark.cpu_seconds(8)
@pytest.mark.parametrize("task", TASKS)
def test_fixes_of_exhausted_memory_are_accepted(task: str) -> None:
    for spec, on_device in product(specs(task), (False, True)):
        hint = memory_hint(spec, on_device=on_device)
        failure = Failure(type="OutOfMemoryError", message="", hint=hint)
        for fix in summarize_failure(failure, dump_spec(spec)).fixes:
            assert problems_of_change(spec, fix.fields, continues=False) == [], (dump_spec(spec), fix)
            assert fix.changes, fix
        for fix in summarize_failure(failure, dump_spec(spec), job_id=JOB, step=3).fixes:
            assert problems_of_change(spec, fix.fields, continues=True) == [], (dump_spec(spec), fix)
            assert fixed_differences(spec, parse_spec(changed_document(spec, fix.fields))) == [], fix
        for field, value in re.findall(r"\(\d\) ([a-z_.]+): (\w+)", hint):
            fields = {field: int(value) if value.isdecimal() else {"true": True}.get(value, value)}
            if " with " not in hint and value != "more":
                assert problems_of_change(spec, fields, continues=False) == [], (dump_spec(spec), hint)


@pytest.mark.parametrize("task", TASKS)
def test_fixes_of_a_loss_that_is_not_finite_are_accepted(task: str) -> None:
    for spec in specs(task):
        failure = Failure(type="DivergedError", message="the loss became NaN or infinite at step 4")
        fixes = summarize_failure(failure, dump_spec(spec)).fixes
        assert all(problems_of_change(spec, fix.fields, continues=True) == [] for fix in fixes), (spec, fixes)


@pytest.mark.parametrize("task", TASKS)
def test_fields_that_advice_names_have_an_effect(task: str) -> None:
    for spec in specs(task):
        for advice in advise(dump_spec(spec), LATEST):
            assert advice.field in PROPOSED
            if advice.fix is not None:
                assert problems_of_change(spec, advice.fix.fields, continues=False) == [], (dump_spec(spec), advice)
            if advice.field == "gpus" and spec.gpus == 1:
                continue
            fields = {advice.field: PROPOSED[advice.field]}
            assert problems_of_change(spec, fields, continues=False) == [], (dump_spec(spec), advice)


def test_change_is_refused_with_its_reason() -> None:
    spec = parse_spec({"task": "script", "argv": ["train.py"]})
    (problem,) = problems_of_change(spec, {"batch.micro_size": 16}, continues=False)
    assert "has no effect" in problem.message
    trained = parse_spec({"task": "causal_lm", "steps": 9, **BUILTIN})
    assert problems_of_change(trained, {"lora_rank": 16}, continues=False) == []
    assert [problem.param for problem in problems_of_change(trained, {"lora_rank": 16}, continues=True)] == [
        "lora_rank"
    ]


def test_problems_of_the_spec_itself_are_none_of_the_change() -> None:
    """The spec was accepted on a site with containers, which this function does not know."""
    spec = parse_spec(
        {"task": "script", "argv": ["train.py"], "environment": {"container": {"image": "/i.sif"}}, "gpus": 4}
    )
    assert problems_of_change(spec, {"gpus": 2}, continues=True) == []
