"""From a resolved spec and its model to what is walked through in `memory`: micro-batch, blocks, layout. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from service.planner.activation_memory import Adapters, ComputeDtype, block_ops, head_of, layer_op, no_head
from service.planner.model_structure import ModelStructure, Transformer
from service.planner.step_memory import Block, Layout, Memory, MicroBatchWork, peak_memory
from service.planner.trainable_parameters import TrainableModel
from trainyard.contract.spec.sections import BuiltinData, ConvnetModel, Fsdp, JsonlData, MlpModel
from trainyard.contract.spec.training_spec import TrainingSpec

LONGEST_ROW = 2048
"""As `worker/tasks/causal_lm.py` has it."""
_IMAGE = 64
SHARDED = frozenset({"zero1", "zero2", "fsdp", "hsdp"})


def examples_per_rank(spec: TrainingSpec) -> int:
    """Examples of an update on the rank with the most."""
    return -(-spec.batch.size // spec.gpus)


@dataclass(frozen=True)
class BlockModel:
    """A model as it is trained, cut into its blocks: what does not depend on strategy, precision or batch."""

    adapted: TrainableModel
    blocks: tuple[Block, ...]
    """Elements alone. Of a decoder, alike neighbours are one."""


def block_model(spec: TrainingSpec, adapted: TrainableModel) -> BlockModel:
    """Goes through every parameter: once for a model and its `lora`, `trainable` and `fsdp.wrap`."""
    blocks = _plain_blocks(adapted, spec)
    return BlockModel(adapted, tuple(blocks) if adapted.structure.sizes else _merged(blocks))


def micro_batch_memory(
    spec: TrainingSpec, model: BlockModel, micro_size: int, context: int | None = None
) -> Memory | None:
    """The peak on one rank; None where the model's activations are unknown.

    Args:
        spec: resolved; its `micro_size` is not read.
        context: tokens that a Hugging Face model sees at most.
    """
    micro = min(micro_size, examples_per_rank(spec))
    layout = step_layout(spec, micro)
    work = micro_batch_work(spec, model, micro, layout.numbers, context)
    return None if work is None else peak_memory(work, layout)


def state_memory(spec: TrainingSpec, model: BlockModel) -> Memory:
    """What parameters, gradients and optimizer alone take, whatever the activations are."""
    adapted = model.adapted
    work = MicroBatchWork(model.blocks, no_head(0, 0), adapted.structure.count, adapted.trained_count, 0)
    return peak_memory(work, step_layout(spec, examples_per_rank(spec)))


def step_layout(spec: TrainingSpec, micro: int) -> Layout:
    """How the resolved spec spreads and computes."""
    half = spec.precision in ("bf16", "fp16")
    numbers = ComputeDtype(2 if half else 4, autocast=half and spec.strategy not in SHARDED)
    return Layout(
        strategy=spec.strategy,
        shards=spec.gpus // spec.fsdp.replicas if spec.strategy in SHARDED else 1,
        numbers=numbers,
        accumulates=micro < examples_per_rank(spec),
        moments=2 if spec.optimizer.name != "sgd" else int(spec.optimizer.momentum > 0),
        checkpointing=spec.activation_checkpointing,
        offload=spec.strategy in SHARDED and spec.fsdp.cpu_offload,
        bucket_view=spec.ddp.gradient_as_bucket_view,
    )


def micro_batch_work(
    spec: TrainingSpec, model: BlockModel, micro: int, numbers: ComputeDtype, context: int | None
) -> MicroBatchWork | None:
    """One micro-batch; None where nothing is known of the model's activations."""
    structure = model.adapted.structure
    if structure.transformer is not None:
        return _decoder(spec, model, structure.transformer, micro, tokens_per_example(spec, context), numbers)
    if not structure.sizes:
        return None
    return _plain(spec, model, micro, numbers)


def tokens_per_example(spec: TrainingSpec, context: int | None) -> int:
    """Tokens of an example at most, as `worker/tasks/causal_lm.py` makes them."""
    own = getattr(spec.model, "context", None)
    if isinstance(spec.data, JsonlData):
        return max(1, (spec.data.max_length or min(own or context or LONGEST_ROW, LONGEST_ROW)) - 1)
    return own or context or LONGEST_ROW


