"""The runs of test_sharding: problems, and their layouts on several ranks."""

from tests.integration.worker.parity_matrix import (
    ADAMW,
    MATRIX,
    SGD,
    VARIANTS,
    case_name,
    gpt,
    mlp,
    problem_name,
    specs,
)

STAGES = (2, 1, 3, 4)
"""The numbers of ranks in the order of the resharding chain."""

LAYOUTS = [(2, name) for name in VARIANTS if name != "hsdp"] + [(3, "zero2"), (3, "layer"), (4, "hsdp")]
SLOW_LAYOUTS = [(3, name) for name in ("ddp", "zero1", "naive", "size")]
"""Layouts that are run by the slow tests alone."""

LOW_PRECISION_STEPS = 12
LOW_PRECISION = [
    (2, "zero1", "bf16"),
    (2, "zero2", "fp16"),
    (2, "layer", "bf16"),
    (2, "layer", "reduced"),
    (2, "layer", "fp16"),
    (4, "hsdp", "fp16"),
]

RECOMPUTED = [("full", "zero1"), ("selective", "zero2"), ("full", "layer"), ("selective", "layer"), ("full", "ddp")]
COUNTED_COLLECTIVES = [(2, "ddp"), (2, "zero1"), (2, "zero2"), (2, "layer"), (4, "hsdp")]
"""Runs whose collectives are counted; those on two ranks are also the references for recomputed activations."""

_REFERENCE = gpt(steps=3, batch={"size": 16, "micro_size": 2}, optimizer=SGD | {"clip_norm": 0.5})
_LOW = gpt(layers=1, steps=LOW_PRECISION_STEPS, batch={"size": 8}, optimizer=ADAMW | {"clip_norm": 1.0})
_INJECTED_INF = {"rank": 1, "step": 2, "value": "inf"}
_GROUPS = {"no_decay": ["biases"], "lr_scale": {"4.*": 0.5}}
_RESUMED = mlp(
    steps=6, precision="fp16", amp={"init_scale": 1024}, optimizer=ADAMW | _GROUPS, batch={"size": 10, "micro_size": 2}
)
_CHAIN = mlp(
    steps=12,
    optimizer=ADAMW | _GROUPS | {"clip_norm": 0.5},
    data={"source": "builtin", "name": "parity", "examples": 47, "eval_fraction": 0},
)
_CHAIN_STAGES = {
    2: [("ddp", VARIANTS["ddp"], 2), ("layer", VARIANTS["layer"], 4)],
    1: [("single", {"strategy": "single"}, 6)],
    3: [("zero2", VARIANTS["zero2"], 8), ("zero1", VARIANTS["zero1"], 10)],
    4: [("hsdp", VARIANTS["hsdp"], 12)],
}


def cases_on(world, texts):
    """Return the runs of one process group with `world` ranks. `texts` is the folder of `write_texts`."""
    chain = {
        f"chain-{name}": {"spec": _CHAIN | layout, "run": "chain", "until": until}
        for name, layout, until in _CHAIN_STAGES[world]
    }
    parity = {
        case_name(case): {"spec": specs(case, texts)[1], "single": case["variant"] == "single"}
        for case in MATRIX
        if case["ranks"] == world
    }
    return (_on_one_rank(texts) if world == 1 else _on_several_ranks(world)) | parity | chain


def _on_one_rank(texts):
    return {
        **{problem_name(case): {"spec": specs(case, texts)[0]} for case in MATRIX},
        "fp32": {"spec": _LOW},
        "inf": {"spec": _RESUMED, "plant": _INJECTED_INF},
        "chain whole": {"spec": _CHAIN},
    }


def _on_several_ranks(world):
    cases = resumed_cases(LAYOUTS, world)
    for name, precision in ((name, precision) for ranks, name, precision in LOW_PRECISION if ranks == world):
        cases[f"{precision}/{name}"] = {"spec": _LOW | VARIANTS[name] | {"precision": precision} | _scaled(precision)}
    for name in (name for ranks, name in COUNTED_COLLECTIVES if ranks == world):
        cases[f"kept/{name}"] = {"spec": _REFERENCE | VARIANTS[name]}
    if world == 2:
        untied = _REFERENCE | VARIANTS["layer"] | {"model": gpt(tied=False)["model"]}
        cases |= {"untied": {"spec": untied}, "chunked": {"spec": untied, "max_logits": 4 * 257}}
        cases |= {
            f"{layout}/{name}": {"spec": _REFERENCE | VARIANTS[name] | {"activation_checkpointing": layout}}
            for layout, name in RECOMPUTED
        }
        cases |= {
            f"small/{wrap}": {"spec": _small(wrap), "watch_gathered": True} for wrap in ("naive", "layer", "size")
        }
    return cases


def resumed_cases(layouts, world):
    """Return the runs with an infinity, undisturbed and in two parts, of the layouts that have `world` ranks."""
    cases = {}
    for name in (name for ranks, name in layouts if ranks == world):
        case = {"spec": _RESUMED | VARIANTS[name], "plant": _INJECTED_INF}
        parts = case | {"run": f"resumed-{world}-{name}"}
        cases |= {f"whole/{name}": case, f"first/{name}": parts | {"until": 3}, f"rest/{name}": parts}
    return cases


def _scaled(precision):
    if precision == "reduced":
        return {"precision": "bf16", "fsdp": {"reduce_dtype": "bf16"}}
    return {"amp": {"init_scale": 1024}} if precision == "fp16" else {}


def _small(wrap):
    fsdp = {"wrap": wrap, "min_params": 7 if wrap == "size" else None}
    model = {"source": "builtin", "name": "mlp", "sizes": [2, 2, 2, 3]}
    return mlp(steps=2, strategy="fsdp", fsdp=fsdp, model=model)
