"""The LoRA fields of a spec."""

import pytest

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.forks import fixed_differences, incompatible_fields
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import parse_spec


@pytest.mark.parametrize(("targets", "param"), [("q_proj", "lora.targets"), ([1], "lora.targets.0")])
def test_targets_are_a_list_or_auto(targets, param):
    with pytest.raises(SpecError) as caught:
        parse_spec({"task": "regression", "steps": 1, "lora_rank": 1, "lora": {"targets": targets}})
    assert caught.value.problems[0].param == param


def test_lora_and_trainable_patterns_are_exclusive():
    with pytest.raises(SpecError, match="trainable: cannot be combined with `lora_rank`"):
        parse_spec(
            {
                "task": "regression",
                "steps": 1,
                "model": {"source": "builtin", "name": "mlp"},
                "data": {"source": "builtin", "name": "parity"},
                "lora_rank": 1,
                "trainable": ["*"],
            }
        )


def spec(base_dtype="nf4", **changes):
    document = {
        "task": "causal_lm",
        "steps": 1,
        "gpus": 2,
        "model": {"source": "builtin", "name": "llama"},
        "data": {"source": "builtin", "name": "stdlib"},
        "lora_rank": 1,
        "lora": {"base_dtype": base_dtype},
    }
    return parse_spec({**document, **changes})


class TestPatterns:
    def test_specs_with_equal_patterns_are_equal_and_have_one_hash(self):
        sections = [spec("fp32", lora={"rank_pattern": {"q_proj": rank}}).lora for rank in (2, 2, 3)]
        assert sections[0] == sections[1] != sections[2]
        assert hash(sections[0]) == hash(sections[1])

    @pytest.mark.parametrize("field", ["rank_pattern", "alpha_pattern"])
    def test_fork_with_other_patterns_makes_other_updates(self, field):
        source, fork = spec("fp32"), spec("fp32", lora={field: {"q_proj": 2}})
        assert fixed_differences(source, fork) == [f"lora.{field}"]
        incompatible = [problem.param for problem in incompatible_fields(source, fork)]
        assert incompatible == (["lora.rank_pattern"] if field == "rank_pattern" else [])

    @pytest.mark.parametrize("value", [0, -1, "a", None])
    def test_values_are_positive_numbers(self, value):
        with pytest.raises(SpecError, match=r"lora\.rank_pattern\.q_proj"):
            spec("fp32", lora={"rank_pattern": {"q_proj": value}})


class TestBaseDtype:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"strategy": "dp"}, "`nf4` cannot be combined with strategy `dp`; use `ddp`"),
            (
                {"strategy": "fsdp", "fsdp": {"wrap": "size", "min_params": 100}},
                "`nf4` cannot be combined with wrap `size`, which counts values; use wrap `layer`",
            ),
            (
                {
                    "task": "regression",
                    "model": {"source": "builtin", "name": "mlp"},
                    "data": {"source": "builtin", "name": "parity"},
                },
                "`nf4` is for task `causal_lm`; use `fp32`",
            ),
        ],
    )
    def test_unsupported_combination_names_the_field_and_the_remedy(self, changes, message):
        with pytest.raises(SpecError) as caught:
            resolve(spec(**changes), Site("cuda", "slurm"))
        assert [str(problem) for problem in caught.value.problems] == [f"lora.base_dtype: {message}"]

    def test_bf16_is_sharded_by_size(self):
        resolve(spec("bf16", strategy="fsdp", fsdp={"wrap": "size", "min_params": 100}), Site("cpu", "local"))

    def test_field_has_no_effect_without_adapters(self):
        with pytest.raises(SpecError, match="lora: has no effect without `lora_rank`"):
            resolve(spec(lora_rank=None), Site("cpu", "local"))

    def test_fork_with_another_base_takes_only_the_weights(self):
        assert fixed_differences(spec("bf16"), spec("nf4")) == ["lora.base_dtype"]
        assert incompatible_fields(spec("bf16"), spec("nf4")) == []
