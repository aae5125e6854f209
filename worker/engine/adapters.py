"""Low-rank adapters (LoRA, arXiv:2106.09685), added by peft inside the model: W x becomes W x + (alpha / r) B A x.

With rsLoRA (arXiv:2312.03732) the factor is alpha / sqrt(r). With DoRA (arXiv:2402.09353) the norms of the columns are
trained, too: W + s B A becomes m (W + s B A) / |W + s B A|.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from torch import nn

from trainyard.contract.problems import nearest_names
from trainyard.contract.spec.layer_patterns import matches_layer, value_of
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.core.random_state import seed_generators
from worker.engine.adapter_rules import ADAPTER

Value = TypeVar("Value")

_INSTALL_HINT = "Install what `pip install 'trainyard[hf]'` does where the workers run."


def add_adapters(model: nn.Module, spec: TrainingSpec) -> None:
    """Freeze the model and add adapters to its target layers in place. They depend on the seed alone.

    Raises:
        RefusedError: A target matches nothing, the rank exceeds a target's size, or peft is not installed.
    """
    try:
        from peft import inject_adapter_in_model
    except ImportError as error:
        raise RefusedError(f"lora_rank: LoRA needs peft, which cannot be imported: {error}", _INSTALL_HINT) from None
    config = adapter_config(model, spec)
    seed_generators(spec.seed)
    inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    from worker.engine.lora_linear import use_lora_linear

    use_lora_linear(model)


def adapter_config(model: nn.Module, spec: TrainingSpec) -> Any:
    """Return peft's configuration for a model without adapters; it is part of the adapter's export."""
    from peft import LoraConfig

    assert spec.lora_rank is not None
    whole = whole_modules(model, spec.lora.modules_to_save)
    if isinstance(spec.model, HfModel):
        _check_statistics(model)
        if spec.task_kind.classifies:
            whole = _with_head(model, whole)
    targets = [name for name in adapter_targets(model, spec.lora.targets) if not _inside(name, whole)]
    ranks = {name: value_of(name, spec.lora.rank_pattern, spec.lora_rank) for name in targets}
    if spec.lora.targets == "auto":
        targets = [name for name in targets if _divides_groups(model, name, ranks[name])]
    if not targets:
        raise RefusedError("lora.targets: every target is in a module of lora.modules_to_save")
    for rank in sorted({ranks[name] for name in targets}):
        field = "lora_rank" if rank == spec.lora_rank else "lora.rank_pattern"
        _check_rank(model, [name for name in targets if ranks[name] == rank], rank, field)
    modules = [name for name, _ in model.named_modules()]
    return LoraConfig(
        task_type=spec.task_kind.peft_type if isinstance(spec.model, HfModel) else None,
        base_model_name_or_path=spec.model.path if isinstance(spec.model, HfModel) else None,
        r=spec.lora_rank,
        lora_alpha=spec.lora.alpha,
        lora_dropout=spec.lora.dropout,
        target_modules=shortest_target_names(targets, modules),
        use_rslora=spec.lora.rslora,
        use_dora=spec.lora.dora,
        rank_pattern=_peft_pattern("lora.rank_pattern", targets, spec.lora.rank_pattern, spec.lora_rank),
        alpha_pattern=_peft_pattern("lora.alpha_pattern", targets, spec.lora.alpha_pattern, spec.lora.alpha),
        modules_to_save=_saved_names(whole, modules) if whole else None,
    )


def _peft_pattern(field: str, targets: list[str], patterns: Mapping[str, Value], default: Value) -> dict[str, Value]:
    """Return the values of the targets that differ from the default, as peft names them: by the ends of names.

    Raises:
        RefusedError: A pattern matches no target.
    """
    for pattern in patterns:
        if not any(matches_layer(pattern, target) for target in targets):
            existing = dict.fromkeys(map(_last_part, targets))
            raise RefusedError(
                f"{field}: `{pattern}` matches no layer that is adapted",
                f"There are: {nearest_names(pattern, existing, count=20)}.",
            )
    values = {target: value_of(target, patterns, default) for target in targets}
    changed = {target for target in targets if values[target] != default}
    # peft would give a name that ends in another name the value of the shorter name.
    named = [t for t in targets if t in changed or any(t.endswith(f".{other}") for other in changed)]
    return {re.escape(target): values[target] for target in sorted(named, key=len, reverse=True)}


def whole_modules(model: nn.Module, patterns: Collection[str]) -> list[str]:
    """Return the names of the modules that `lora.modules_to_save` names, in the order of the model.

    Raises:
        RefusedError: A pattern matches no module with parameters, a module shares a parameter with another
            module, or is a list, which has no forward.
    """
    modules = {name: module for name, module in model.named_modules() if name and _has_parameters(module)}
    chosen: set[str] = set()
    for pattern in patterns:
        matching = [name for name in modules if matches_layer(pattern, name)]
        if not matching:
            existing = dict.fromkeys(map(_last_part, modules))
            raise RefusedError(
                f"lora.modules_to_save: `{pattern}` matches no module with parameters",
                f"This model has: {nearest_names(pattern, existing, count=20)}.",
            )
        chosen |= set(matching)
    for name in chosen:
        if isinstance(modules[name], nn.ModuleList | nn.ModuleDict):
            raise RefusedError(f"lora.modules_to_save: `{name}` is a list of modules", f"Use `{name}.*`.")
        if _shares_parameters(model, name):
            raise RefusedError(
                f"lora.modules_to_save: `{name}` shares a parameter with another module, which would keep the old one",
                "Leave it out, or use a model without tied weights.",
            )
    # A module inside another module is trained with it.
    return [name for name in modules if name in chosen and not _inside(name, chosen - {name})]


def _with_head(model: nn.Module, whole: list[str]) -> list[str]:
    """Return these modules and the modules of a classifier's head, which may be new.

    The head is all modules beside the body, and the pooler of the body's outputs.

    Raises:
        RefusedError: The head is inside the body, and no module is named.
    """
    body = getattr(model, "base_model_prefix", "")
    children = dict(model.named_children())
    if body not in children:
        if whole:
            return whole
        raise RefusedError(
            "lora_rank: the head of this model cannot be told from its body, and it must be trained whole",
            f"Name it in lora.modules_to_save. The model has: {', '.join(children)}.",
        )
    named = [(name, module) for name, module in model.named_modules() if name and _has_parameters(module)]
    head = {name for name, _ in named if (name in children and name != body) or name.endswith(".pooler")}
    chosen = head | set(whole)
    return [name for name, _ in named if name in chosen and not _inside(name, chosen - {name})]


def _check_statistics(model: nn.Module) -> None:
    """Raise RefusedError: the model has values that change in training and are no part of an adapter's file."""
    kinds = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
    if any(isinstance(module, kinds) and module.track_running_stats for module in model.modules()):
        raise RefusedError(
            "lora_rank: the model has batch normalization, whose statistics change in training and are no part of "
            "adapters",
            "Train the whole model, without lora_rank, or use a model with layer normalization.",
        )


