"""What is shown first of a failure, for tracebacks and output of any origin."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.contract.failure_summaries import summarize_failure, user_frame
from trainyard.contract.proposals import value_at
from trainyard.contract.spec.changes import changed_document
from trainyard.contract.spec.training_spec import dump_spec, parse_spec
from trainyard.contract.wire.reports import Failure
from worker.core.memory_hints import memory_hint

CODE = "/shared/runs/job_1/attempts/1-94ff7c1d98af0d22/code"
OURS = """Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/worker/rank/main.py", line 87, in main
    _run_task(run)
  File "/home/me/trainyard/worker/engine/train_step.py", line 246, in task_losses
    return task.loss_sum(model, batch)
           ^^^^^^^^^^^^^^^^^^^
"""
USER = f"""  File "{CODE}/sub/spirals.py", line 8, in loss_sum
    batch["hot"]
    ~~~~~^^^^^^^
"""
LIBRARY = """  File "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/base.py", line 1, in _call_impl
    return forward_call(*args)
  File "<frozen importlib._bootstrap>", line 1, in _find
"""


def failure(text: str = "", **fields: Any) -> Failure:
    return Failure.model_validate({"type": "KeyError", "message": "'hot'", "traceback": text, **fields})


@pytest.mark.parametrize(
    "text", [OURS + USER, OURS + USER + LIBRARY, "line 1\nline 2\n" + OURS + USER + "KeyError: 'hot'\n"]
)
@pytest.mark.parametrize("folder", [CODE, "/shared/runs/job_01m8jtssv3eea6t7007rxyth1z/work"])
def test_last_frame_of_the_user_is_returned(text: str, folder: str) -> None:
    summary = summarize_failure(failure(text.replace(CODE, folder)), {})
    assert summary.frame is not None
    assert summary.frame.model_dump() == {
        "file": "sub/spirals.py",
        "line": 8,
        "function": "loss_sum",
        "source": 'batch["hot"]\n~~~~~^^^^^^^',
    }
    assert (summary.is_traceback, summary.last_lines) == (True, ["line 1", "line 2"] if text.startswith("line") else [])


@pytest.mark.parametrize("rank", ["", "[rank0]: "])
def test_output_around_tracebacks_is_the_last_lines(rank: str) -> None:
    chained = "\nDuring handling of the above exception, another exception occurred:\n\n"
    tracebacks = f"{OURS}{USER}KeyError: 'hot'\n{chained}{OURS}{USER}ValueError: no such batch\n"
    marked = "".join(f"{rank}{line}" for line in tracebacks.splitlines(keepends=True))
    text = f"loading\ntrain.py:3: UserWarning: the cache is old\n  warnings.warn(text)\n{marked}leaked 1 semaphore\n"
    assert summarize_failure(failure(text), {}).last_lines == [
        "loading",
        "train.py:3: UserWarning: the cache is old",
        "  warnings.warn(text)",
        "leaked 1 semaphore",
    ]


def test_code_outside_of_the_upload_is_the_users_too() -> None:
    text = 'Traceback (most recent call last):\n  File "/home/me/project/spirals.py", line 3, in <module>\n    run()\n'
    frame = user_frame(text + LIBRARY)
    assert frame is not None
    assert (frame.file, frame.source) == ("/home/me/project/spirals.py", "run()")


def test_frames_of_marked_ranks_are_frames() -> None:
    text = "".join(f"[rank1]: {line}" for line in f"{OURS}{USER}IndexError: rank one broke\n".splitlines(keepends=True))
    frame = user_frame(text)
    assert frame is not None
    assert (frame.file, frame.line, frame.source) == ("sub/spirals.py", 8, 'batch["hot"]\n~~~~~^^^^^^^')


def test_caught_exception_is_not_the_frame_of_a_failure() -> None:
    caught = f"{OURS}{USER}RuntimeError: CUDA error\n"
    summary = summarize_failure(failure(f"{caught}validation accuracy below threshold\n", type="ScriptFailed"), {})
    assert (summary.frame, summary.is_traceback) == (None, False)
    assert summary.last_lines == ["validation accuracy below threshold"]
    assert summarize_failure(failure(caught, type="ScriptFailed"), {}).frame is not None
    assert summarize_failure(failure(f"{caught}more\n"), {}).frame is not None


def test_last_of_several_tracebacks_counts() -> None:
    first = OURS + USER + "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n"
    second = f'Traceback (most recent call last):\n  File "{CODE}/main.py", line 9, in main\n    retry()\nKeyError: 2\n'
    frame = user_frame(first + second)
    assert frame is not None
    assert (frame.file, frame.line) == ("main.py", 9)


def test_frames_of_trainyard_alone_are_no_frame_of_the_user() -> None:
    assert summarize_failure(failure(OURS + LIBRARY), {}).frame is None


def test_output_without_a_traceback_is_its_last_lines() -> None:
    text = "\n".join(f"line {number}" for number in range(50)) + "\n\n"
    summary = summarize_failure(failure(text, type="ScriptFailed", final=True), {})
    assert summary.last_lines == [f"line {number}" for number in range(40, 50)]
    assert (summary.frame, summary.is_traceback, summary.repeats) == (None, False, True)
    assert summarize_failure(failure(), {}).last_lines == []


def test_output_of_earlier_executions_is_left_out() -> None:
    start = "2026-11-25 16:37:47,355 INFO rank 0, attempt 1{}, pid 964\n"
    text = f"{start.format('')}loading\nfirst\n{start.format(', restart 1')}loading\nno such dataset\n"
    assert summarize_failure(failure(text), {}).last_lines == ["loading", "no such dataset"]


SPEC = {
    "task": "causal_lm",
    "steps": 1,
    "model": {"source": "builtin", "name": "gpt"},
    "data": {"source": "builtin", "name": "stdlib"},
    "batch": {"size": 64},
}


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("on_device", [True, False])
def test_fixes_are_those_of_a_memory_hint(gpus: int, *, on_device: bool) -> None:
    document = {**SPEC, "gpus": gpus}
    hint = memory_hint(parse_spec(document), on_device=on_device)
    fixes = summarize_failure(failure(type="OutOfMemoryError", hint=hint), document).fixes
    assert fixes[0].fields == {"batch.micro_size": 32 if gpus == 1 else 8}
    assert fixes[1].fields == {"activation_checkpointing": "full"}
    for fix in fixes:
        changed = parse_spec(changed_document(parse_spec(document), fix.fields))
        assert {change.field: change.after for change in fix.changes} == fix.fields
        assert all(value_at(dump_spec(changed), path) == value for path, value in fix.fields.items())


def test_a_fix_of_two_fields_is_one_change() -> None:
    hint = "Most likely to help: (1) strategy: fsdp with fsdp.cpu_offload: true (slow); (2) gpus: 4 with strategy fsdp."
    fixes = summarize_failure(failure(hint=hint), {**SPEC, "gpus": 2}).fixes
    assert [fix.fields for fix in fixes] == [
        {"strategy": "fsdp", "fsdp.cpu_offload": True},
        {"gpus": 4, "strategy": "fsdp"},
    ]


@pytest.mark.parametrize("hint", ["(1) gpus: 64", "(1) gpus: many", "(1) resources.memory_gb_per_gpu: 10"])
def test_a_fix_at_most_doubles_resources(hint: str) -> None:
    assert summarize_failure(failure(hint=hint), {**SPEC, "gpus": 2}).fixes == []


def test_a_fix_continues_from_the_checkpoint() -> None:
    report = failure(type="OutOfMemoryError", hint="(1) batch.micro_size: 4 (same)")
    job = "job_" + "0" * 26
    spec = {**SPEC, "resume_from": f"job_{'1' * 26}:5", "resume": "weights", "after": [f"job_{'1' * 26}"]}
    (fix,) = summarize_failure(report, spec, job_id=job, step=7).fixes
    assert [(change.field, change.before, change.after) for change in fix.changes] == [
        ("batch.micro_size", "auto", 4),
        ("resume_from", spec["resume_from"], f"{job}:7"),
        ("resume", "weights", "state"),
        ("after", spec["after"], []),
    ]
    assert fix.changes[0].meaning.startswith("Examples")
    (fix,) = summarize_failure(report, spec, job_id=job).fixes
    assert [change.field for change in fix.changes] == ["batch.micro_size", "after"], "it starts as the job did"


def test_a_loss_that_is_not_finite_has_a_lower_rate_as_its_fix() -> None:
    spec = {**SPEC, "optimizer": {"name": "sgd", "lr": 3e-3, "clip_norm": None}}
    summary = summarize_failure(failure(type="DivergedError", final=True), spec)
    assert [fix.fields for fix in summary.fixes] == [{"optimizer.lr": 3e-4}, {"optimizer.clip_norm": 1.0}]
    assert summary.repeats
    assert summarize_failure(failure(type="DivergedError"), {**SPEC, "optimizer": {"lr": "x"}}).fixes == []


def test_fields_that_a_hint_must_not_change_are_ignored() -> None:
    hint = "Try (1) run_as: root; (2) argv: rm; (3) batch.micro_size: 4 (same); (4) container.image: evil"
    assert [fix.fields for fix in summarize_failure(failure(hint=hint), SPEC).fixes] == [{"batch.micro_size": 4}]
    assert summarize_failure(failure(hint=hint), {"task": "script", "argv": ["train.py"]}).fixes == [], "has no effect"


@given(st.text(max_size=400), st.text(max_size=200), st.dictionaries(st.text(max_size=9), st.integers(), max_size=3))
def test_any_text_is_summarised(text: str, hint: str, spec: dict[str, Any]) -> None:
    report = failure("Traceback (most recent call last):\n" + text).model_copy(update={"hint": hint})
    assert len(summarize_failure(report, spec).model_dump_json()) < 20_000
