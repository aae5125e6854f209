"""From a resolved spec and its model to the input of `step_memory`: blocks, micro-batch, layout. Pure functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from service.plugins.planner.activation_memory import Adapters, ComputeDtype, block_ops, head_of, layer_op, no_head
from service.plugins.planner.frozen_base import HeldParameters, held_parameters
from service.plugins.planner.model_structure import ModelStructure, Parameter, Transformer
from service.plugins.planner.optimizer_state import stored_bytes, update_bytes
from service.plugins.planner.step_memory import Layout, MicroBatchWork, evaluation_memory, peak_memory
from service.plugins.planner.step_sizes import Block, Memory, Unit
from service.plugins.planner.task_memory import task_work
from service.plugins.planner.task_models import has_head_of_task
from service.plugins.planner.trainable_parameters import TrainableModel
from trainyard.contract.spec.objectives import PAIRED
from trainyard.contract.spec.sections import BuiltinData, ConvnetModel, Fsdp, MlpModel
from trainyard.contract.spec.text_data import TextData
from trainyard.contract.spec.training_spec import TrainingSpec

MAX_ROW_TOKENS = 2048
"""Tokens. The default in `worker/tasks/causal_lm.py`; a test compares the two."""
ROW_MULTIPLE = 128
"""Tokens to a multiple of which GPUs' rows are padded. The constant of `worker/tasks/select.py`; a test compares."""
_IMAGE = 64
"""Pixels of an image of the `digits` data set."""


