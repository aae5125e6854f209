"""Resolution of a spec: every `auto` becomes a value, and unsupported fields are rejected by path."""

from typing import ClassVar

import pytest

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import parse_spec

BASE = {
    "task": "regression",
    "steps": 10,
    "model": {"source": "builtin", "name": "mlp"},
    "data": {"source": "builtin", "name": "parity"},
}
LINES = {
    "task": "causal_lm",
    "model": {"source": "hf", "path": "/m"},
    "data": {"source": "jsonl", "path": "/d"},
}
CPU, CUDA = Site("cpu", "local"), Site("cuda", "slurm")


def params(site=CPU, **changes):
    with pytest.raises(SpecError) as caught:
        resolve(parse_spec({**BASE, **changes}), site)
    return [problem.param for problem in caught.value.problems]


class TestAuto:
    @pytest.mark.parametrize(
        ("site", "gpus", "expected"),
        [
            (CPU, 1, ("single", "fp32", "gloo")),
            (CPU, 2, ("ddp", "fp32", "gloo")),
            (CUDA, 1, ("single", "bf16", "nccl")),
            (CUDA, 8, ("ddp", "bf16", "nccl")),
        ],
    )
    def test_auto_becomes_a_value(self, site, gpus, expected):
        resolved = resolve(parse_spec({**BASE, "gpus": gpus}), site)
        assert (resolved.strategy, resolved.precision, resolved.backend) == expected

    @pytest.mark.parametrize(
        ("site", "changes", "compiled"),
        [
            (CPU, {"steps": 1000}, False),
            (CUDA, {"steps": 50}, False),
            (CUDA, {"steps": 51}, True),
            (CUDA, {"steps": None, "epochs": 1}, True),
            (CUDA, {"steps": 1000, "strategy": "dp", "gpus": 2}, False),
        ],
    )
    def test_long_runs_on_gpus_are_compiled(self, site, changes, compiled):
        resolved = resolve(parse_spec({**BASE, "compile": "auto"} | changes), site)
        assert resolved.compile is compiled
        assert resolve(resolved, site) == resolved

    def test_models_of_users_are_compiled_only_if_the_spec_states_it(self):
        own = {"task": "custom", "target": "m:f", "code": "sha256:" + "0" * 64, "steps": 1000}
        for value, compiled in (("auto", False), (True, True)):
            assert resolve(parse_spec({**own, "compile": value}), CUDA).compile is compiled

    def test_compilation_depends_on_an_accelerator_that_is_not_known(self):
        document = {**BASE, "precision": "fp32", "backend": "gloo", "steps": 100}
        site = Site(None, "slurm")
        assert resolve(parse_spec({**document, "compile": "auto"}), site).compile == "auto"
        assert resolve(parse_spec({**document, "compile": "auto", "steps": 10}), site).compile is False
        assert parse_spec(document).compile is False

    def test_compile_takes_no_other_text(self):
        with pytest.raises(SpecError, match="must be `true`, `false` or `auto`"):
            parse_spec({**BASE, "compile": "always"})

    @pytest.mark.parametrize("gpus", [1, 2])
    def test_auto_becomes_fsdp_for_parameters_in_host_memory(self, gpus):
        offloaded = {**BASE, "gpus": gpus, "fsdp": {"cpu_offload": True}, "precision": "fp16"}
        assert resolve(parse_spec(offloaded), CUDA).strategy == "fsdp"
        with pytest.raises(SpecError, match="use `fsdp`, also on one GPU"):
            resolve(parse_spec({**offloaded, "strategy": "ddp"}), CUDA)

    def test_explicit_values_are_unchanged(self):
        health = {"stall_timeout_minutes": 30}
        chosen = {"strategy": "ddp", "precision": "fp16", "backend": "gloo", "gpus": 1, "health": health}
        resolved = resolve(parse_spec({**BASE, **chosen}), CUDA)
        assert resolved == parse_spec({**BASE, **chosen})

    def test_a_resolved_spec_resolves_to_itself(self):
        once = resolve(parse_spec({**BASE, "gpus": 2}), CPU)
        assert resolve(once, CPU) == once


