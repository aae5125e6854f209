"""Custom tasks: the same updates on any layout, exact resumption, and a loss scale for each optimizer's gradients."""

import traceback

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, run_layout
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import parse_spec
from worker.core.errors import RefusedError
from worker.engine.optim import build_optimizers
from worker.tasks.select import select_task

HERE = "tests.integration.worker.custom_tasks"


def spec(target, **changes):
    plain = {"task": "custom", "target": f"{HERE}:{target}", "steps": 12, "batch": {"size": 12}, "seed": 3}
    return plain | {"optimizer": {"lr": 0.05}, "log": {"every_steps": 1}} | changes


def resumed(**changes):
    """Return a run without an interruption, and the same run in two parts."""
    document = spec("TwoOptimizers", schedule={"name": "cosine", "warmup_steps": 2}, **changes)
    return {
        "whole": {"spec": document},
        "part": {"spec": document, "run": "r", "until": 5},
        "rest": {"spec": document, "run": "r"},
    }


def adjusted(name, **changes):
    """Return five steps, and a sixth with changes."""
    return {
        f"before {name}": {"spec": spec("Plain"), "run": name, "until": 5},
        name: {"spec": spec("Plain", steps=6, **changes), "run": name},
    }


FP16 = {"precision": "fp16", "amp": {"init_scale": 1024}}

CASES = {
    "plain": {"spec": spec("Plain", evaluation={"every_steps": 4})},
    "fsdp": {"spec": spec("TwoOptimizers", strategy="fsdp")},
    "ddp": {"spec": spec("TwoOptimizers")},
    "clipped": {"spec": spec("TwoOptimizers", optimizer={"lr": 0.05, "clip_norm": 0.5})},
    "fp16": {"spec": spec("TwoOptimizers", **FP16, steps=1)},
    "burst": {"spec": spec("two_optimizers_with_a_burst", **FP16, steps=1)},
    "burst, later": {"spec": spec("two_optimizers_with_a_burst", **FP16, steps=2)},
    "start": {"spec": spec("TwoOptimizers", **FP16, steps=1, optimizer={"lr": 1e-30})},
    "small": {"spec": spec("SmallBatches", steps=2, batch={"size": 12, "micro_size": 4})},
    "first": {"spec": spec("Plain", steps=2, evaluation={"first": True})},
    "limited": {"spec": spec("Plain", steps=2, evaluation={"first": True, "limit": 5, "micro_size": 2})},
    "sets": {"spec": spec("TwoSets", steps=2, evaluation={"first": True})},
    "limited sets": {"spec": spec("TwoSets", steps=2, evaluation={"first": True, "limit": 5})},
    "normalized": {"spec": spec("Normalized", steps=3, batch={"size": 16, "micro_size": 4})},
    "one example": {"spec": spec("Normalized", steps=3, batch={"size": 10, "micro_size": 1})},
    "decoded": {"spec": spec("Decoded", batch={"size": 14, "micro_size": 3})},
    "decoded ahead": {"spec": spec("Decoded", batch={"size": 14, "micro_size": 3, "loaders": 2})},
    "noisy": {"spec": spec("Noisy", batch={"size": 12, "loaders": 1})},
    "noisy part": {"spec": spec("Noisy", batch={"size": 12, "loaders": 2}), "run": "noisy", "until": 5},
    "noisy rest": {"spec": spec("Noisy", batch={"size": 12, "loaders": 2}), "run": "noisy"},
    **resumed(),
    **adjusted("same"),
    **adjusted("a tenth", optimizer={"lr": 0.005}),
    **adjusted("in fp16", **FP16),
}


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("custom")
    return {world: run_layout(world, CASES, folder / str(world) / "out") for world in (1, 2)}


def series(layouts, world, case, key="train/loss"):
    return [float(value) for value in layouts[world][0][case]["series"][key].values()]


@pytest.mark.parametrize("case", ["plain", "ddp", "fsdp", "clipped"])
def test_one_and_two_ranks_make_the_same_updates(layouts, case):
    assert series(layouts, 2, case) == pytest.approx(series(layouts, 1, case), rel=1e-5)


@pytest.mark.parametrize("world", [1, 2])
class TestLoaderProcesses:
    def test_losses_equal_those_without_them(self, layouts, world):
        assert series(layouts, world, "decoded ahead") == series(layouts, world, "decoded")

    def test_draws_depend_neither_on_their_number_nor_on_a_resume(self, layouts, world):
        parts = series(layouts, world, "noisy part") + series(layouts, world, "noisy rest")
        assert parts == series(layouts, world, "noisy")


