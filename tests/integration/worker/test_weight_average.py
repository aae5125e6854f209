"""The average of the weights agrees on any layout, is evaluated and exported, and is part of a checkpoint."""

import pytest
import torch

from tests.integration.worker.harness import run_layout, series
from tests.integration.worker.parity_matrix import ADAMW, VARIANTS, mlp

STEPS = 12
_DATA = {"source": "builtin", "name": "parity", "examples": 60, "eval_fraction": 0.25}
EMA = {"decay": 0.75, "every": 2}
SPEC = mlp(steps=STEPS, data=_DATA, optimizer=ADAMW | {"lr": 0.02}, ema=EMA) | {"evaluation": {"every_steps": 3}}
PLAIN = {key: value for key, value in SPEC.items() if key != "ema"}
UNUSED = SPEC | {"ema": EMA | {"evaluate": False, "export": False}}
LAYOUTS = [(2, "ddp"), (2, "zero1"), (2, "layer"), (4, "hsdp")]
SLOW_LAYOUTS = [(3, name) for name in ("ddp", "zero2", "layer", "size")]
CHAIN = [("layer", 5), ("single", 8), ("ddp", STEPS)]


def cases_on(world, layouts):
    cases = {variant: {"spec": SPEC | VARIANTS[variant]} for ranks, variant in layouts if ranks == world}
    parts = {}
    for variant in cases:
        run = {"spec": SPEC | VARIANTS[variant], "run": f"run-{variant}"}
        parts |= {f"{variant}/first": run | {"until": 7}, f"{variant}/rest": run}
    return cases | parts


def chained(part):
    variant, until = CHAIN[part]
    layout = {"strategy": "single"} if variant == "single" else VARIANTS[variant]
    return {"chain": {"spec": SPEC | layout, "run": "chain", "until": until}}


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("average")
    two = run_layout(2, cases_on(2, LAYOUTS) | chained(0), folder / "2")
    added = {"spec": PLAIN, "run": "added", "until": 5}
    alone = {"average": {"spec": SPEC}, "plain": {"spec": PLAIN}, "unused": {"spec": UNUSED}}
    alone |= {"before": added, "added": added | {"spec": SPEC, "until": STEPS}}
    one = run_layout(1, alone | chained(1), folder / "1")
    last = run_layout(2, chained(2), folder / "last")
    return {1: one, 2: two, 4: run_layout(4, cases_on(4, LAYOUTS), folder / "4"), "chain": [two, one, last]}


@pytest.fixture(scope="module")
def slow_layouts(tmp_path_factory):
    return {3: run_layout(3, cases_on(3, SLOW_LAYOUTS), tmp_path_factory.mktemp("slow") / "3")}


def parameters(result, case, key="parameters"):
    return torch.cat([torch.tensor(values) for _, values in sorted(result[0][case][key].items())])


@pytest.mark.parametrize(
    ("world", "variant"), LAYOUTS + [pytest.param(*layout, marks=pytest.mark.slow) for layout in SLOW_LAYOUTS]
)
class TestLayouts:
    @pytest.fixture
    def ranks(self, request, world):
        return request.getfixturevalue("slow_layouts" if world == 3 else "layouts")[world]

    def test_average_equals_that_of_one_process(self, layouts, ranks, variant):
        assert series(ranks, variant, "eval/loss") == pytest.approx(
            series(layouts[1], "average", "eval/loss"), rel=1e-5
        )
        for key in ("parameters", "exported"):
            expected = parameters(layouts[1], "average", key)
            assert torch.linalg.norm(parameters(ranks, variant, key) - expected) <= 1e-5 * torch.linalg.norm(expected)

    def test_resume_on_the_same_layout_gives_identical_values(self, ranks, variant):
        whole, first, rest = (ranks[0][case] for case in (variant, f"{variant}/first", f"{variant}/rest"))
        for key in ("train/loss", "eval/loss"):
            assert first["series"][key] | rest["series"][key] == whole["series"][key]
        assert rest["parameters"] == whole["parameters"]


def test_resume_on_other_layouts_keeps_the_average(layouts):
    merged = {}
    for result in layouts["chain"]:
        merged |= series(result, "chain", "eval/loss")
    assert merged == pytest.approx(series(layouts[1], "average", "eval/loss"), rel=1e-5)
    expected = parameters(layouts[1], "average")
    difference = parameters(layouts["chain"][-1], "chain") - expected
    assert torch.linalg.norm(difference) <= 1e-5 * torch.linalg.norm(expected)


class TestUse:
    def test_average_changes_no_update(self, layouts):
        plain, average = (layouts[1][0][case]["series"]["train/loss"] for case in ("plain", "average"))
        assert average == plain

    def test_evaluation_and_export_use_it(self, layouts):
        plain, average = (layouts[1][0][case] for case in ("plain", "average"))
        # Step 3 evaluates the copy of the weights after step 2.
        assert all(average["series"]["eval/loss"][step] != plain["series"]["eval/loss"][step] for step in ("3", "12"))
        assert average["exported"] != plain["exported"]

    def test_evaluation_and_export_can_use_the_weights(self, layouts):
        plain, unused = (layouts[1][0][case] for case in ("plain", "unused"))
        assert unused["series"]["eval/loss"] == plain["series"]["eval/loss"]
        assert unused["exported"] == plain["exported"]

    def test_checkpoint_without_an_average_starts_one(self, layouts):
        added = layouts[1][0]["added"]
        assert list(added["series"]["train/loss"]) == [str(step) for step in range(6, STEPS + 1)]
        assert added["series"]["train/loss"].items() <= layouts[1][0]["plain"]["series"]["train/loss"].items()
        assert added["series"]["eval/loss"]["12"] != layouts[1][0]["plain"]["series"]["eval/loss"]["12"]