class TestUnsupported:
    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"strategy": "dp", "gpus": 2}, ["strategy"]),
            ({"strategy": "fsdp", "fsdp": {"cpu_offload": True}}, ["fsdp.cpu_offload"]),
            ({"task": "causal_lm", "model": {"source": "hf", "path": "/m"}}, ["data.name"]),
            ({"model": {"source": "hf", "path": "/m"}}, ["model.source"]),
            ({"data": {"source": "jsonl", "path": "/d"}}, ["data.source"]),
            (
                {
                    "task": "causal_lm",
                    "model": {"source": "hf", "path": "/m"},
                    "data": {"source": "builtin", "name": "stdlib"},
                },
                ["data.name"],
            ),
            ({"lora_rank": 2, "lora": {"merge": True}, "checkpoint": {"export": False}}, ["lora.merge"]),
            (
                {
                    "task": "causal_lm",
                    "model": {"name": "gpt"},
                    "data": {"source": "jsonl", "path": "/d", "format": "chat"},
                },
                ["data.format"],
            ),
            ({"loss": {"label_smoothing": 0.1}}, ["loss"]),
            ({"batch": {"loaders": 2}}, ["batch.loaders"]),
            ({"tf32": True}, ["tf32"]),
            ({"strategy": "ddp", "ddp": {"sync_batchnorm": True}}, ["ddp.sync_batchnorm"]),
            ({"resume_from": "job_1"}, ["resume_from"]),
            ({"backend": "nccl"}, ["backend"]),
            ({"resources": {"partition": "gpu"}}, ["resources"]),
            ({"model": {"name": "gpt"}}, ["model.name"]),
            ({"data": {"source": "builtin", "name": "digits"}}, ["data.name"]),
        ],
    )
    def test_unsupported_field_is_rejected_by_path(self, changes, expected):
        assert params(**changes) == expected

    def test_all_unsupported_fields_are_reported(self):
        assert params(resume_from="job_1", tf32=True, strategy="dp") == ["tf32", "resume_from", "strategy"]

    def test_cluster_features_are_accepted_on_slurm(self):
        spec = parse_spec({**BASE, "backend": "nccl", "resources": {"partition": "gpu"}})
        resolved = resolve(spec, CUDA)
        assert (resolved.backend, resolved.resources) == (spec.backend, spec.resources)

    def test_stall_timeout_has_a_default_except_for_scripts(self):
        assert resolve(parse_spec(BASE), CPU).health.stall_timeout_minutes == 15
        script = {"task": "script", "argv": ["-m", "mine"], "gpus": 1}
        assert resolve(parse_spec(script), CPU).health.stall_timeout_minutes is None
        watched = {**script, "health": {"stall_timeout_minutes": 5}}
        assert resolve(parse_spec(watched), CPU).health.stall_timeout_minutes == 5
        with pytest.raises(SpecError) as caught:
            resolve(parse_spec({**script, "health": {"on_nan": "skip"}}), CPU)
        assert [problem.param for problem in caught.value.problems] == ["health.on_nan"]

    @pytest.mark.parametrize(
        ("changes", "param"),
        [
            ({"strategy": "dp"}, "strategy"),
            ({"strategy": "zero2", "fsdp": {"cpu_offload": True}}, "fsdp.cpu_offload"),
            ({"strategy": "ddp", "ddp": {"sync_batchnorm": True}}, "ddp.sync_batchnorm"),
            ({"tf32": True, "precision": "fp32"}, "tf32"),
            ({"precision": "fp8"}, "precision"),
            ({"fsdp": {"cpu_offload": True}}, "fsdp.cpu_offload"),
            ({"activation_checkpointing": "offload"}, "activation_checkpointing"),
        ],
    )
    def test_gpu_only_fields_are_rejected_on_cpu(self, changes, param):
        spec = parse_spec({**BASE, **changes})
        with pytest.raises(SpecError) as caught:
            resolve(spec, CPU)
        (problem,) = caught.value.problems
        assert problem.param == param
        assert "needs GPUs" in problem.message
        resolve(spec, CUDA)

    @pytest.mark.parametrize(
        ("changes", "param"),
        [
            ({"strategy": "fsdp", "fsdp": {"cpu_offload": True}, "optimizer": {"name": "muon"}}, "fsdp.cpu_offload"),
            ({"optimizer": {"name": "sgd", "betas": [0.5, 0.5]}}, "optimizer.betas"),
            ({"optimizer": {"name": "lion", "momentum": 0.9}}, "optimizer.momentum"),
            ({"optimizer": {"name": "adafactor", "eps": 1e-6}}, "optimizer.eps"),
            ({"strategy": "fsdp", "fsdp": {"wrap": "naive", "prefetch": 1}}, "fsdp.prefetch"),
            ({"strategy": "dp", "gpus": 4, "resources": {"gpus_per_node": 2}}, "strategy"),
            ({"strategy": "dp", "activation_checkpointing": "full"}, "strategy"),
            ({"strategy": "dp", "activation_checkpointing": "offload"}, "strategy"),
            ({"strategy": "dp", **LINES}, "strategy"),
            ({"strategy": "dp", "compile": True}, "strategy"),
            ({"strategy": "fsdp", "precision": "fp16", "fsdp": {"reduce_dtype": "bf16"}}, "fsdp.reduce_dtype"),
            ({"tf32": True, "precision": "bf16"}, "tf32"),
            ({"precision": "fp8", "lora_rank": 2}, "precision"),
            ({"precision": "fp8", "strategy": "dp"}, "precision"),
            ({"precision": "fp8", "backend": "gloo"}, "precision"),
        ],
    )
    def test_conflicting_fields_are_rejected_on_gpus(self, changes, param):
        assert params(CUDA, **changes) == [param]

    def test_time_limit_is_accepted_on_the_local_backend(self):
        assert resolve(parse_spec({**BASE, "resources": {"time_limit_minutes": 5}}), CPU)


