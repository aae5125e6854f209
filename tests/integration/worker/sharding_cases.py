"""The runs that test_sharding compares: problems, and the ways to spread them over ranks."""

from trainyard.contract.templates import load_template

STAGES = (2, 1, 3, 4)
"""Numbers of ranks, in the order of the resharding chain."""

SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
ADAMW = {"name": "adamw", "lr": 0.003, "weight_decay": 0.1}


def mlp(**changes):
    document = {
        **load_template("mlp_parity").spec,
        "seed": 3,
        "epochs": None,
        "steps": 20,
        "model": {"source": "builtin", "name": "mlp", "sizes": [3, 8, 5, 3]},
    } | changes
    if document["data"].get("eval_fraction"):
        document["evaluation"] = {"every_steps": 7}
    return document


def gpt(*, layers=2, tied=True, **changes):
    size = {"layers": layers, "width": 16, "heads": 2, "context": 16, "vocab": 257, "tied": tied}
    return mlp(
        task="causal_lm",
        model={"source": "builtin", "name": "gpt", **size},
        data={"source": "builtin", "name": "stdlib", "eval_fraction": 0.00002},
        **changes,
    )


PROBLEMS = {
    # 47 examples in tens: the last batch has seven, which no number of ranks divides.
    "uneven": mlp(
        data={"source": "builtin", "name": "parity", "examples": 60, "eval_fraction": 0.2167},
        optimizer=SGD | {"clip_norm": 0.3},
    ),
    # 41 examples: the last batch has one, so that some ranks have none; micro-batches of two.
    "starved": mlp(
        data={"source": "builtin", "name": "parity", "examples": 52, "eval_fraction": 0.2115},
        batch={"size": 10, "micro_size": 2},
        optimizer=ADAMW,
    ),
    "tied": gpt(batch={"size": 16, "micro_size": 2}, optimizer=SGD | {"clip_norm": 0.5}),
    "untied": gpt(batch={"size": 7}, optimizer=ADAMW | {"clip_norm": 0.5}, tied=False),
    # Adapters begin at nothing: Adam would turn the rounding of their first gradients into steps.
    "lora": gpt(batch={"size": 16, "micro_size": 2}, optimizer=SGD | {"lr": 0.05}, lora_rank=4, lora={"alpha": 16}),
    "partial": gpt(
        batch={"size": 7}, optimizer=ADAMW | {"clip_norm": 0.5}, tied=False, trainable=["blocks.1.*", "head.*"]
    ),
}
TRAINED_IN_PART = {"lora": (".lora_",), "partial": ("blocks.1.", "head.")}
"""Parts of the names of what these train."""

VARIANTS = {
    "ddp": {"strategy": "ddp"},
    "zero1": {"strategy": "zero1"},
    "zero2": {"strategy": "zero2"},
    "naive": {"strategy": "fsdp", "fsdp": {"wrap": "naive"}},
    "layer": {"strategy": "fsdp"},
    "size": {"strategy": "fsdp", "fsdp": {"wrap": "size", "min_params": 40}},
    "hsdp": {"strategy": "hsdp", "fsdp": {"replicas": 2}},
}
LAYOUTS = [(world, name) for world in (2, 3) for name in VARIANTS if name != "hsdp"] + [(4, "hsdp")]
MATRIX = [
    (world, name, problem)
    for world, name in LAYOUTS
    for problem in PROBLEMS
    if not (world == 3 and name in {"naive", "size"} and PROBLEMS[problem]["task"] == "causal_lm")
    and not (world == 3 and problem in TRAINED_IN_PART and name != "layer")
]
LOW_PRECISION = [
    (2, "zero1", "bf16"),
    (2, "zero2", "fp16"),
    (2, "layer", "bf16"),
    (2, "layer", "fp16"),
    (4, "hsdp", "fp16"),
]

RECOMPUTED = [("full", "zero1"), ("selective", "zero2"), ("full", "layer"), ("selective", "layer"), ("full", "ddp")]
_LOW = gpt(layers=1, steps=50, batch={"size": 8}, optimizer=ADAMW | {"clip_norm": 1.0})
_INF = mlp(precision="fp16", amp={"init_scale": 1024}, steps=12)
_PLANT = {"rank": 1, "step": 5, "value": "inf"}
_RESUMED = mlp(
    steps=12, precision="fp16", amp={"init_scale": 1024}, optimizer=ADAMW, batch={"size": 10, "micro_size": 2}
)
_CHAIN = mlp(
    steps=24,
    optimizer=ADAMW | {"clip_norm": 0.5},
    data={"source": "builtin", "name": "parity", "examples": 47, "eval_fraction": 0},
)
_CHAINED = {
    2: [("ddp", VARIANTS["ddp"], 4), ("layer", VARIANTS["layer"], 8)],
    1: [("single", {"strategy": "single"}, 12)],
    3: [("zero2", VARIANTS["zero2"], 16), ("zero1", VARIANTS["zero1"], 20)],
    4: [("hsdp", VARIANTS["hsdp"], 24)],
}


def cases_on(world):
    """Everything that runs in the one process group of so many ranks."""
    return (_alone() if world == 1 else _together(world)) | {
        f"chain-{name}": {"spec": _CHAIN | how, "run": "chain", "until": until} for name, how, until in _CHAINED[world]
    }


def _alone():
    return {
        **{name: {"spec": problem} for name, problem in PROBLEMS.items()},
        "fp32": {"spec": _LOW},
        "inf": {"spec": _INF, "plant": _PLANT},
        "chain whole": {"spec": _CHAIN},
    }


def _together(world):
    found = {}
    for name in (name for ranks, name in LAYOUTS if ranks == world):
        found[f"inf/{name}"] = {"spec": _INF | VARIANTS[name], "plant": _PLANT}
        run = f"resumed-{world}-{name}"
        found[f"whole/{name}"] = {"spec": _RESUMED | VARIANTS[name]}
        found[f"first/{name}"] = {"spec": _RESUMED | VARIANTS[name], "run": run, "until": 7}
        found[f"rest/{name}"] = {"spec": _RESUMED | VARIANTS[name], "run": run}
    for name, problem in ((name, problem) for ranks, name, problem in MATRIX if ranks == world):
        found[f"{problem}/{name}"] = {"spec": PROBLEMS[problem] | _spread(name, problem)}
    for name, precision in ((name, precision) for ranks, name, precision in LOW_PRECISION if ranks == world):
        found[f"{precision}/{name}"] = {"spec": _LOW | VARIANTS[name] | {"precision": precision} | _scaled(precision)}
    if world == 2:
        found |= {
            f"{how}/{name}": {"spec": PROBLEMS["tied"] | VARIANTS[name] | _again(how)} for how, name in RECOMPUTED
        }
        found |= {
            f"small/{wrap}": {"spec": _small(wrap), "watch_gathered": True} for wrap in ("naive", "layer", "size")
        }
    return found


def _spread(name, problem):
    """Units of the size that suits the model."""
    if name == "size" and PROBLEMS[problem]["task"] == "causal_lm":
        return {"strategy": "fsdp", "fsdp": {"wrap": "size", "min_params": 1050}}
    return VARIANTS[name]


def _scaled(precision):
    return {"amp": {"init_scale": 1024}} if precision == "fp16" else {}


def _again(how):
    return {"activation_checkpointing": how}


def _small(wrap):
    fsdp = {"wrap": wrap, "min_params": 7 if wrap == "size" else None}
    model = {"source": "builtin", "name": "mlp", "sizes": [2, 2, 2, 3]}
    return mlp(steps=2, strategy="fsdp", fsdp=fsdp, model=model)
