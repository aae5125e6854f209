"""Objectives, samples and properties of adapters in a spec: what is refused, by field, and what has no effect."""

import pytest

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.forks import adjusted_differences, fixed_differences, incompatible_fields
from trainyard.contract.spec.ineffective_fields import evaluation_metrics
from trainyard.contract.spec.objective_rules import preference_beta
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import dump_spec, parse_spec

JSONL = {"source": "jsonl", "path": "/data/pairs.jsonl", "eval_path": "/data/held-out.jsonl"}
GPT = {"source": "builtin", "name": "gpt"}
HF = {"source": "hf", "path": "/data/model"}
BASE = {"task": "causal_lm", "steps": 10, "model": GPT, "data": JSONL}
REGRESSION = {
    "task": "regression",
    "model": {"source": "builtin", "name": "mlp"},
    "data": {"source": "builtin", "name": "parity"},
}


def spec(**changes):
    return parse_spec(BASE | changes)


def resolved(**changes):
    return resolve(spec(**changes), Site("cpu", "local"))


def problems(**changes):
    with pytest.raises(SpecError) as caught:
        resolved(**changes)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("objective", ["sft", "dpo", "orpo", "kto", "simpo"])
def test_every_objective_is_accepted_and_survives_a_round_trip(objective):
    accepted = resolved(objective=objective)
    assert parse_spec(dump_spec(accepted)) == accepted


@pytest.mark.parametrize(("objective", "beta"), [("dpo", 0.1), ("orpo", 0.1), ("kto", 0.1), ("simpo", 2.0)])
def test_beta_has_a_default_for_each_objective(objective, beta):
    assert preference_beta(spec(objective=objective)) == beta
    assert preference_beta(spec(objective=objective, preference={"beta": 0.5})) == 0.5


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"objective": "kto", "data": {"source": "builtin", "name": "stdlib"}},
            "data.name: `stdlib` has pairs only, and objective `kto` needs labels; use source `jsonl`",
        ),
        (
            {"objective": "dpo", "data": JSONL | {"format": "completion"}},
            "data.format: is `completion`, and objective `dpo` needs `preference` or `openai_preference`",
        ),
        (
            {"objective": "kto", "data": JSONL | {"format": "preference"}},
            "data.format: is `preference`, and objective `kto` needs `unpaired_preference`",
        ),
        (
            {"data": JSONL | {"format": "preference"}},
            "data.format: `preference` is for the objectives `dpo`, `orpo` and `simpo`; set `objective`, or use "
            "another format",
        ),
        (
            {"objective": "kto", "batch": {"size": 1}},
            "batch.size: is 1, and `kto` compares each answer with the mean over the batch; use 2 or more",
        ),
        (
            {"evaluation": {"samples": {"prompts": ["a"], "chat": True}}},
            "evaluation.samples.chat: needs a chat template, which only models of source `hf` have; use `false`",
        ),
        (
            {"lora_rank": 2, "lora": {"dora": True, "base_dtype": "nf4"}},
            "lora.dora: needs the norms of the base, which is held in `nf4`; use `bf16` or `fp32`",
        ),
        (
            {"lora_rank": 2, "lora": {"modules_to_save": ["head"], "base_dtype": "bf16"}},
            "lora.modules_to_save: cannot be combined with a `lora.base_dtype` other than `fp32`",
        ),
        (
            {"lora_rank": 2, "lora": {"adapter": "adapters/mine"}},
            "lora.adapter: must be an absolute path: workers have a different current directory",
        ),
    ],
)
def test_unsupported_combination_names_the_field(changes, expected):
    assert problems(**changes) == [expected]


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"preference": {"beta": 0.2}}, ["preference"]),
        ({"objective": "orpo", "preference": {"label_smoothing": 0.1}}, ["preference.label_smoothing"]),
        ({"objective": "kto", "preference": {"loss_type": "ipo"}}, ["preference.loss_type"]),
        ({"objective": "dpo", "preference": {"simpo_gamma": 0.5}}, ["preference.simpo_gamma"]),
        (
            {"objective": "simpo", "preference": {"desirable_weight": 2, "undesirable_weight": 2}},
            ["preference.desirable_weight", "preference.undesirable_weight"],
        ),
        (
            {"objective": "dpo", "preference": {"loss_type": "hinge", "label_smoothing": 0.1}},
            ["preference.label_smoothing"],
        ),
        ({"objective": "dpo", "loss": {"label_smoothing": 0.1}}, ["loss.label_smoothing"]),
        ({"objective": "simpo", "loss": {"z_loss": 0.1}}, ["loss.z_loss"]),
        (REGRESSION | {"objective": "dpo"}, ["objective"]),
        (REGRESSION | {"preference": {"beta": 1}}, ["preference"]),
        (REGRESSION | {"loss": {"neftune_alpha": 5}}, ["loss.neftune_alpha"]),
        (REGRESSION | {"evaluation": {"samples": {"prompts": ["a"]}}}, ["evaluation.samples"]),
        ({"lora": {"dora": True}}, ["lora"]),
    ],
)
def test_field_without_effect_is_rejected(changes, fields):
    assert [problem.partition(":")[0] for problem in problems(**changes)] == fields