class TestSizes:
    GPT: ClassVar = {"task": "causal_lm", "data": {"source": "builtin", "name": "stdlib"}}
    LINES: ClassVar = {"source": "jsonl", "path": "/d", "max_length": 65}

    @pytest.mark.parametrize(
        ("model", "changes", "expected"),
        [
            ({"vocab": 255}, {}, "model.vocab: is 255, but tokens are bytes; use 256 or more"),
            ({"width": 30, "heads": 4}, {}, "model.width: is 30, which is not a multiple of `model.heads` 4"),
            (
                {"context": 64},
                {"data": LINES},
                "data.max_length: is 65, more than the 64 tokens of `model.context`",
            ),
        ],
    )
    def test_inconsistent_gpt_sizes_are_rejected(self, model, changes, expected):
        assert self.refusal(**{**self.GPT, "model": {"name": "gpt", **model}, **changes}) == expected

    @pytest.mark.parametrize(
        ("model", "expected"),
        [
            ({"vocab": 255}, "model.vocab: is 255, but tokens are bytes; use 256 or more"),
            ({"width": 30}, "model.width: is 30, which is not a multiple of `model.heads` 4"),
            (
                {"width": 12},
                "model.width: is 12, so that a head has 3 dimensions; rotary positions need an even number",
            ),
            ({"key_value_heads": 3}, "model.key_value_heads: is 3, which does not divide `model.heads` 4"),
        ],
    )
    def test_inconsistent_llama_sizes_are_rejected(self, model, expected):
        assert self.refusal(**self.GPT, model={"name": "llama", **model}) == expected

    def test_llama_has_sizes_that_were_left_out(self):
        model = resolve(
            parse_spec(BASE | self.GPT | {"model": {"name": "llama", "width": 4096, "heads": 32}}), CPU
        ).model
        assert (model.feed_forward_width, model.grouped_heads) == (10944, 32)

    def refusal(self, **changes):
        with pytest.raises(SpecError) as caught:
            resolve(parse_spec(BASE | changes), CPU)
        (problem,) = caught.value.problems
        return f"{problem.param}: {problem.message}"


