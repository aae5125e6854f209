"""Which parameters a run trains: by the rules of `worker/engine/adapters.py` and `worker/engine/trainable.py`. Pure."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from service.planner import builtin_models as builtin
from service.planner.model_structure import Outline, Parameter
from trainyard.contract.problems import Problem, nearest_names
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.training_spec import LOOP_TASKS, TrainingSpec


@dataclass(frozen=True)
class Adapted:
    """A model with what a run trains of it."""

    outline: Outline
    """Adapters included."""
    trained: frozenset[str]
    """Names of parameters."""
    targets: tuple[str, ...] = ()
    """Layers with adapters."""

    @property
    def trained_count(self) -> int:
        return sum(parameter.size for parameter in self.outline.parameters if parameter.name in self.trained)


def adapt(outline: Outline, spec: TrainingSpec) -> Adapted | Problem:
    """The model as it is trained, or why it cannot be."""
    if spec.lora_rank is not None:
        return _with_adapters(outline, spec)
    names = [parameter.name for parameter in outline.parameters]
    if spec.trainable is None:
        return Adapted(outline, frozenset(names))
    alias = dict(outline.aliases)
    chosen: set[str] = set()
    for pattern in spec.trainable:
        found = {alias.get(name, name) for name in [*names, *alias] if fnmatchcase(name, pattern)}
        if not found:
            near = nearest_names(pattern, [*names, *alias], count=3)
            return Problem(
                param="trainable", message=f"`{pattern}` matches no parameter of the model; the closest: {near}"
            )
        chosen |= found
    return Adapted(outline, frozenset(chosen))


def mismatch(spec: TrainingSpec) -> Problem | None:
    """Why what the spec trains cannot be trained of its model, where that is one of our own: which layers a folder's
    has is known for certain when it is built."""
    if spec.task not in LOOP_TASKS - {"custom"} or spec.model is None or isinstance(spec.model, HfModel):
        return None
    if spec.lora_rank is None and spec.trainable is None:
        return None
    outline = builtin.outline_of(spec.model)
    found = adapt(outline, spec) if outline else None
    return found if isinstance(found, Problem) else None


def _with_adapters(outline: Outline, spec: TrainingSpec) -> Adapted | Problem:
    assert spec.lora_rank is not None
    rank = spec.lora_rank
    layers = {p.module: p for p in outline.parameters if p.kind == "linear" and p.name.endswith(".weight")}
    if spec.lora.targets == "auto":
        targets = [name for name in layers if name != outline.output and name not in outline.tied]
    else:
        targets = []
        for target in spec.lora.targets:
            found = [name for name in layers if _matches(name, target)]
            if not found:
                there = nearest_names(target, dict.fromkeys(name.rpartition(".")[2] for name in layers), count=20)
                message = f"`{target}` matches no layer that can be adapted; there are: {there}"
                return Problem(param="lora.targets", message=message)
            targets += [name for name in found if name not in targets]
    if not targets:
        return Problem(param="lora.targets", message="`auto` finds no layer to adapt in this model")
    smallest = min(targets, key=lambda name: min(_sides(layers[name])))
    if rank > (most := min(_sides(layers[smallest]))):
        message = f"is {rank}, larger than the smallest side of its target `{smallest}`; take {most} or less"
        return Problem(param="lora_rank", message=message)
    chosen = set(targets)
    parameters: list[Parameter] = []
    adapters: list[Parameter] = []
    for parameter in outline.parameters:
        parameters.append(parameter)
        if parameter.module in chosen and parameter.name.endswith(".weight"):
            adapters += _adapters(parameter, rank)
            parameters += adapters[-2:]
    whole = Outline(**{**vars(outline), "parameters": tuple(parameters)})
    return Adapted(whole, frozenset(adapter.name for adapter in adapters), tuple(targets))


def _matches(name: str, target: str) -> bool:
    return any(fnmatchcase(part, target) for part in (name, name.rpartition(".")[2]))


def _sides(weight: Parameter) -> tuple[int, int]:
    """Outputs and inputs; for a convolution the inputs of one place."""
    out, *rest = weight.shape
    inputs = 1
    for side in rest:
        inputs *= side
    return out, inputs


def _adapters(weight: Parameter, rank: int) -> list[Parameter]:
    """peft's two: A as the layer with `rank` outputs, B from there to the layer's outputs."""
    out, *rest = weight.shape
    down = (rank, *rest)
    up = (out, rank, *(1 for _ in rest[1:]))
    return [
        Parameter(f"{weight.module}.lora_A.default.weight", down),
        Parameter(f"{weight.module}.lora_B.default.weight", up),
    ]