def examples_per_rank(spec: TrainingSpec) -> int:
    """Return the number of examples of one step on the rank with the most."""
    return -(-spec.batch.size // spec.gpus)


@dataclass(frozen=True)
class BlockModel:
    """A trainable model cut into blocks, with its optimizer; it does not depend on strategy or batch."""

    trainable: TrainableModel
    blocks: tuple[Block, ...]
    """Only element counts are set, and they count gathered values. Equal neighbouring blocks of a decoder are merged
    into a single block with a `count`."""
    optimizer_bytes: int
    """Bytes of the optimizer's state and of the average of the weights."""
    parameters: HeldParameters


def block_model(spec: TrainingSpec, trainable: TrainableModel) -> BlockModel:
    """Cut a model into its blocks. Slow for large models, because it visits every parameter."""
    parameters = held_parameters(spec, trainable)
    blocks = _plain_blocks(parameters, spec)
    merged = tuple(blocks) if trainable.structure.sizes else _merged(blocks)
    return BlockModel(trainable, merged, stored_bytes(spec, trainable), parameters)


def micro_batch_memory(
    spec: TrainingSpec, model: BlockModel, micro_size: int, context: int | None = None
) -> Memory | None:
    """Return the peak memory of one rank in bytes, or None if the model's activations are not known.

    Args:
        spec: Resolved. Its `batch.micro_size` is not used.
        micro_size: The micro-batch size.
        context: The context length of a Hugging Face model, in tokens.
    """
    micro = min(micro_size, examples_per_rank(spec))
    layout = step_layout(spec, micro)
    work = micro_batch_work(spec, model, micro, layout.dtype, context)
    if work is None:
        return None
    update = update_bytes(spec, model.trainable, shards=layout.shards)
    training = peak_memory(replace(work, update=update), layout)
    evaluated = spec.evaluation.micro_size or 0
    if evaluated <= micro or not _evaluates(spec):
        return training
    larger = micro_batch_work(spec, model, evaluated, layout.dtype, context)
    assert larger is not None
    return max(training, evaluation_memory(larger, layout, training), key=lambda memory: memory.peak)


def _evaluates(spec: TrainingSpec) -> bool:
    data = spec.data
    return data is not None and (data.eval_fraction > 0 if isinstance(data, BuiltinData) else data.has_evaluation)


def state_memory(spec: TrainingSpec, model: BlockModel) -> Memory:
    """Return the memory of parameters, gradients and optimizer state, without activations."""
    trainable = model.trainable
    values, trained = model.parameters.values, trainable.trained_count
    edges = edge_units(trainable, spec.fsdp)
    work = MicroBatchWork(model.blocks, no_head(0, 0), values, trained, 0, model.optimizer_bytes, *edges)
    return peak_memory(replace(work, held=model.parameters.total), step_layout(spec, examples_per_rank(spec)))


def step_layout(spec: TrainingSpec, micro: int) -> Layout:
    """Return how a resolved spec shards the model and in which dtype it computes."""
    precision = spec.precision_kind
    autocast = precision.is_half and not spec.strategy_kind.is_sharded
    converts = spec.lora_rank is not None and spec.lora.base_dtype != "fp32"
    casts = spec.param_dtype == "fp32"
    dtype = ComputeDtype(precision.value_bytes, autocast=autocast, casts_weights=casts, converts_base=converts)
    return Layout(
        strategy=spec.strategy_kind,
        shards=spec.gpus // spec.fsdp.replicas if spec.strategy_kind.is_sharded else 1,
        dtype=dtype,
        accumulates=micro < examples_per_rank(spec),
        checkpointing=spec.activation_checkpointing,
        offload=spec.strategy_kind.is_sharded and spec.fsdp.cpu_offload,
        bucket_view=spec.ddp.gradient_as_bucket_view,
        gradient_bytes=2 if spec.grad_dtype == "bf16" else 4,
    )


def micro_batch_work(
    spec: TrainingSpec, model: BlockModel, micro: int, dtype: ComputeDtype, context: int | None
) -> MicroBatchWork | None:
    """Return the work of a micro-batch, or None if the model's activations are not known."""
    structure = model.trainable.structure
    if has_head_of_task(spec):
        return _with_task(spec, model, micro, dtype, context)
    if structure.transformer is not None:
        return _decoder(spec, model, structure.transformer, micro, tokens_per_example(spec, context), dtype)
    if not structure.sizes:
        return None
    return _layers(spec, model, micro, dtype)


def tokens_per_example(spec: TrainingSpec, context: int | None) -> int:
    """Return the largest number of tokens in an example, by the rules of `worker/tasks/causal_lm.py`."""
    context_of_model = getattr(spec.model, "context", None)
    limit = context_of_model or context
    if not isinstance(spec.data, TextData):
        return limit or MAX_ROW_TOKENS
    length: int = max(1, (spec.data.max_length or min(limit or MAX_ROW_TOKENS, MAX_ROW_TOKENS)) - 1)
    if spec.backend != "nccl":
        return length
    padded = -(-length // ROW_MULTIPLE) * ROW_MULTIPLE
    return max(length, min(padded, limit or padded))


def rows_per_example(spec: TrainingSpec) -> int:
    """Return the rows of an example: two answers if the objective learns from preferences."""
    return 1 if spec.objective == "sft" else 2


def rows_with_gradient(spec: TrainingSpec) -> int:
    """Return the number of these rows with a gradient: KTO's answer to another prompt has none."""
    return 2 if spec.objective in PAIRED else 1


def masked_tokens(spec: TrainingSpec, model: Transformer, length: int) -> int:
    """Return the tokens of a row whose attention has a mask, by the rules of `worker/engine/attention.py`.

    With fp16 the chip may be too old for the kernel, and some chips take heads of at most 192."""
    if not isinstance(spec.data, TextData) or not spec.data.packing or spec.objective != "sft":
        return 0
    fits = model.head_width % 8 == 0 and model.head_width <= 192 and not getattr(spec.model, "dropout", 0)
    return 0 if fits and spec.backend == "nccl" and spec.precision_kind.computes_in_bf16 else length


def _adapters(spec: TrainingSpec, trainable: TrainableModel) -> Adapters | None:
    if spec.lora_rank is None:
        return None
    targets = frozenset(target.rpartition(".")[2] for target in trainable.targets)
    largest = max(spec.lora_rank, *spec.lora.rank_pattern.values(), 0)
    return Adapters(largest, targets, spec.lora.dropout > 0, spec.lora.dora)


def _with_task(
    spec: TrainingSpec, sizes: BlockModel, micro: int, dtype: ComputeDtype, context: int | None
) -> MicroBatchWork | None:
    """Return the work of a model with the head of a task. Its embeddings and head belong to the root unit."""
    trainable = sizes.trainable
    adapters = _adapters(spec, trainable)
    work = task_work(spec, trainable.structure, micro, examples_per_rank(spec), dtype, adapters, context)
    if work is None:
        return None
    residual = dtype.residual_bytes * work.residual
    blocks = tuple(replace(block, ops=work.ops, input_bytes=residual, residual_grad=residual) for block in sizes.blocks)
    values, trained = sizes.parameters.values, trainable.trained_count
    done = MicroBatchWork(blocks, work.head, values, trained, work.batch, sizes.optimizer_bytes)
    return replace(done, held=sizes.parameters.total)


def _decoder(
    spec: TrainingSpec, sizes: BlockModel, model: Transformer, micro: int, length: int, dtype: ComputeDtype
) -> MicroBatchWork:
    trainable, tokens = sizes.trainable, micro * length * rows_with_gradient(spec)
    adapters = _adapters(spec, trainable)
    masked = masked_tokens(spec, model, length)
    model = replace(model, fused_norms=model.builtin and model.gated and spec.backend == "nccl")
    ops = block_ops(model, tokens, dtype, adapters, masked)
    residual = dtype.residual_bytes * tokens * model.width
    blocks = tuple(replace(block, ops=ops, input_bytes=residual, residual_grad=residual) for block in sizes.blocks)
    gathers = spec.strategy_kind.is_sharded
    # Preferences need the loss of each row, and some models scale their logits.
    linear = spec.objective == "sft" and not model.scales_logits
    head = head_of(model, tokens, dtype, frozen=adapters is not None, linear=linear)
    converted = sizes.parameters.converted_head(head.weights, gathers=gathers)
    head = replace(head, forward=head.forward + converted, backward=head.backward + converted)
    rows = examples_per_rank(spec) * (length + 1) * rows_per_example(spec)
    batch = 8 * tokens + (rows if isinstance(spec.data, BuiltinData) else 16 * rows) + tokens * masked
    edges = edge_units(trainable, spec.fsdp)
    values, trained = sizes.parameters.values, trainable.trained_count
    work = MicroBatchWork(blocks, head, values, trained, batch, sizes.optimizer_bytes, *edges)
    return replace(work, held=sizes.parameters.total, converted=sizes.parameters.converted(gathers=gathers))


def edge_units(trainable: TrainableModel, options: Fsdp) -> tuple[Unit, Unit]:
    """Return the units of input embeddings and head, by the rules of `worker/engine/strategies/units.py`. Tied units
    belong to the root unit."""
    structure = trainable.structure
    if structure.transformer is None or structure.output is None or structure.aliases or options.wrap == "naive":
        return Unit(), Unit()
    tables = [parameter for parameter in structure.parameters if parameter.kind == "embedding"]
    heads = [parameter for parameter in structure.parameters if parameter.name == f"{structure.output}.weight"]
    if not tables or not heads or heads[0] == tables[0]:
        return Unit(), Unit()
    least = (options.min_params or 1) if options.wrap == "size" else 0
    return _unit(tables[0], trainable, least), _unit(heads[0], trainable, least)


def _unit(parameter: Parameter, trainable: TrainableModel, least: int) -> Unit:
    if parameter.size < least:
        return Unit()
    return Unit(parameter.size, parameter.size if parameter.name in trainable.trained else 0)


def _layers(spec: TrainingSpec, model: BlockModel, micro: int, dtype: ComputeDtype) -> MicroBatchWork:
    trainable, structure = model.trainable, model.trainable.structure
    outputs = _outputs(spec)
    sizes = (*structure.sizes, outputs)
    blocks = []
    for index, block in enumerate(model.blocks):
        ops = layer_op(sizes[index], sizes[index + 1], block.elements, micro, dtype)
        blocks.append(replace(block, ops=ops, input_bytes=dtype.bytes * sizes[index] * micro))
    values = _IMAGE + 2 if isinstance(spec.model, ConvnetModel) else sizes[0] + outputs
    return MicroBatchWork(
        tuple(blocks),
        no_head(outputs, micro),
        structure.count,
        trainable.trained_count,
        4 * values * examples_per_rank(spec),
        model.optimizer_bytes,
    )


def _outputs(spec: TrainingSpec) -> int:
    match spec.model:
        case MlpModel(sizes=sizes):
            return sizes[-1]
        case ConvnetModel(classes=classes):
            return classes
    return 0


def _plain_blocks(held: HeldParameters, spec: TrainingSpec) -> list[Block]:
    """Return the blocks in the model's order with their element counts only."""
    trainable = held.trainable
    structure: ModelStructure = trainable.structure
    gathered = unit_sizes(structure, spec.fsdp, held.gathered)
    elements = dict.fromkeys(structure.blocks, 0)
    trained = dict.fromkeys(structure.blocks, 0)
    for parameter in structure.parameters:
        block = block_of(parameter.name, elements)
        if block is not None:
            elements[block] += held.gathered(parameter)
            trained[block] += parameter.size if parameter.name in trainable.trained else 0
    return [Block((), elements[name], trained[name], gathered[name], 0) for name in structure.blocks]


def _merged(blocks: list[Block]) -> tuple[Block, ...]:
    """Merge equal neighbours."""
    merged: list[Block] = []
    for block in blocks:
        if merged and replace(merged[-1], count=1) == block:
            merged[-1] = replace(merged[-1], count=merged[-1].count + 1)
        else:
            merged.append(block)
    return tuple(merged)


def unit_sizes(
    structure: ModelStructure, options: Fsdp, elements_of: Callable[[Parameter], int] = lambda parameter: parameter.size
) -> Mapping[str, int]:
    """Return the elements of the largest FSDP unit in each block, by the rules of `worker/engine/strategies/units.py`.

    Parameters outside of all blocks belong to the root unit."""
    if options.wrap == "naive":
        return dict.fromkeys(structure.blocks, 0)
    inside = _by_block(structure, elements_of)
    if options.wrap == "layer":
        return {block: sum(sizes.values()) for block, sizes in inside.items()}
    return {block: _largest(sizes, options.min_params or 1) for block, sizes in inside.items()}


def _by_block(structure: ModelStructure, elements_of: Callable[[Parameter], int]) -> dict[str, dict[str, int]]:
    """Return the elements of each module, by block."""
    elements: dict[str, dict[str, int]] = {block: {} for block in structure.blocks}
    for parameter in structure.parameters:
        block = block_of(parameter.name, elements)
        if block is not None:
            elements[block][parameter.module] = elements[block].get(parameter.module, 0) + elements_of(parameter)
    return elements


def block_of(name: str, blocks: Mapping[str, object]) -> str | None:
    """Return the block that contains a parameter."""
    parts = name.split(".")
    joined = (".".join(parts[:end]) for end in range(1, len(parts)))
    return next((path for path in joined if path in blocks), None)


def _largest(sizes: Mapping[str, int], least: int) -> int:
    """Return the size of the largest unit: from the inside out, a module with `least` free elements becomes a unit."""
    free = dict(sizes)
    for path in sizes:
        while path := path.rpartition(".")[0]:
            free.setdefault(path, 0)
    units = [0]
    for path in sorted(free, key=lambda path: -path.count(".")):
        if free[path] >= least:
            units.append(free[path])
        elif parent := path.rpartition(".")[0]:
            free[parent] += free[path]
    return max(units)