@pytest.mark.parametrize("world", [1, 2])
class TestEvaluation:
    def test_batches_are_no_larger_than_in_training(self, layouts, world):
        assert series(layouts, world, "small", "eval/loss") == pytest.approx(
            series(layouts, world, "first", "eval/loss")[1:]
        )

    def test_first_evaluation_precedes_the_first_step(self, layouts, world):
        assert list(layouts[world][0]["first"]["series"]["eval/loss"]) == ["0", "2"]

    def test_limit_uses_the_first_examples(self, layouts, world):
        limited, whole = (series(layouts, world, case, "eval/loss")[0] for case in ("limited", "first"))
        assert limited == pytest.approx(series(layouts, 1, "limited", "eval/loss")[0])
        assert limited != pytest.approx(whole)

    def test_each_set_has_metrics_and_the_mean_is_over_all(self, layouts, world):
        whole, near, far = (
            series(layouts, world, "sets", key) for key in ("eval/loss", "eval/loss/near", "eval/loss/far")
        )
        assert whole == pytest.approx(series(layouts, world, "first", "eval/loss"))
        assert near[0] == pytest.approx(series(layouts, world, "limited", "eval/loss")[0])
        assert [5 * a + 7 * b for a, b in zip(near, far, strict=True)] == pytest.approx([12 * mean for mean in whole])

    def test_limit_counts_the_examples_of_each_set(self, layouts, world):
        near = series(layouts, 1, "sets", "eval/loss/near")
        assert series(layouts, world, "limited sets", "eval/loss/near") == pytest.approx(near)
        whole, far = (series(layouts, world, "limited sets", key) for key in ("eval/loss", "eval/loss/far"))
        assert [5 * (a + b) for a, b in zip(near, far, strict=True)] == pytest.approx([10 * mean for mean in whole])


@pytest.mark.parametrize("world", [1, 2])
class TestAdjustedResume:
    def test_another_rate_continues_with_the_optimizers_state(self, layouts, world):
        def change(name):
            before, after = (layouts[world][0][case]["parameters"]["weight"] for case in (f"before {name}", name))
            return [new - old for old, new in zip(before, after, strict=True)]

        assert change("a tenth") == pytest.approx([0.1 * value for value in change("same")], rel=1e-3)

    def test_another_precision_starts_with_its_initial_loss_scale(self, layouts, world):
        assert layouts[world][0]["in fp16"]["scales"] == {"6": 1024.0}


@pytest.mark.parametrize(("world", "batches"), [(1, 12), (2, 6)])
def test_batch_statistics_are_of_the_micro_batches_alone(layouts, world, batches):
    for rank in layouts[world]:
        assert rank["normalized"]["parameters"]["1.num_batches_tracked"] == [batches]


@pytest.mark.parametrize("world", [1, 2])
def test_batch_normalization_of_one_example_ends_the_run_with_advice(layouts, world):
    assert layouts[world][0]["one example"]["error"] == (
        "batch normalization cannot train on a micro-batch of 1 example"
    )


def test_each_loss_has_a_metric_and_they_sum_to_the_total(layouts):
    a, b = (series(layouts, 2, "ddp", f"train/loss/{name}") for name in "ab")
    assert [one + other for one, other in zip(a, b, strict=True)] == pytest.approx(series(layouts, 2, "ddp"))
    assert series(layouts, 2, "plain", "eval/loss")


def test_each_optimizer_follows_the_schedule_from_its_own_rate(layouts):
    a, b = (series(layouts, 2, "whole", f"train/lr/{name}") for name in "ab")
    assert b == pytest.approx([0.1 * rate for rate in a])
    assert max(a) == pytest.approx(0.05)
    assert a[0] < a[1] > a[-1]


@pytest.mark.parametrize("world", [1, 2])
def test_an_infinity_skips_one_optimizer_and_halves_the_scale_once(layouts, world):
    start, plain, burst = (layouts[world][0][case] for case in ("start", "fp16", "burst"))
    for name in ("a.weight", "a.bias"):
        assert burst["parameters"][name] == plain["parameters"][name] != start["parameters"][name]
    for name in ("b.weight", "b.bias"):
        assert burst["parameters"][name] == start["parameters"][name] != plain["parameters"][name]
    assert (plain["scales"]["1"], burst["scales"]["1"]) == (1024.0, 512.0)
    assert layouts[world][0]["burst, later"]["scales"] == {"1": 512.0, "2": 512.0}
    assert burst["series"]["train/skipped_steps"] == {"1": "1.0"}


@pytest.mark.parametrize("world", [1, 2])
def test_a_resume_restores_the_state_of_every_optimizer(layouts, world):
    whole, part, rest = (layouts[world][0][case]["series"]["train/loss"] for case in ("whole", "part", "rest"))
    assert list(part) == ["1", "2", "3", "4", "5"]
    assert part | rest == whole


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("absent", "has no `absent`"),
        ("BURST", "is a float, not a function"),
        ("raises", "LookupError: the data went away"),
        ("returns_nothing", "is not a task: it has no build_model, weight, loss_sum, evaluation_sums"),
        ("NoModel", "does not define build_model"),
        ("IncompleteOptimizers", "parameter `b.weight` is in no optimizer of optimizers()"),
    ],
)
def test_invalid_target_is_rejected_by_name(target, message):
    parsed = resolve(parse_spec(spec(target)), Site())

    def begin():
        task = select_task(parsed)
        build_optimizers(task, parsed, task.build_model(), sharded=False)

    with pytest.raises(RefusedError) as refused:
        begin()
    assert message in str(refused.value)
    assert target in str(refused.value)
    if target == "raises":
        assert 'raise LookupError("the data went away")' in "".join(traceback.format_exception(refused.value))


@pytest.mark.heavy
def test_return_values_of_a_task_are_checked_before_step_1(tmp_path):
    overrides = {"task": "custom", "target": f"{HERE}:LossOfEach", "model": None, "data": None, "gpus": 1}
    with FakeService() as service:
        attempt = Run(tmp_path / "job", service.url, overrides).run()
    finish = finish_of(attempt, 1)
    assert (finish.reason, finish.step, finish.restarts) == ("rejected", 0, 0)
    assert finish.failure.message == "loss_sum() returned a tensor of shape [10, 1], not a scalar"