class TestEarlyStopping:
    STOPPING: ClassVar = {"early_stopping": {"patience": 2}}

    def problems(self, **changes):
        with pytest.raises(SpecError) as caught:
            resolve(parse_spec(BASE | self.STOPPING | changes), CPU)
        return [str(problem) for problem in caught.value.problems]

    def test_run_must_be_evaluated_more_than_once(self):
        assert self.problems() == [
            "early_stopping: has no effect without evaluations during the run; set `evaluation.every_steps`"
        ]

    def test_metric_must_be_one_of_the_evaluation(self):
        stopping = {"patience": 2, "metric": "train/loss"}
        assert self.problems(early_stopping=stopping, evaluation={"every_steps": 5}) == [
            "early_stopping.metric: task `regression` has no evaluation metric `train/loss`; use one of eval/loss"
        ]

    def test_evaluation_data_is_required(self):
        data = {"source": "builtin", "name": "parity", "eval_fraction": 0}
        assert self.problems(data=data) == [
            "early_stopping: has no effect without evaluation data; set `data.eval_fraction` above 0"
        ]

    def test_regular_evaluations_suffice(self):
        spec = parse_spec(BASE | self.STOPPING | {"evaluation": {"every_steps": 3}})
        assert resolve(spec, CPU).early_stopping.metric == "eval/loss"

    @pytest.mark.parametrize(
        ("every", "patience", "advice"),
        [
            (3, 3, "use 2 or less, or evaluate more often"),
            (5, 1, "set `evaluation.every_steps` to 4 or less"),
            (9, 2, "set `evaluation.every_steps` to 3 or less"),
            (1, 9, "use 8 or less, or evaluate more often"),
            (2, 10, "use 3 or less, or evaluate more often"),
        ],
    )
    def test_patience_must_end_before_the_run(self, every, patience, advice):
        (problem,) = self.problems(early_stopping={"patience": patience}, evaluation={"every_steps": every})
        before = (BASE["steps"] - 1) // every
        assert problem == (
            f"early_stopping.patience: is {patience}, but only {before} evaluation{'s' if before != 1 else ''} come"
            f"{'' if before != 1 else 's'} before the last step, the first of which is the best so far; {advice}"
        )

    @pytest.mark.parametrize("evaluation", [{"every_steps": 3}, {"every_steps": 4, "first": True}, {"every_steps": 1}])
    def test_patience_of_two_needs_three_evaluations(self, evaluation):
        resolve(parse_spec(BASE | self.STOPPING | {"evaluation": evaluation}), CPU)

    def test_metrics_of_sets_have_their_names(self):
        data = {"source": "jsonl", "path": "/a", "eval_sets": {"books": "/b", "code": "/c"}}
        changes = {"task": "causal_lm", "model": {"source": "builtin", "name": "gpt"}, "data": data}
        stopping = {"patience": 2, "metric": "eval/loss/web"}
        assert self.problems(early_stopping=stopping, evaluation={"every_steps": 5}, **changes) == [
            "early_stopping.metric: task `causal_lm` has no evaluation metric `eval/loss/web`; use one of eval/loss, "
            "eval/mean_token_accuracy, eval/loss/books, eval/loss/code, eval/mean_token_accuracy/books, "
            "eval/mean_token_accuracy/code"
        ]
        assert self.problems(data=data | {"eval_path": "/d"}, **{key: changes[key] for key in ("task", "model")}) == [
            "data.eval_sets: cannot be combined with `data.eval_path`; name that file as one of the sets"
        ]


