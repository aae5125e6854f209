"""The runs of test_lora: a small Llama, trained fully or partly, on JSON lines."""

from tests.support import hf

LORA = {"lora_rank": 4, "lora": {"alpha": 16}}
PARTIAL = {"trainable": ["model.layers.1.*", "model.norm.weight"]}
FULL = {}
ADAMW = {"name": "adamw", "lr": 0.01, "clip_norm": 0.5}
TARGETS = ["q_proj", "v_proj", "down_proj"]

VARIANTS = {
    "ddp": {"strategy": "ddp"},
    "zero1": {"strategy": "zero1"},
    "zero2": {"strategy": "zero2"},
    "layer": {"strategy": "fsdp"},
    "size": {"strategy": "fsdp", "fsdp": {"wrap": "size", "min_params": 3000}},
    "hsdp": {"strategy": "hsdp", "fsdp": {"replicas": 2}},
}
LAYOUTS = [(2, name) for name in VARIANTS if name != "hsdp"] + [(4, "hsdp")]
EXPORTED = ("ddp", "layer")
STEPS = 4
PROBLEMS = ("lora", "partial", "full", "named")
TRAINED = [
    (world, name, problem)
    for world, name in LAYOUTS
    for problem in (PROBLEMS if name in EXPORTED else ("lora", "partial"))
]
"""The problems of each layout; the strategies that export nothing share their code with `layer`."""


BUILTIN = {
    "gpt": (
        "causal_lm",
        {"name": "gpt", "layers": 2, "width": 16, "heads": 2, "context": 16, "vocab": 257},
        {"name": "stdlib", "eval_fraction": 0.00002},
    ),
    "llama": (
        "causal_lm",
        {"name": "llama", "layers": 2, "width": 16, "heads": 4, "key_value_heads": 2, "context": 16, "vocab": 257},
        {"name": "stdlib", "eval_fraction": 0.00002},
    ),
    "mlp": ("regression", {"name": "mlp", "sizes": [4, 8, 5, 3]}, {"name": "parity", "eval_fraction": 0}),
    "convnet": ("image_classification", {"name": "convnet", "channels": 4}, {"name": "digits"}),
}


class Cases:
    """The runs with one folder of models and data."""

    def __init__(self, folder):
        self.folder = folder
        hf.save_llama(folder / "plain")
        hf.save_llama(folder / "tied", tied=True)
        hf.save_llama(folder / "deeper", tied=True, layers=3)
        self.files = {
            "text": hf.write_lines(folder / "text.jsonl", hf.texts(30)),
            "chat": hf.write_lines(folder / "chat.jsonl", hf.chats()),
            "completion": hf.write_lines(folder / "completion.jsonl", hf.completions()),
        }
        self.problems = {
            "lora": self.spec("tied", "chat", LORA, eval_path=str(self.files["chat"])),
            "partial": self.spec("tied", "completion", PARTIAL, packing=False),
            "full": self.spec("tied", "text", FULL),
            "named": self.spec("plain", "text", {"lora_rank": 4, "lora": {"targets": TARGETS}}),
        }

    def spec(self, model, data, trained, **options):
        return {
            "version": 1,
            "task": "causal_lm",
            "precision": "fp32",
            "seed": 5,
            "model": {"source": "hf", "path": str(self.folder / model)},
            "data": {"source": "jsonl", "path": str(self.files[data]), "max_length": 48, **options},
            "steps": STEPS,
            "batch": {"size": 10, "micro_size": 3},
            "optimizer": ADAMW,
            "log": {"every_steps": 1},
            **trained,
        }

    def on(self, world):
        return self.on_one_rank() if world == 1 else self.on_several_ranks(world)

    def on_one_rank(self):
        rest = {"rest/single": {"spec": self.problems["lora"], "run": "moved"}}
        return {name: {"spec": spec} for name, spec in self.problems.items()} | rest | self._refused()

    def on_several_ranks(self, world):
        cases = {}
        for variant in (name for ranks, name in LAYOUTS if ranks == world):
            for name in (problem for *layout, problem in TRAINED if layout == [world, variant]):
                spec = self.problems[name]
                cases[f"{name}/{variant}"] = {"spec": spec | VARIANTS[variant]}
                if variant in EXPORTED:
                    cases[f"{name}/{variant}"]["export"] = str(self.folder / f"{name}-{variant}")
        if world == 2:
            for variant in EXPORTED:
                cases |= self._resumed(variant)
                recompute = {"activation_checkpointing": "full" if variant == "ddp" else "selective"}
                cases[f"again/{variant}"] = {"spec": self.problems["lora"] | VARIANTS[variant] | recompute}
                cases[f"merged/{variant}"] = self._exported(
                    "merged", LORA | {"lora": {"alpha": 16, "merge": True}}, variant
                )
                cases[f"bf16/{variant}"] = self._exported("bf16", LORA | {"precision": "bf16"}, variant)
            cases |= {f"builtin-{name}": self._builtin(name) for name in BUILTIN}
            cases["reads/lora"] = self._counting_reads("lora", "layer")
            cases["reads/full"] = self._counting_reads("full", "ddp")
        return cases

    def _counting_reads(self, name, variant):
        return {"spec": self.problems[name] | VARIANTS[variant] | {"log": {"every_steps": 5}}, "count_reads": True}

    def _builtin(self, name):
        """Return the spec of sharded adapters on a builtin model."""
        task, model, data = BUILTIN[name]
        spec = self.problems["lora"] | {"task": task, "strategy": "fsdp", "lora_rank": 2}
        spec |= {"model": {"source": "builtin", **model}, "data": {"source": "builtin", **data}}
        return {"spec": spec, "export": str(self.folder / f"builtin-{name}")}

    def _exported(self, name, trained, variant):
        spec = self.spec("plain", "chat", trained) | VARIANTS[variant]
        return {"spec": spec, "export": str(self.folder / f"{name}-{variant}")}

    def _resumed(self, variant):
        spec = self.problems["lora"] | VARIANTS[variant]
        run = "moved" if variant == "layer" else f"resumed-{variant}"
        cases = {f"first/{variant}": {"spec": spec, "run": run, "until": 2}}
        return cases if variant == "layer" else cases | {f"rest/{variant}": {"spec": spec, "run": run}}

    def _refused(self):
        """Return runs that try to resume the LoRA run's checkpoint with another spec."""
        spec = self.problems["lora"]
        other = spec["model"] | {"path": str(self.folder / "deeper")}
        changes = {
            "changed rank": {"lora_rank": 8},
            "changed targets": {"lora": {"targets": ["q_proj"]}},
            "no adapters": {"lora_rank": None, "lora": {}},
            "another model": {"model": other},
        }
        return {name: {"spec": spec | change, "run": "moved"} for name, change in changes.items()}
