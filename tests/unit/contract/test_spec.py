"""Validation errors of a spec with field and message, and lossless round trips."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.training_spec import dump_spec, parse_spec

BASE = {
    "task": "regression",
    "steps": 10,
    "model": {"source": "builtin", "name": "mlp"},
    "data": {"source": "builtin", "name": "parity"},
}
MODEL_MESSAGE = "must be {source: hf, path: ...} or {source: builtin, name: gpt | llama | convnet | mlp, ...}"


def problems(**changes):
    document = {key: value for key, value in {**BASE, **changes}.items() if value != "absent"}
    with pytest.raises(SpecError) as caught:
        parse_spec(document)
    return [str(problem) for problem in caught.value.problems]


class TestConflicts:
    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"epochs": 1}, "steps: `steps` and `epochs` are both set; remove one"),
            (
                {"schedule": {"warmup_steps": 2, "warmup_ratio": 0.1}},
                "schedule.warmup_ratio: cannot be combined with `schedule.warmup_steps`; remove one of them",
            ),
            ({"steps": None}, "steps: set `steps` or `epochs`"),
            ({"gpus": 64}, "batch.size: is 32, smaller than the 64 ranks of `gpus`"),
            ({"model": None}, "model: is required for task `regression`"),
            ({"data": "absent"}, "data: is required for task `regression`"),
            ({"task": "custom"}, "target: is required for task `custom`"),
            ({"task": "script"}, "argv: is required for task `script`"),
            (
                {"task": "script", "argv": ["-c"], "launch": {"mode": "exec"}},
                "argv: `-c` is neither a file inside the uploaded folder, nor an absolute path, nor a program",
            ),
            ({"task": "script", "argv": [], "launch": {"mode": "exec"}}, "argv: must begin with a program"),
            (
                {
                    "task": "script",
                    "argv": ["make"],
                    "launch": {"mode": "exec", "per": "job"},
                    "gpus": 4,
                    "resources": {"gpus_per_node": 2},
                },
                "launch.per: is `job`, which is one process on one node, but `resources.gpus_per_node` spreads 4 GPUs "
                "over 2 nodes; use `node`",
            ),
            ({"target": "a:b"}, "target: is for task `custom` only"),
            ({"argv": ["x"]}, "argv: is for task `script` only"),
            ({"task": "custom", "target": "my task"}, "target: must be `module:function`, like `my_task:build`"),
            ({"code": "sha256:" + "0" * 64}, "code: is for tasks `custom` and `script` only"),
            (
                {"task": "script", "argv": []},
                "argv: must begin with a file of the uploaded folder, an absolute path, or `-m` and a module",
            ),
            (
                {"task": "script", "argv": ["../x.py"]},
                "argv: `../x.py` is neither a file inside the uploaded folder, nor an absolute path, nor `-m`",
            ),
            (
                {"task": "script", "argv": ["../../x.py"], "launch": {"folder": "exp"}},
                "argv: `../../x.py` is neither a file inside the uploaded folder, nor an absolute path, nor `-m`",
            ),
            (
                {"task": "script", "argv": ["x.py"], "launch": {"folder": "../exp"}},
                "launch.folder: must be a folder of the uploaded code, relative to its root, without `..`",
            ),
            ({"task": "script", "argv": ["-m"]}, "argv: `-m` needs a module after it"),
            (
                {"strategy": "single", "gpus": 2},
                "gpus: is 2, but strategy `single` has exactly one rank; use `ddp` or set `gpus: 1`",
            ),
            ({"batch": {"size": 8, "micro_size": 9}}, "batch.micro_size: is 9, larger than `batch.size` 8"),
            (
                {"optimizer": {"name": "muon", "momentum": 0}},
                "optimizer.momentum: is 0, and `muon` needs a momentum; remove the field for the default, 0.95",
            ),
            ({"ema": {"every": 11}}, "ema.every: is 11, more than the run's 10 steps"),
            ({"schedule": {"warmup_steps": 11}}, "schedule.warmup_steps: is 11, more than the run's 10 steps"),
            (
                {"strategy": "hsdp", "gpus": 4, "fsdp": {"replicas": 3}},
                "fsdp.replicas: is 3, which does not divide `gpus` 4",
            ),
            (
                {"strategy": "hsdp", "gpus": 2, "fsdp": {"replicas": 4}},
                "gpus: is 2, fewer than `fsdp.replicas` 4; each replica needs a rank",
            ),
        ],
    )
    def test_each_message_has_the_field_and_a_fix(self, changes, expected):
        assert problems(**changes) == [expected]

    def test_all_problems_are_reported_at_once(self):
        assert [line.partition(":")[0] for line in problems(gpus=64, steps=None, model=None)] == [
            "steps",
            "batch.size",
            "model",
        ]

    def test_script_needs_no_length_and_no_data(self):
        assert parse_spec({"task": "script", "argv": ["python", "train.py"]}).steps is None


class TestFields:
    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"stepz": 1}, "stepz: unknown field; did you mean `steps`?"),
            ({"zzz": 1}, "zzz: unknown field"),
            ({"optimzer": {"lr": 1}}, "optimzer: unknown field; did you mean `optimizer`?"),
            ({"bacth": {"size": 1}}, "bacth: unknown field; did you mean `batch`?"),
            ({"optimzer": {"lr": 1, "name": "sgd"}}, "optimzer: unknown field; did you mean `optimizer`?"),
            ({"optimizer": {"lrr": 1}}, "optimizer.lrr: unknown field; did you mean `optimizer.lr`?"),
            ({"lr": 1}, "lr: unknown field; did you mean `optimizer.lr`?"),
            ({"learning_rate": 1}, "learning_rate: unknown field; use `optimizer.lr`"),
            (
                {"model": {"source": "builtin", "name": "llama", "kv_heads": 2}},
                "model.kv_heads: unknown field; use `model.key_value_heads`",
            ),
            ({"optimizer": {"learning_rate": 1}}, "optimizer.learning_rate: unknown field; use `optimizer.lr`"),
            ({"lora": {"r": 4}}, "lora.r: unknown field; use `lora_rank`"),
            (
                {"data": {"source": "builtin", "name": "digits", "path": "/x"}},
                "data.path: unknown field; `path` is for source `jsonl`; builtin data sets have a `name`",
            ),
            (
                {"checkpoint": {"keep_best": {"metrc": "a"}}},
                "checkpoint.keep_best.metrc: unknown field; did you mean `checkpoint.keep_best.metric`?",
            ),
            ({"model": {"name": "mlp", "sizs": [2, 2]}}, "model.sizs: unknown field; did you mean `model.sizes`?"),
            (
                {"data": {"source": "jsonl", "path": "/x", "max_lenght": 3}},
                "data.max_lenght: unknown field; did you mean `data.max_length`?",
            ),
            ({"optimizer": {"strategi": 1}}, "optimizer.strategi: unknown field"),
            ({"optimizer": {"momentun": 1}}, "optimizer.momentun: unknown field; did you mean `optimizer.momentum`?"),
            ({"checkpoint": {"asinc": True}}, "checkpoint.asinc: unknown field; did you mean `checkpoint.async`?"),
            ({"model": {"name": "mlp", "depth": 3}}, "model.depth: unknown field"),
            ({"gpus": 0}, "gpus: must be greater than or equal to 1"),
            ({"gpus": True}, "gpus: must be a number, not true or false"),
            ({"gpus": "two"}, "gpus: must be a whole number"),
            ({"gpus": 1.5}, "gpus: must be a whole number"),
            ({"optimizer": {"lr": True}}, "optimizer.lr: must be a number, not true or false"),
            ({"optimizer": {"lr": "nan"}}, "optimizer.lr: must be a finite number"),
            ({"optimizer": {"lr": 0}}, "optimizer.lr: must be greater than 0"),
            ({"optimizer": {"betas": [0.9]}}, "optimizer.betas.1: is required"),
            ({"name": "two\nlines"}, "name: contains a character that is not allowed"),
            ({"name": "tab\tbed"}, "name: contains a character that is not allowed"),
            ({"name": "sep\u2028arated"}, "name: contains a character that is not allowed"),
            ({"name": ""}, "name: must have at least 1 character"),
            (
                {"resources": {"partition": "gpu; rm"}},
                "resources.partition: contains a character that is not allowed",
            ),
            ({"resources": {"account": "$(id)"}}, "resources.account: contains a character that is not allowed"),
            ({"environment": {"spack": "base"}}, "environment.spack: unknown field"),
            ({"task": "absent"}, "task: is required"),
            ({"model": {"source": "builtin", "name": "resnet"}}, f"model: {MODEL_MESSAGE}"),
            ({"model": "mlp"}, f"model: {MODEL_MESSAGE}"),
        ],
    )
    def test_each_message_starts_with_its_field(self, changes, expected):
        assert problems(**changes) == [expected]

    def test_invalid_environment_name_is_rejected(self):
        (problem,) = problems(environment={"variables": {"lower": "x"}})
        assert problem.startswith("environment.variables.lower")

    @pytest.mark.parametrize("text", ["1e-4", "0.0001", " 1E-4 "])
    def test_numbers_in_yaml_text_become_numbers(self, text):
        assert parse_spec({**BASE, "optimizer": {"lr": text}}).optimizer.lr == 1e-4

    def test_spec_is_immutable(self):
        with pytest.raises(ValueError, match="frozen"):
            parse_spec(BASE).gpus = 2


NAMES = st.text(
    st.characters(max_codepoint=0x2FFF, exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"]), min_size=1
).filter(lambda name: len(name) <= 120)
SPECS = st.fixed_dictionaries(
    {
        "task": st.just("regression"),
        "model": st.fixed_dictionaries({"name": st.just("mlp"), "sizes": st.lists(st.integers(1, 9), min_size=2)}),
        "data": st.just({"source": "builtin", "name": "parity"}),
        "steps": st.integers(1, 2**53),
        "batch": st.fixed_dictionaries({"size": st.integers(64, 2**53), "micro_size": st.sampled_from(["auto", 3])}),
    },
    optional={
        "name": NAMES,
        "gpus": st.integers(1, 64),
        "precision": st.sampled_from(["auto", "fp32", "bf16", "fp16", "fp8"]),
        "optimizer": st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(["sgd", "adamw", "lion", "adafactor", "muon"]),
                "lr": st.floats(1e-300, 1e300),
                "clip_norm": st.none() | st.floats(1e-9, 9),
            },
        ),
        "checkpoint": st.fixed_dictionaries({"async": st.booleans()}),
        "environment": st.fixed_dictionaries(
            {
                "modules": st.lists(st.sampled_from(["gcc/12.2", "cuda"]), max_size=32),
                "setup": st.lists(st.just("export A=1"), max_size=32),
            },
            optional={"python": st.just("/opt/python")},
        ),
        "after": st.lists(st.integers(0, 99), max_size=32, unique=True).map(
            lambda numbers: [f"job_{number:026}{':ended' * (number % 2)}" for number in numbers]
        ),
        "metadata": st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "x", "ü"])),
        "trainable": st.lists(st.sampled_from(["*.bias", "head.*"]), min_size=1),
        "seed": st.integers(0, 2**53),
    },
)


class TestOptimizerDefaults:
    @pytest.mark.parametrize(
        ("name", "momentum", "betas"),
        [
            ("sgd", 0.0, (0.9, 0.999)),
            ("adamw", 0.0, (0.9, 0.999)),
            ("lion", 0.0, (0.9, 0.99)),
            ("muon", 0.95, (0.9, 0.999)),
        ],
    )
    def test_defaults_depend_on_the_name(self, name, momentum, betas):
        optimizer = parse_spec({**BASE, "optimizer": {"name": name}}).optimizer
        assert (optimizer.momentum, optimizer.betas) == (momentum, betas)
        assert parse_spec(dump_spec(parse_spec({**BASE, "optimizer": {"name": name}}))).optimizer == optimizer

    def test_given_values_take_precedence(self):
        optimizer = parse_spec({**BASE, "optimizer": {"name": "muon", "momentum": 0.9}}).optimizer
        assert optimizer.momentum == 0.9


class TestNames:
    @pytest.mark.parametrize(
        "character", ["\u061c", "\u200b", "\u200f", "\u202e", "\u2066", "\u2069", "\ufeff"], ids=ascii
    )
    def test_a_name_with_invisible_characters_is_refused(self, character):
        (problem,) = problems(name=f"run{character}1")
        assert problem.startswith("name: ")

    @pytest.mark.parametrize("name", ["Größe", "学習", "run 1 \N{ROCKET}", "a\u200db"])
    def test_names_in_any_language_are_accepted(self, name):
        assert parse_spec({**BASE, "name": name}).name == name


class TestRoundTrip:
    @given(SPECS)
    def test_serialized_spec_parses_to_an_equal_spec(self, document):
        document["model"]["sizes"] = document["model"]["sizes"][:64]
        spec = parse_spec(document)
        written = dump_spec(spec)
        assert parse_spec(written) == spec
        assert dump_spec(parse_spec(written)) == written

    def test_serialized_spec_uses_the_public_field_names(self):
        written = dump_spec(parse_spec(BASE))
        assert written["checkpoint"]["async"] is True
        assert written["model"]["sizes"] == [2, 2, 2, 3]
        assert math.isclose(written["optimizer"]["lr"], 1e-3)
