"""Fields of the optimizer that match no trained parameter of a model, by the rules of the worker. Pure functions."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from service.plugins.planner.model_structure import Parameter
from trainyard.contract.problems import Problem, nearest_names


def optimizer_problem(
    name: str,
    scaled: Sequence[str],
    no_decay: Sequence[str],
    trained: Sequence[Parameter],
    hidden: Sequence[Parameter],
    *,
    adapted: bool,
) -> Problem | None:
    """Return why an optimizer's fields do not match the parameters that it updates.

    Args:
        name: The optimizer's.
        scaled: The patterns of `lr_scale`.
        no_decay: The kinds of `no_decay`.
        trained: The trained parameters.
        hidden: The matrices that Muon updates.
        adapted: The run trains adapters.
    """
    names = [parameter.name for parameter in trained]
    for pattern in scaled:
        if not any(fnmatchcase(one, pattern) for one in names):
            closest = f"the closest: {nearest_names(pattern, names, count=3)}"
            advice = "set `lora_rank` for adapters" if "lora_" in pattern and not adapted else closest
            message = f"`{pattern}` matches no trained parameter of the model; {advice}"
            return Problem(param="optimizer.lr_scale", message=message)
    if name == "muon" and not hidden:
        message = "`muon` is for matrices of hidden layers, and none is trained; use `adamw`"
        return Problem(param="optimizer.name", message=message)
    kinds = {_decay_kind(parameter) for parameter in trained}
    for kind in no_decay:
        if kind not in kinds:
            message = f"has no effect for `{kind}`: the run trains no such parameter; remove it"
            return Problem(param="optimizer.no_decay", message=message)
    return None


def _decay_kind(parameter: Parameter) -> str | None:
    """Return the kind of a parameter in `no_decay`, as in `worker/engine/parameter_groups.py`."""
    if parameter.kind in ("embedding", "norm"):
        return f"{parameter.kind}s"
    return "biases" if parameter.name.endswith("bias") else None
