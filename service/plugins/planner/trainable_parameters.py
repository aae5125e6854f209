"""Which parameters a run trains, by the rules of the worker's engine. Pure functions."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase, translate
from functools import cached_property, lru_cache

from service.plugins.planner import builtin_models
from service.plugins.planner.model_structure import ModelStructure, Parameter
from trainyard.contract.problems import Problem, nearest_names
from trainyard.contract.spec.decoders import BuiltinDecoder
from trainyard.contract.spec.layer_patterns import matches_layer, value_of
from trainyard.contract.spec.sections import ConvnetModel, HfModel, Lora, MlpModel
from trainyard.contract.spec.training_spec import TrainingSpec


@dataclass(frozen=True)
class TrainableModel:
    """A model, and the parameters that a run trains."""

    structure: ModelStructure
    """The model with its adapters."""
    trained: frozenset[str]
    """Names of the trained parameters."""
    targets: tuple[str, ...] = ()
    """Names of the layers that have adapters."""

    @cached_property
    def trained_count(self) -> int:
        """The number of elements of the trained parameters."""
        return sum(parameter.size for parameter in self.trained_parameters)

    @cached_property
    def trained_parameters(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.structure.parameters if parameter.name in self.trained)

    @cached_property
    def largest_trained(self) -> int:
        """The number of elements of the largest trained parameter."""
        return max((parameter.size for parameter in self.trained_parameters), default=0)

    @cached_property
    def hidden_matrices(self) -> tuple[Parameter, ...]:
        """The trained parameters for Muon, by the rules of `worker/engine/parameter_groups.py`."""
        output = None if self.structure.output is None else f"{self.structure.output}."
        return tuple(
            parameter
            for parameter in self.trained_parameters
            if len(parameter.shape) in (2, 4)
            and parameter.kind not in ("embedding", "norm")
            and not parameter.name.endswith("bias")
            and not (output and parameter.name.startswith(output))
        )


def trainable_model(structure: ModelStructure, spec: TrainingSpec) -> TrainableModel | Problem:
    """Return the model as the spec trains it, or why the spec does not match the model."""
    return _select(structure, spec.lora_rank, spec.lora, spec.trainable)


def _select(
    structure: ModelStructure, rank: int | None, lora: Lora, trainable: tuple[str, ...] | None
) -> TrainableModel | Problem:
    if rank is not None:
        ranks = _adapted_layers(structure, rank, lora)
        return ranks if isinstance(ranks, Problem) else _with_adapters(structure, ranks)
    names = [parameter.name for parameter in structure.parameters]
    if trainable is None:
        return TrainableModel(structure, frozenset(names))
    alias = dict(structure.aliases)
    everything = [*names, *alias]
    chosen: set[str] = set()
    for pattern in dict.fromkeys(trainable):
        matches = set(filter(_matcher(pattern), everything))
        if not matches:
            near = nearest_names(pattern, everything, count=3)
            return Problem(
                param="trainable", message=f"`{pattern}` matches no parameter of the model; the closest: {near}"
            )
        chosen |= {alias.get(name, name) for name in matches}
    return TrainableModel(structure, frozenset(chosen))


def trainable_problem(spec: TrainingSpec) -> Problem | None:
    """Return why `lora`, `trainable` or the optimizer does not match a builtin model.

    A Hugging Face model is not checked: its layers are certain only when the worker has built it.
    """
    if not spec.task_kind.is_builtin or spec.model is None or isinstance(spec.model, HfModel):
        return None
    optimizer = spec.optimizer
    groups = (optimizer.name, tuple(optimizer.lr_scale), optimizer.no_decay)
    if spec.lora_rank is None and spec.trainable is None and optimizer.name != "muon" and not any(groups[1:]):
        return None
    return _builtin_problem(spec.model, spec.lora_rank, spec.lora, spec.trainable, groups)


@lru_cache(maxsize=256)
def _builtin_problem(
    model: BuiltinDecoder | ConvnetModel | MlpModel,
    rank: int | None,
    lora: Lora,
    trainable: tuple[str, ...] | None,
    groups: tuple[str, tuple[str, ...], tuple[str, ...]],
) -> Problem | None:
    """Return the problem of a builtin model. Cached, because the members of a sweep mostly share their model.

    Args:
        groups: Name, patterns of `lr_scale` and `no_decay` of the optimizer.
    """
    structure = builtin_models.structure_of(model)
    if structure is None:
        return None
    if rank is None:
        selected = _select(structure, rank, lora, trainable)
        if isinstance(selected, Problem):
            return selected
        hidden = selected.hidden_matrices if groups[0] == "muon" else ()
        return _optimizer_problem(*groups, selected.trained_parameters, hidden, adapted=False)
    # Without the whole model, whose construction with adapters takes longer than all else.
    ranks = _adapted_layers(structure, rank, lora)
    if isinstance(ranks, Problem):
        return ranks
    if not any(groups[1:]):
        return None
    weights = [p for p in structure.parameters if p.module in ranks and p.name.endswith(".weight")]
    adapters = [adapter for weight in weights for adapter in _adapters(weight, ranks[weight.module])]
    return _optimizer_problem(*groups, adapters, adapters, adapted=True)


def _adapted_layers(structure: ModelStructure, rank: int, lora: Lora) -> dict[str, int] | Problem:
    """Return the layers that get adapters with their ranks, or why the spec does not match the model."""
    linear = (p for p in structure.parameters if p.kind == "linear" and p.name.endswith(".weight"))
    layers = {p.module: p for p in linear if p.module not in structure.head}
    # The layers of an encoder may have other names in its folder; all of them are an upper bound.
    if lora.targets == "auto" or structure.encoder is not None:
        targets = [name for name in layers if name != structure.output and name not in structure.tied]
    else:
        chosen_layers: dict[str, None] = {}
        last_parts = {name: name.rpartition(".")[2] for name in layers}
        remaining = list(layers)
        for target in dict.fromkeys(lora.targets):
            matches = _matcher(target)
            chosen_layers |= dict.fromkeys(name for name in remaining if matches(name) or matches(last_parts[name]))
            if not any(matches(name) or matches(last_parts[name]) for name in layers):
                available = nearest_names(target, dict.fromkeys(last_parts.values()), count=20)
                message = f"`{target}` matches no layer that can be adapted; there are: {available}"
                return Problem(param="lora.targets", message=message)
            remaining = [name for name in remaining if name not in chosen_layers]
        targets = list(chosen_layers)
    if not targets:
        return Problem(param="lora.targets", message="`auto` finds no layer to adapt in this model")
    return _ranks(structure, targets, layers, rank, lora)


def _ranks(
    structure: ModelStructure, targets: Sequence[str], layers: dict[str, Parameter], rank: int, lora: Lora
) -> dict[str, int] | Problem:
    """Return the ranks of the targets, or why a pattern or a rank does not match the model."""
    if structure.encoder is not None:
        return dict.fromkeys(targets, max(rank, *lora.rank_pattern.values(), 0))
    for field, patterns in (("rank_pattern", lora.rank_pattern), ("alpha_pattern", lora.alpha_pattern)):
        for pattern in patterns:
            if not any(matches_layer(pattern, target) for target in targets):
                available = nearest_names(pattern, dict.fromkeys(t.rpartition(".")[2] for t in targets), count=20)
                message = f"`{pattern}` matches no layer that is adapted; there are: {available}"
                return Problem(param=f"lora.{field}", message=message)
    ranks = {name: value_of(name, lora.rank_pattern, rank) for name in targets}
    for name, own in sorted(ranks.items(), key=lambda item: min(_linear_shape(layers[item[0]]))):
        if own > (most := min(_linear_shape(layers[name]))):
            message = f"is {own}, larger than the smallest side of its target `{name}`; take {most} or less"
            return Problem(param="lora_rank" if own == rank else "lora.rank_pattern", message=message)
    return ranks


def _with_adapters(structure: ModelStructure, ranks: Mapping[str, int]) -> TrainableModel:
    parameters: list[Parameter] = []
    adapters: list[Parameter] = []
    for parameter in structure.parameters:
        parameters.append(parameter)
        if parameter.module in ranks and parameter.name.endswith(".weight"):
            adapters += _adapters(parameter, ranks[parameter.module])
            parameters += adapters[-2:]
    # peft keeps the original modules beside the modules that it trains whole.
    before = [replace(p, name=f"{p.module}.original_module.{p.name}") for p in parameters if p.module in structure.head]
    whole = replace(structure, parameters=(*parameters, *before))
    head = {parameter.name for parameter in structure.parameters if parameter.module in structure.head}
    return TrainableModel(whole, frozenset(adapter.name for adapter in adapters) | head, tuple(ranks))


def _matcher(pattern: str) -> Callable[[str], object]:
    """Return the function that matches names with a glob pattern."""
    return re.compile(translate(pattern)).match


def _linear_shape(weight: Parameter) -> tuple[int, int]:
    """Return the numbers of outputs and inputs; for a convolution, the inputs of an output pixel."""
    out, *rest = weight.shape
    inputs = 1
    for side in rest:
        inputs *= side
    return out, inputs


def _adapters(weight: Parameter, rank: int) -> list[Parameter]:
    """Return the two matrices of LoRA (arXiv:2106.09685) as peft names them: A (rank, inputs) and B (outputs, rank)."""
    out, *rest = weight.shape
    down = (rank, *rest)
    up = (out, rank, *(1 for _ in rest[1:]))
    return [
        Parameter(f"{weight.module}.lora_A.default.weight", down),
        Parameter(f"{weight.module}.lora_B.default.weight", up),
    ]


def _optimizer_problem(
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