def _decoder(
    spec: TrainingSpec, sizes: BlockModel, model: Transformer, micro: int, length: int, numbers: ComputeDtype
) -> MicroBatchWork:
    adapted, tokens = sizes.adapted, micro * length
    adapters = None
    if spec.lora_rank is not None:
        targets = frozenset(target.rpartition(".")[2] for target in adapted.targets)
        adapters = Adapters(spec.lora_rank, targets, spec.lora.dropout > 0)
    ops = block_ops(model, tokens, numbers, adapters)
    stream = numbers.stream * tokens * model.width
    blocks = tuple(replace(block, ops=ops, stream=stream, residual=stream) for block in sizes.blocks)
    head = head_of(model, tokens, numbers, frozen=adapters is not None)
    rows = examples_per_rank(spec) * (length + 1)
    batch = 8 * tokens + (rows if isinstance(spec.data, BuiltinData) else 16 * rows)
    return MicroBatchWork(blocks, head, adapted.structure.count, adapted.trained_count, batch)


def _plain(spec: TrainingSpec, model: BlockModel, micro: int, numbers: ComputeDtype) -> MicroBatchWork:
    adapted, structure = model.adapted, model.adapted.structure
    outputs = _outputs(spec)
    sizes = (*structure.sizes, outputs)
    blocks = []
    for place, block in enumerate(model.blocks):
        ops = layer_op(sizes[place], sizes[place + 1], block.elements, micro, numbers)
        blocks.append(replace(block, ops=ops, stream=numbers.bytes * sizes[place] * micro))
    values = _IMAGE + 2 if isinstance(spec.model, ConvnetModel) else sizes[0] + outputs
    return MicroBatchWork(
        tuple(blocks),
        no_head(outputs, micro),
        structure.count,
        adapted.trained_count,
        4 * values * examples_per_rank(spec),
    )


def _outputs(spec: TrainingSpec) -> int:
    match spec.model:
        case MlpModel(sizes=sizes):
            return sizes[-1]
        case ConvnetModel(classes=classes):
            return classes
    return 0


def _plain_blocks(adapted: TrainableModel, spec: TrainingSpec) -> list[Block]:
    """Sizes alone, in the model's order; alike ones are not yet put together."""
    structure: ModelStructure = adapted.structure
    gathered = unit_sizes(structure, spec.fsdp)
    elements = dict.fromkeys(structure.blocks, 0)
    trained = dict.fromkeys(structure.blocks, 0)
    for parameter in structure.parameters:
        block = block_of(parameter.name, elements)
        if block is not None:
            elements[block] += parameter.size
            trained[block] += parameter.size if parameter.name in adapted.trained else 0
    return [Block((), elements[name], trained[name], gathered[name], 0) for name in structure.blocks]


def _merged(blocks: list[Block]) -> tuple[Block, ...]:
    """Neighbours that are alike as one."""
    found: list[Block] = []
    for block in blocks:
        if found and replace(found[-1], count=1) == block:
            found[-1] = replace(found[-1], count=found[-1].count + 1)
        else:
            found.append(block)
    return tuple(found)


def unit_sizes(structure: ModelStructure, options: Fsdp) -> Mapping[str, int]:
    """Elements that are gathered at once inside of each block: its largest unit. What no block has is the root's."""
    if options.wrap == "naive":
        return dict.fromkeys(structure.blocks, 0)
    inside = _by_block(structure)
    if options.wrap == "layer":
        return {block: sum(sizes.values()) for block, sizes in inside.items()}
    return {block: _largest(sizes, options.min_params or 1) for block, sizes in inside.items()}


def _by_block(structure: ModelStructure) -> dict[str, dict[str, int]]:
    """Elements by module, for every block."""
    found: dict[str, dict[str, int]] = {block: {} for block in structure.blocks}
    for parameter in structure.parameters:
        block = block_of(parameter.name, found)
        if block is not None:
            found[block][parameter.module] = found[block].get(parameter.module, 0) + parameter.size
    return found


def block_of(name: str, blocks: Mapping[str, object]) -> str | None:
    """The block that a parameter is in."""
    parts = name.split(".")
    joined = (".".join(parts[:end]) for end in range(1, len(parts)))
    return next((path for path in joined if path in blocks), None)


def _largest(sizes: Mapping[str, int], least: int) -> int:
    """From the inside out, modules that still have `least` elements become units; the rest goes to the root."""
    free = dict(sizes)
    units = [0]
    paths = {".".join(parts[:end]) for path in sizes for parts in [path.split(".")] for end in range(1, len(parts) + 1)}
    for path in sorted(paths, key=lambda path: -path.count(".")):
        mine = {name: size for name, size in free.items() if name == path or name.startswith(f"{path}.")}
        if sum(mine.values()) >= least:
            units.append(sum(mine.values()))
            free = {name: size for name, size in free.items() if name not in mine}
    return max(units)