def _divides_groups(model: nn.Module, name: str, rank: int) -> bool:
    """Return whether peft can adapt a layer: of a grouped convolution, the groups must divide the rank."""
    layer = model.get_submodule(name)
    return not isinstance(layer, nn.Conv2d) or rank % layer.groups == 0


def _saved_names(chosen: Collection[str], modules: Collection[str]) -> list[str]:
    """Return how to name these modules, and no others, to peft, which compares the ends of names."""
    for names in (sorted({_last_part(name) for name in chosen}), sorted(chosen)):
        if {module for module in modules if module.endswith(tuple(names))} == set(chosen):
            return names
    raise RefusedError(
        f"lora.modules_to_save: peft cannot tell {', '.join(f'`{name}`' for name in chosen)} from other modules whose "
        "names have the same ends"
    )


def _shares_parameters(model: nn.Module, path: str) -> bool:
    inside = {id(parameter) for parameter in model.get_submodule(path).parameters()}
    names = (name for name, p in model.named_parameters(remove_duplicate=False) if id(p) in inside)
    return any(not name.startswith(f"{path}.") for name in names)


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _inside(name: str, modules: Collection[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def is_adapter(name: str) -> bool:
    """Return whether a parameter of this name is part of an adapter."""
    return ".lora_" in name or f".modules_to_save.{ADAPTER}." in name


def adapter_targets(model: nn.Module, targets: str | Collection[str]) -> list[str]:
    """Return the names of the layers to adapt, in the order of the model. A target is a layer's full name, its last
    component, or a glob pattern for either; `auto` is every layer except the output layer."""
    layers = {name: module for name, module in model.named_modules() if _supports_adapter(module)}
    tied = {name for name, module in layers.items() if _is_tied(model, module)}
    if targets == "auto":
        output = _output_layer(model, layers)
        chosen = {name for name in layers if name not in tied and layers[name] is not output}
        if not chosen:
            raise RefusedError("lora.targets: `auto` finds no layer to adapt in this model")
    else:
        chosen = {name for target in targets for name in _matching(target, layers)}
    if shared := sorted(chosen & tied):
        raise RefusedError(
            f"lora.targets: `{shared[0]}` shares its weight with another layer, which has no adapter",
            "Leave it out of lora.targets.",
        )
    return [name for name in layers if name in chosen]


def _matching(target: str, layers: dict[str, nn.Module]) -> list[str]:
    matching = [name for name in layers if matches_layer(target, name)]
    if not matching:
        existing = dict.fromkeys(name.rpartition(".")[2] for name in layers)
        raise RefusedError(
            f"lora.targets: `{target}` matches no layer that can be adapted",
            f"This model has: {nearest_names(target, existing, count=20)}.",
        )
    return matching


def _supports_adapter(module: nn.Module) -> bool:
    # Conv1D is GPT-2's linear layer, compared by name so that transformers need not be installed.
    return isinstance(module, nn.Linear | nn.Conv2d) or type(module).__name__ == "Conv1D"


def _output_layer(model: nn.Module, layers: dict[str, nn.Module]) -> nn.Module | None:
    output = getattr(model, "get_output_embeddings", None)
    if output is None:
        return list(layers.values())[-1] if layers else None
    layer = output()
    return layer if isinstance(layer, nn.Module) else None


def _is_tied(model: nn.Module, layer: nn.Module) -> bool:
    return sum(parameter is layer.weight for _, parameter in model.named_parameters(remove_duplicate=False)) > 1


def _check_rank(model: nn.Module, targets: list[str], rank: int, field: str = "lora_rank") -> None:
    def smallest_side(name: str) -> int:
        weight = model.get_submodule(name).weight
        assert isinstance(weight, nn.Parameter)
        return min(len(weight), weight.numel() // len(weight))

    smallest = min(targets, key=smallest_side)
    if rank > smallest_side(smallest):
        raise RefusedError(
            f"{field} is {rank}, larger than the smallest side of its target `{smallest}`, {smallest_side(smallest)}",
            f"Set {field} to {smallest_side(smallest)} or less, or leave that layer out of lora.targets.",
        )


def shortest_target_names(targets: Collection[str], modules: Collection[str]) -> list[str] | str:
    """Return how to name these modules, and no others, to peft: by the last components of their names if that is
    unambiguous, else by their full names, else by a regular expression."""

    def matched(names: Collection[str]) -> set[str]:
        return {module for module in modules if any(module == n or module.endswith(f".{n}") for n in names)}

    for names in (sorted({target.rpartition(".")[2] for target in targets}), sorted(targets)):
        if matched(names) == set(targets):
            return names
    return "|".join(re.escape(target) for target in sorted(targets))
