"""Sharded strategies make the updates of one process, and resume on any layout."""

from fnmatch import fnmatchcase

import pytest
import torch

from tests.integration.worker.harness import run_layout, series
from tests.integration.worker.parity_matrix import CLIP, MATRIX, PARTS, STEPS, case_name, problem_name, write_texts
from tests.integration.worker.sharding_cases import (
    LAYOUTS,
    LOW_PRECISION,
    LOW_PRECISION_STEPS,
    RECOMPUTED,
    SLOW_LAYOUTS,
    STAGES,
    cases_on,
    resumed_cases,
)

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
"""The first test waits for all runs, which take about two minutes on two cores."""

RESUMED = LAYOUTS + [pytest.param(*layout, marks=pytest.mark.slow) for layout in SLOW_LAYOUTS]


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    """Run the stages in order: each continues the resharding chain of the one before."""
    folder = tmp_path_factory.mktemp("sharding")
    texts = folder / "texts"
    write_texts(texts)
    return {world: run_layout(world, cases_on(world, texts), folder / str(world), seconds=300) for world in STAGES}


@pytest.fixture(scope="module")
def slow_layouts(tmp_path_factory):
    return {3: run_layout(3, resumed_cases(SLOW_LAYOUTS, 3), tmp_path_factory.mktemp("slow") / "3", seconds=300)}


@pytest.fixture
def ranks(request, world, variant):
    """Return the results of each rank of the test's layout."""
    runs = "slow_layouts" if (world, variant) in SLOW_LAYOUTS else "layouts"
    return request.getfixturevalue(runs)[world]


def tensors(result, case):
    return {name: torch.tensor(values) for name, values in result[0][case]["parameters"].items()}


def accuracies(case, part):
    """Return the names of the accuracies of tokens that the case has."""
    return () if case["model"] == "mlp" else (f"{part}/mean_token_accuracy",)


@pytest.mark.parametrize("case", MATRIX, ids=case_name)
class TestParityWithOneProcess:
    def test_parameters(self, layouts, case):
        alone = tensors(layouts[1], problem_name(case))
        together = tensors(layouts[case["ranks"]], case_name(case))
        assert alone.keys() == together.keys()
        for name, expected in alone.items():
            assert torch.linalg.norm(together[name] - expected) <= 1e-5 * torch.linalg.norm(expected), name
        flat, expected = (torch.cat(list(merged.values())) for merged in (together, alone))
        assert torch.linalg.norm(flat - expected) <= 1e-6 * torch.linalg.norm(expected)

    def test_rank_0_exports_all_trained_parameters(self, layouts, case):
        first, *others = (rank[case_name(case)] for rank in layouts[case["ranks"]])
        patterns = {"all": ("*",), "lora": ("*.lora_*",), "partial": PARTS[case["model"]]}[case["trained"]]
        trained = {name for name in first["parameters"] if any(fnmatchcase(name, p) for p in patterns)}
        assert trained
        assert first["exported"] == {name: first["parameters"][name] for name in trained}
        assert case["variant"] == "ddp" or all(rank["exported"] == {} for rank in others)

    def test_every_step(self, layouts, case):
        for key in ("train/loss", "train/grad_norm", *accuracies(case, "train")):
            alone = series(layouts[1], problem_name(case), key)
            together = series(layouts[case["ranks"]], case_name(case), key)
            assert len(alone) == STEPS
            assert together == pytest.approx(alone, rel=1e-5), key

    def test_evaluation(self, layouts, case):
        for key in ("eval/loss", *accuracies(case, "eval")):
            alone = series(layouts[1], problem_name(case), key)
            assert series(layouts[case["ranks"]], case_name(case), key) == pytest.approx(alone, rel=1e-5)

    def test_gradients_are_clipped(self, layouts, case):
        norms = series(layouts[1], problem_name(case), "train/grad_norm")
        assert not case["clipped"] or sum(norm > CLIP[case["trained"]] for norm in norms.values()) >= 3