class TestDecay:
    def problems(self, **schedule):
        with pytest.raises(SpecError) as caught:
            resolve(parse_spec(BASE | {"steps": 40, "schedule": {"name": "wsd", **schedule}}), CPU)
        return [str(problem) for problem in caught.value.problems]

    def test_decay_of_one_step_is_refused(self):
        message = "schedule.decay_ratio: is {}, {} of 40 steps, but the rate decays from the second one on; use 0.05"
        assert self.problems(decay_ratio=0.001) == [message.format(0.001, "0") + " or more"]
        assert self.problems(decay_ratio=0.03) == [message.format(0.03, "1") + " or more"]

    def test_decay_and_warm_up_must_fit_the_run(self):
        assert self.problems(decay_ratio=0.7, warmup_ratio=0.5) == [
            "schedule.decay_ratio: is 0.7, but the warm-up leaves 0.5 of the run; use that or less"
        ]
        assert self.problems(decay_ratio=0.7, warmup_steps=30) == [
            "schedule.decay_ratio: is 0.7, but the warm-up leaves 0.25 of the run; use that or less"
        ]

    @pytest.mark.parametrize(
        "schedule",
        [{"decay_ratio": 0.05}, {"decay_ratio": 1}, {"decay_ratio": 0.9, "warmup_ratio": 0.1}, {"warmup_steps": 36}],
    )
    def test_decay_that_fits_is_accepted(self, schedule):
        resolve(parse_spec(BASE | {"steps": 40, "schedule": {"name": "wsd", **schedule}}), CPU)

    def test_length_in_epochs_is_left_to_the_worker(self):
        schedule = {"name": "wsd", "decay_ratio": 0.001, "warmup_steps": 1000}
        resolve(parse_spec(BASE | {"steps": None, "epochs": 2, "schedule": schedule}), CPU)


class TestNodes:
    def test_ranks_per_node_default_to_the_site(self):
        site = Site("cuda", "slurm", gpus_per_node=4)
        assert resolve(parse_spec({**BASE, "gpus": 8}), site).resources.gpus_per_node == 4
        assert resolve(parse_spec({**BASE, "gpus": 2}), site).resources.gpus_per_node == 2
        own = resolve(parse_spec({**BASE, "gpus": 8, "resources": {"gpus_per_node": 2}}), site)
        assert own.resources.gpus_per_node == 2

    def test_ranks_must_divide_evenly_over_nodes(self):
        uneven = {"gpus": 6, "resources": {"gpus_per_node": 4}}
        assert params(CUDA, **uneven) == ["resources.gpus_per_node"]
        assert params(Site("cuda", "slurm", gpus_per_node=4), gpus=6) == ["resources.gpus_per_node"]

    def test_dp_cannot_span_nodes(self):
        with pytest.raises(SpecError) as caught:
            resolve(parse_spec({**BASE, "strategy": "dp", "gpus": 8}), Site("cuda", "slurm", gpus_per_node=4))
        (problem,) = caught.value.problems
        remedy = "use `ddp`, or set `resources.gpus_per_node` to `gpus`"
        assert problem.param == "strategy"
        assert problem.message == f"`dp` runs in one process and cannot span nodes; {remedy}"

    def test_gpu_type_must_be_a_single_name(self):
        assert params(CUDA, resources={"gpu_type": "a100:8,license:3"}) == ["resources.gpu_type"]


class TestSharding:
    @pytest.mark.parametrize("strategy", ["zero1", "zero2", "fsdp"])
    @pytest.mark.parametrize("gpus", [1, 2, 3])
    def test_sharding_strategy_is_accepted(self, strategy, gpus):
        spec = parse_spec({**BASE, "strategy": strategy, "gpus": gpus})
        assert resolve(spec, CPU).strategy == strategy

    def test_hsdp_replicas_are_accepted(self):
        spec = parse_spec({**BASE, "strategy": "hsdp", "gpus": 4, "fsdp": {"replicas": 2}})
        assert resolve(spec, CPU).fsdp.replicas == 2

    @pytest.mark.parametrize(
        ("strategy", "fsdp", "param"),
        [
            ("fsdp", {"wrap": "size"}, "fsdp.min_params"),
            ("fsdp", {"min_params": 7}, "fsdp.min_params"),
            ("hsdp", {}, "fsdp.replicas"),
            ("zero1", {"replicas": 2}, "fsdp.replicas"),
        ],
    )
    def test_conflicting_sharding_fields_are_rejected(self, strategy, fsdp, param):
        assert params(strategy=strategy, gpus=2, fsdp=fsdp) == [param]


