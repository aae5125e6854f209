"""The runs that show that each strategy makes the same updates as one process."""

from tests.support.hf import write_lines
from tests.support.pairwise import pairwise, possible_cases
from trainyard.contract.spec.templates import load_template

BATCH = 48
"""Examples in a step; the shares of 1, 2, 3 and 4 ranks can be divided by four."""

VARIANTS = {
    "ddp": {"strategy": "ddp"},
    "zero1": {"strategy": "zero1"},
    "zero2": {"strategy": "zero2"},
    "naive": {"strategy": "fsdp", "fsdp": {"wrap": "naive"}},
    "layer": {"strategy": "fsdp"},
    "size": {"strategy": "fsdp", "fsdp": {"wrap": "size", "min_params": 40}},
    "hsdp": {"strategy": "hsdp", "fsdp": {"replicas": 2}},
}
CHOICES = {
    "variant": ("single", *VARIANTS),
    "ranks": (1, 2, 3, 4),
    "model": ("mlp", "tied", "untied"),
    "trained": ("all", "lora", "partial"),
    "last_batch": ("even", "uneven", "one_example"),
    "optimizer": ("sgd", "adamw"),
    "micro_batches": (1, 4),
    "clipped": (False, True),
}
PROBLEM = ("model", "trained", "last_batch", "optimizer", "clipped")
"""The choices that affect the result; the others only affect the layout."""

EXAMPLES = {"even": 2 * BATCH, "uneven": 2 * BATCH + 7, "one_example": 2 * BATCH + 1}
"""Sizes of the last batch of an epoch: full; seven, which no number of ranks divides; one, for one rank only."""
EVAL_EXAMPLES = 13
STEPS = 5
"""More than one epoch, which has two full batches and the last one."""

SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
ADAMW = {"name": "adamw", "lr": 0.003, "weight_decay": 0.1, "eps": 1e-6}
"""With the usual eps, rounding of the smallest gradients would decide their updates."""
CLIP = {"all": 0.3, "lora": 0.02, "partial": 0.1}
"""Clip norms that are small enough to take effect."""
PARTS = {"mlp": ("2.*", "4.bias"), "tied": ("blocks.1.*", "embedding.weight"), "untied": ("blocks.1.*", "head.*")}


def is_valid(case):
    """Return whether a case is valid: `single` has one rank and several micro-batches, and `hsdp` four ranks.

    Of the others, `layer` alone has four ranks too: with three, which divide no batch, they have the harder layout.
    """
    if case["variant"] == "single":
        return (case["ranks"], case["micro_batches"]) == (1, 4)
    return case["ranks"] == 4 if case["variant"] == "hsdp" else case["ranks"] < 4 or case["variant"] == "layer"


def problem_name(case):
    clipped = ("clipped",) if case["clipped"] else ()
    return "-".join((case["model"], case["trained"], case["last_batch"], case["optimizer"], *clipped))


def _has_reference(case, chosen):
    """Return whether another case has the same reference run."""
    return any(all(case[choice] == other[choice] for choice in PROBLEM) for other in chosen)


POSSIBLE = possible_cases(CHOICES, is_valid)
MATRIX = pairwise(POSSIBLE, _has_reference)


def case_name(case):
    return f"{case['variant']}-{case['ranks']}/{problem_name(case)}-in-{case['micro_batches']}"


def mlp(**changes):
    document = {
        **load_template("mlp_parity").spec,
        "seed": 3,
        "epochs": None,
        "steps": 20,
        "model": {"source": "builtin", "name": "mlp", "sizes": [3, 8, 5, 3]},
    } | changes
    data = document["data"]
    if data.get("eval_fraction") or data.get("eval_path"):
        document["evaluation"] = {"every_steps": 6}
    return document


def gpt(*, layers=2, tied=True, **changes):
    size = {"layers": layers, "width": 16, "heads": 2, "context": 16, "vocab": 257, "tied": tied}
    data = {"source": "builtin", "name": "stdlib", "eval_fraction": 0.00002}
    model = {"source": "builtin", "name": "gpt", **size}
    return mlp(**({"task": "causal_lm", "model": model, "data": data} | changes))


def write_texts(folder):
    """Write short texts of different lengths, so that the ranks have different numbers of targets."""
    folder.mkdir()
    for name, count in (*EXAMPLES.items(), ("held-out", EVAL_EXAMPLES)):
        write_lines(folder / f"{name}.jsonl", [{"text": f"{n} x {n} = {n * n}"} for n in range(count)])


def specs(case, texts):
    """Return the specs of the reference run and of the case. `texts` is the folder of `write_texts`."""
    optimizer = ADAMW if case["optimizer"] == "adamw" else SGD
    if case["clipped"]:
        optimizer = optimizer | {"clip_norm": CLIP[case["trained"]]}
    problem = _base(case, texts) | _trained(case) | {"optimizer": optimizer, "evaluation": {"every_steps": 3}}
    share = BATCH // case["ranks"] // case["micro_batches"]
    return problem | _micro_batch_size(BATCH), problem | _micro_batch_size(share) | _spread(case)


def _base(case, texts):
    if case["model"] == "mlp":
        total = EXAMPLES[case["last_batch"]] + EVAL_EXAMPLES
        data = {"source": "builtin", "name": "parity", "examples": total, "eval_fraction": EVAL_EXAMPLES / total}
        return mlp(steps=STEPS, data=data)
    files = {"path": str(texts / f"{case['last_batch']}.jsonl"), "eval_path": str(texts / "held-out.jsonl")}
    return gpt(steps=STEPS, tied=case["model"] == "tied", data={"source": "jsonl", "packing": False, **files})


def _trained(case):
    if case["trained"] == "lora":
        return {"lora_rank": 2, "lora": {"alpha": 8}}
    return {"trainable": PARTS[case["model"]]} if case["trained"] == "partial" else {}


def _micro_batch_size(size):
    return {"batch": {"size": BATCH, "micro_size": size}}


def _spread(case):
    """Return the strategy's fields, with a unit size that suits the model."""
    if case["variant"] == "single":
        return {"strategy": "single"}
    if case["variant"] == "size" and case["model"] != "mlp":
        return {"strategy": "fsdp", "fsdp": {"wrap": "size", "min_params": 1050}}
    return VARIANTS[case["variant"]]
