"""Any number of processes makes the same updates, and the same as a bare PyTorch loop."""

import math
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.integration.worker.harness import run_layout
from trainyard.contract.spec.templates import load_template
from worker.core.random_state import seed_generators
from worker.data.builtin import make_parity
from worker.data.sampler import GlobalBatches


def spec(**changes):
    document = {**load_template("mlp_parity").spec, "seed": 3}
    for key, value in changes.items():
        document[key] = {**document.get(key, {}), **value} if isinstance(value, dict) else value
    if document["data"]["eval_fraction"]:
        document["evaluation"] = {"every_steps": 4}
    return document


CASES = {
    # 47 examples in batches of ten: the last batch has seven, which no number of ranks divides.
    "uneven": {"spec": spec(data={"examples": 60, "eval_fraction": 0.2167}, epochs=3)},
    # 41 examples: the last batch has one, so that with two or three ranks some have none; micro-batches of two.
    "starved": {
        "spec": spec(
            data={"examples": 41},
            epochs=3,
            batch={"size": 10, "micro_size": 2},
            optimizer={"momentum": 0.9, "clip_norm": 0.5},
            schedule={"name": "linear", "warmup_steps": 3},
        )
    },
    "adamw": {
        "spec": spec(
            data={"examples": 47},
            epochs=3,
            batch={"size": 10, "last": "pad"},
            optimizer={"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
            schedule={"name": "cosine", "warmup_steps": 4, "final": 0.1},
        )
    },
    "tokens": {
        "spec": spec(
            task="causal_lm",
            model={"name": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16, "sizes": None},
            data={"name": "stdlib", "eval_fraction": 0.00002},
            epochs=None,
            steps=6,
            batch={"size": 7, "micro_size": 2},
        )
    },
    "smoothed": {
        "spec": spec(
            task="causal_lm",
            model={"name": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16, "sizes": None},
            data={"name": "stdlib", "eval_fraction": 0.00002},
            epochs=None,
            steps=6,
            batch={"size": 7, "micro_size": 2},
            loss={"label_smoothing": 0.1, "z_loss": 0.001},
        )
    },
    "inf_in_fp16": {
        "spec": spec(precision="fp16", epochs=1, amp={"init_scale": 1024.0}),
        "plant": {"rank": 0, "step": 5, "value": "inf"},
    },
    "nan_stops": {"spec": spec(epochs=1, log={"every_steps": 4}), "plant": {"rank": 0, "step": 5, "value": "nan"}},
    "nan_skipped": {
        "spec": spec(epochs=1, health={"on_nan": "skip"}),
        "plant": {"rank": 0, "step": 5, "value": "nan"},
    },
    "nan_ignored": {
        "spec": spec(epochs=1, health={"on_nan": "ignore"}),
        "plant": {"rank": 0, "step": 5, "value": "nan"},
    },
}
_CLASSIC = {**load_template("classic_exercise").spec, "seed": 3}
CLASSIC = {
    "classic_sgd": {"spec": _CLASSIC},
    "classic_adam": {"spec": {**_CLASSIC, "optimizer": {"name": "adam", "lr": 0.01, "eps": 0}}},
}
CASES |= CLASSIC
for _case in CASES.values():
    _case["spec"]["model"].pop("sizes", None) if _case["spec"]["task"] == "causal_lm" else None


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layouts")
    return cache(lambda world: run_layout(world, CASES, folder / str(world)))


def losses(result, case):
    return {int(step): float(value) for step, value in result[0][case]["series"]["train/loss"].items()}


def parameters(result, case):
    return torch.cat([torch.tensor(values) for _, values in sorted(result[0][case]["parameters"].items())])


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("case", ["uneven", "starved", "adamw", "tokens", "smoothed"])
class TestAnyNumberOfProcesses:
    def test_losses_equal_those_of_one_process(self, layouts, case, world):
        alone, together = losses(layouts(1), case), losses(layouts(world), case)
        assert alone.keys() == together.keys()
        assert len(alone) > 5
        for step, loss in alone.items():
            assert together[step] == pytest.approx(loss, rel=1e-5), step

    def test_parameters_equal_those_of_one_process(self, layouts, case, world):
        alone, together = parameters(layouts(1), case), parameters(layouts(world), case)
        assert torch.linalg.norm(together - alone) <= 1e-5 * torch.linalg.norm(alone)

    def test_every_step_uses_the_same_examples_once(self, layouts, case, world):
        alone = layouts(1)[0][case]["examples"]
        ranks = [rank[case]["examples"] for rank in layouts(world)]
        for step, examples in alone.items():
            assert [example for rank in ranks for example in rank[step]] == examples, step

    def test_evaluation_equals_that_of_one_process(self, layouts, case, world):
        alone = layouts(1)[0][case]["series"].get("eval/loss", {})
        together = layouts(world)[0][case]["series"].get("eval/loss", {})
        assert alone.keys() == together.keys()
        for step, loss in alone.items():
            assert float(together[step]) == pytest.approx(float(loss), rel=1e-5)

    @pytest.mark.parametrize("key", ["train/mean_token_accuracy", "eval/mean_token_accuracy"])
    def test_accuracy_of_tokens_is_that_of_one_process(self, layouts, case, world, key):
        alone, together = (layouts(n)[0][case]["series"].get(key, {}) for n in (1, world))
        assert bool(alone) == (case in ("tokens", "smoothed"))
        assert {step: float(value) for step, value in together.items()} == pytest.approx(
            {step: float(value) for step, value in alone.items()}, rel=1e-5
        )

    def test_gradient_norm_is_global(self, layouts, case, world):
        alone, together = (layouts(n)[0][case]["series"]["train/grad_norm"] for n in (1, world))
        for step, norm in alone.items():
            assert float(together[step]) == pytest.approx(float(norm), rel=1e-4)


class BareLoop:
    """The same run in a loop of plain torch."""

    def bare(self, document, optimizer, rate):
        seed_generators(document["seed"])
        sizes = (2, 2, 2, 3)
        layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
        model = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
        data = document["data"]
        x, y = make_parity(data["examples"], 2, 3, document["seed"])
        train = len(x) - round(len(x) * data.get("eval_fraction", 0.2))
        optimizer = optimizer(model.parameters())
        order = GlobalBatches(
            train,
            document["batch"]["size"],
            seed=document["seed"],
            last=document["batch"].get("last", "keep"),
            shuffle=data.get("shuffle", True),
        )
        losses_by_step = {}
        total = document["epochs"] * order.steps_per_epoch
        for step in range(1, total + 1):
            optimizer.param_groups[0]["lr"] = rate(step, total)
            rows = torch.from_numpy(order.at(step - 1))
            loss = functional.mse_loss(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            if clip := document["optimizer"].get("clip_norm"):
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            losses_by_step[step] = loss.item()
        ordered = [value.detach().flatten() for _, value in sorted(model.state_dict().items())]
        return losses_by_step, torch.cat(ordered)

    def compare(self, layouts, case, optimizer, rate):
        expected, weights = self.bare(CASES[case]["spec"], optimizer, rate)
        for world in (1, 2, 3):
            result = layouts(world)
            assert losses(result, case).keys() == expected.keys()
            for step, loss in losses(result, case).items():
                assert loss == pytest.approx(expected[step], rel=1e-5), (world, step)
            assert torch.linalg.norm(parameters(result, case) - weights) <= 1e-5 * torch.linalg.norm(weights)


class TestBareLoop(BareLoop):
    def test_sgd(self, layouts):
        self.compare(layouts, "uneven", lambda p: torch.optim.SGD(p, lr=0.1), lambda step, total: 0.1)

    def test_momentum_clipping_and_linear_decay(self, layouts):
        def rate(step, total):
            return 0.1 * (step / 3 if step <= 3 else (total - step + 1) / (total - 3))

        self.compare(layouts, "starved", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), rate)

    def test_adamw_and_cosine_decay(self, layouts):
        def rate(step, total):
            if step <= 4:
                return 0.01 * step / 4
            return 0.01 * (0.1 + 0.9 * (1 + math.cos(math.pi * (step - 5) / (total - 4))) / 2)

        self.compare(layouts, "adamw", lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1), rate)