class TestTasksWithoutTraining:
    SCRIPT: ClassVar = {"task": "script", "argv": ["-m", "train"], "gpus": 2}
    CHECK: ClassVar = {"task": "comm_check", "gpus": 2}

    def rejected(self, document):
        with pytest.raises(SpecError) as caught:
            resolve(parse_spec(document), CPU)
        return [str(problem) for problem in caught.value.problems]

    def test_script_keeps_auto_values(self):
        resolved = resolve(parse_spec(self.SCRIPT), CPU)
        assert (resolved.strategy, resolved.precision, resolved.backend) == ("auto", "auto", "auto")
        assert resolve(parse_spec(self.CHECK), CPU).backend == "gloo"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("model", {"name": "mlp"}),
            ("data", {"source": "builtin", "name": "parity"}),
            ("optimizer", {"lr": 0.5}),
            ("batch", {"size": 64}),
            ("precision", "fp16"),
            ("strategy", "ddp"),
            ("steps", 3),
            ("checkpoint", {"every_steps": 3}),
            ("seed", 1),
        ],
    )
    def test_training_fields_are_rejected(self, field, value):
        message = f"{field}: has no effect for task `script`; pass it to your program in `argv`"
        assert self.rejected({**self.SCRIPT, field: value}) == [message]
        assert self.rejected({**self.CHECK, field: value}) == [
            f"{field}: has no effect for task `comm_check`; remove it"
        ]

    def test_script_rejects_a_backend(self):
        assert self.rejected({**self.SCRIPT, "backend": "gloo"}) == [
            "backend: has no effect for task `script`; pass it to your program in `argv`"
        ]

    def test_warning_signal_is_for_scripts(self):
        warning = {"restart": {"signal": {"name": "SIGUSR1"}}}
        assert self.rejected({**self.CHECK, **warning}) == [
            "restart.signal: has no effect for task `comm_check`; it is for `script`"
        ]
        assert params(**warning) == ["restart.signal"]

    @pytest.mark.parametrize(
        ("field", "value"), [("resume_argv", ["--resume"]), ("launch", {"mode": "exec"}), ("keep", ["out"])]
    )
    def test_start_of_a_program_is_for_scripts(self, field, value):
        message = f"{field}: has no effect for task `comm_check`; it is for `script`"
        assert self.rejected({**self.CHECK, field: value}) == [message]

    def test_output_is_in_the_working_directory(self):
        named = parse_spec({**self.SCRIPT, "keep": ["./out/", "a//b", "c.pt"]}).keep
        assert named == ("out", "a/b", "c.pt")
        for path, message in {
            "/x": "relative",
            ".": "name a file",
            "a/../../b": "lead out",
            "a/*.pt": "pattern",
        }.items():
            assert message in self.rejected({**self.SCRIPT, "keep": [path]})[0]

    def test_warning_comes_in_the_second_half_of_the_time(self):
        late = {"restart": {"signal": {"lead_minutes": 6}}, "resources": {"time_limit_minutes": 10}}
        assert self.rejected({**self.SCRIPT, **late}) == [
            "restart.signal.lead_minutes: is 6, more than half of `resources.time_limit_minutes`, 10"
        ]

    def test_comm_check_needs_two_ranks(self):
        assert self.rejected({**self.CHECK, "gpus": 1}) == ["gpus: must be at least 2 for task `comm_check`"]