def test_preference_objective_without_pairs_on_data_parallel_is_rejected():
    with pytest.raises(SpecError, match="strategy: `dp` divides pairs; with objective `dpo` use `ddp`"):
        resolve(spec(objective="dpo", strategy="dp", gpus=2), Site("cuda", "local"))


@pytest.mark.parametrize(
    ("samples", "param"),
    [
        ({"prompts": []}, "evaluation.samples.prompts"),
        ({"prompts": ["a"] * 17}, "evaluation.samples.prompts"),
        ({"prompts": ["a" * 4097]}, "evaluation.samples.prompts.0"),
        ({"prompts": ["a"], "max_new_tokens": 1025}, "evaluation.samples.max_new_tokens"),
        ({"prompts": ["a"], "temperature": -1}, "evaluation.samples.temperature"),
    ],
)
def test_samples_are_bounded(samples, param):
    with pytest.raises(SpecError) as caught:
        spec(evaluation={"samples": samples})
    assert caught.value.problems[0].param == param


def test_samples_need_no_evaluation_data():
    data = {"source": "jsonl", "path": "/data/texts.jsonl"}
    resolved(data=data, evaluation={"every_steps": 2, "first": True, "samples": {"prompts": ["Once"]}})
    assert problems(data=data, evaluation={"every_steps": 2})[0].startswith("evaluation.every_steps: has no effect")


def test_rewards_can_choose_the_best_checkpoint():
    best = {"metric": "eval/rewards/margins", "mode": "max"}
    resolved(objective="dpo", checkpoint={"keep_best": best})
    assert "eval/logps/chosen" in evaluation_metrics(spec(objective="dpo"))
    assert problems(checkpoint={"keep_best": best})[0].startswith("checkpoint.keep_best.metric")


@pytest.mark.parametrize(
    ("section", "field"),
    [({"use_dora": True}, "lora.dora"), ({"use_rslora": True}, "lora.rslora")],
)
def test_names_of_other_programs_are_explained(section, field):
    with pytest.raises(SpecError, match=f"unknown field; use `{field}`"):
        spec(lora_rank=1, lora=section)


class TestForks:
    def test_another_objective_can_use_only_the_weights(self):
        assert "objective" in fixed_differences(spec(), spec(objective="dpo"))

    def test_parameters_of_the_objective_can_be_adjusted(self):
        source, fork = spec(objective="dpo"), spec(objective="dpo", preference={"beta": 0.3})
        assert fixed_differences(source, fork) == []
        assert adjusted_differences(source, fork) == ["preference"]

    def test_weights_of_plain_adapters_do_not_fit_those_with_norms(self):
        source, fork = spec(lora_rank=2), spec(lora_rank=2, lora={"dora": True})
        assert [problem.param for problem in incompatible_fields(source, fork)] == ["lora.dora"]