class TestClassicExercise(BareLoop):
    """Three unshuffled epochs, batches of ten: two processes equal one, with the same learning rate."""

    @pytest.mark.parametrize(
        ("case", "optimizer", "rate"),
        [
            ("classic_sgd", lambda p: torch.optim.SGD(p, lr=1.0), 1.0),
            ("classic_adam", lambda p: torch.optim.Adam(p, lr=0.01, eps=0), 0.01),
        ],
    )
    def test_preset_on_two_processes_equals_a_plain_loop(self, layouts, case, optimizer, rate):
        assert len(losses(layouts(2), case)) == 36
        self.compare(layouts, case, optimizer, lambda step, total: rate)

    @pytest.mark.parametrize("case", CLASSIC)
    def test_data_is_not_shuffled(self, layouts, case):
        examples = layouts(1)[0][case]["examples"]
        assert [examples[str(step)] for step in (1, 2, 12, 13)] == [
            list(range(10)),
            list(range(10, 20)),
            list(range(110, 120)),
            list(range(10)),
        ]


class TestLossTerms:
    def test_training_loss_has_the_terms(self, layouts):
        plain, smoothed = (layouts(1)[0][case]["series"] for case in ("tokens", "smoothed"))
        first = float(plain["train/loss"]["1"])
        # The logits of a new model are almost zero: the smoothing changes little, and log Z is the loss.
        assert float(smoothed["train/loss"]["1"]) == pytest.approx(first + 0.001 * first**2, rel=1e-3)


class TestNonFiniteGradientOnOneRank:
    @pytest.mark.parametrize("world", [1, 2, 3])
    def test_all_ranks_skip_and_the_scale_halves_once(self, layouts, world):
        for rank in layouts(world):
            scales = rank["inf_in_fp16"]["scales"]
            assert [scales[str(step)] for step in (4, 5, 6, 12)] == [1024.0, 512.0, 512.0, 512.0]
            assert rank["inf_in_fp16"]["parameters"] == layouts(world)[0]["inf_in_fp16"]["parameters"]
        skipped = layouts(world)[0]["inf_in_fp16"]["series"]["train/skipped_steps"]
        assert [float(skipped[str(step)]) for step in (4, 5, 12)] == [0.0, 1.0, 1.0]
        assert torch.isfinite(parameters(layouts(world), "inf_in_fp16")).all()


class TestNanLoss:
    @pytest.mark.parametrize("world", [1, 2, 3])
    def test_stop_reports_the_first_nan_step(self, layouts, world):
        for rank in layouts(world):
            assert rank["nan_stops"]["error"] == "the loss became NaN or infinite at step 5"

    @pytest.mark.parametrize("world", [1, 2, 3])
    def test_skip_omits_and_counts_the_step(self, layouts, world):
        result = layouts(world)[0]["nan_skipped"]
        assert result["error"] is None
        assert float(result["series"]["train/skipped_steps"]["12"]) == 1.0
        assert math.isnan(float(result["series"]["train/loss"]["5"]))
        assert math.isfinite(float(result["series"]["train/loss"]["6"]))

    def test_ignore_continues(self, layouts):
        assert math.isnan(float(layouts(2)[0]["nan_ignored"]["series"]["train/loss"]["12"]))