class TestLowPrecision:
    @pytest.mark.parametrize(("world", "variant", "precision"), LOW_PRECISION)
    def test_losses_are_close_to_fp32(self, layouts, world, variant, precision):
        expected = series(layouts[1], "fp32", "train/loss")
        merged = series(layouts[world], f"{precision}/{variant}", "train/loss")
        assert len(merged) == LOW_PRECISION_STEPS
        assert merged == pytest.approx(expected, rel=0.02)
        assert merged != expected

    @pytest.mark.parametrize(("world", "variant"), RESUMED)
    def test_an_infinity_on_one_rank_makes_all_skip_and_halves_the_scale_once(self, layouts, ranks, variant):
        case = f"whole/{variant}"
        for rank in ranks:
            assert [rank[case]["scales"][str(step)] for step in (1, 2, 3, 6)] == [1024.0, 512.0, 512.0, 512.0]
            assert [rank[f"rest/{variant}"]["scales"][str(step)] for step in (4, 6)] == [512.0, 512.0]
        assert series(ranks, case, "train/skipped_steps")[6] == 1.0
        alone, together = (torch.cat(list(tensors(*run).values())) for run in ((layouts[1], "inf"), (ranks, case)))
        assert torch.linalg.norm(together - alone) <= 1e-2 * torch.linalg.norm(alone)


class TestCommunication:
    """A model of three units: two blocks and the root. Four micro-batches on two ranks, two on four. The last block and
    the root stay gathered until their backward."""

    @pytest.mark.parametrize(
        ("world", "variant", "scatters", "gathers", "sums"),
        [(2, "zero1", 3, 3, 0), (2, "zero2", 12, 12, 0), (2, "layer", 12, 16, 0), (4, "hsdp", 6, 8, 3)],
    )
    def test_collectives_of_a_step(self, layouts, world, variant, scatters, gathers, sums):
        counts = layouts[world][0][f"kept/{variant}"]["collectives"]["2"]
        assert counts == {"scatters": scatters, "gathers": gathers, "sums": sums}


class TestUntiedHead:
    """Units: the embeddings, two blocks, the head, and the root. Four micro-batches. The last block, the head and the
    root stay gathered until their backward."""

    def test_head_is_gathered_once_for_all_chunks(self, layouts):
        collectives = {"scatters": 20, "gathers": 28, "sums": 0}
        assert layouts[2][0]["untied"]["collectives"]["2"] == collectives
        assert layouts[2][0]["chunked"]["collectives"]["2"] == collectives

    def test_chunks_change_the_loss_by_rounding_only(self, layouts):
        whole, chunked = (series(layouts[2], case, "train/loss") for case in ("untied", "chunked"))
        assert chunked == pytest.approx(whole, rel=1e-5)


class TestSmallNetwork:
    """A 2-2-2-3 network with 21 parameters on two ranks: the parameters on each rank during forward and backward."""

    @pytest.mark.parametrize(("wrap", "gathered"), [("naive", 21), ("layer", 9), ("size", 21)])
    def test_parameters_of_each_rank(self, layouts, wrap, gathered):
        ranks = [rank[f"small/{wrap}"] for rank in layouts[2]]
        assert [rank["sharded"] for rank in ranks] == [12, 9]
        assert [rank["most_gathered"] for rank in ranks] == [gathered, gathered]


class TestActivationCheckpointing:
    @pytest.mark.parametrize(("how", "variant"), RECOMPUTED)
    def test_losses_are_identical(self, layouts, how, variant):
        again, reference = (layouts[2][0][f"{case}/{variant}"] for case in (how, "kept"))
        for key in ("train/loss", "train/grad_norm", "eval/loss"):
            assert again["series"][key] == reference["series"][key]
        assert again["parameters"] == reference["parameters"]


@pytest.mark.parametrize(("world", "variant"), RESUMED)
class TestResume:
    def test_resume_on_the_same_layout_gives_identical_losses(self, ranks, variant):
        undisturbed, first, rest = (
            ranks[0][f"{part}/{variant}"]["series"]["train/loss"] for part in ("whole", "first", "rest")
        )
        assert first == {step: undisturbed[step] for step in map(str, range(1, 4))}
        assert rest == {step: undisturbed[step] for step in map(str, range(4, 7))}


class TestResharding:
    def test_a_run_that_changes_ranks_and_strategy_keeps_its_trajectory(self, layouts):
        expected = series(layouts[1], "chain whole", "train/loss")
        merged = {}
        for world, case in [(n, case) for n in STAGES for case in layouts[n][0] if case[:6] == "chain-"]:
            part = series(layouts[world], case, "train/loss")
            assert not part.keys() & merged.keys()
            merged |= part
        assert list(merged) == list(range(1, 13))
        assert merged == pytest.approx(expected, rel=1e-5)

    def test_each_step_used_the_examples_of_an_undisturbed_run(self, layouts):
        merged = {}
        for world, case in [(n, case) for n in STAGES for case in layouts[n][0] if case[:6] == "chain-"]:
            ranks = [rank[case]["examples"] for rank in layouts[world]]
            merged |= {step: [example for rank in ranks for example in rank[step]] for step in ranks[0]}
        assert merged == layouts[1][0]["chain whole"]["examples"]
