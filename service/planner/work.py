"""From a resolved spec and its model to what is walked through in `memory`: micro-batch, blocks, layout. Pure."""

from dataclasses import dataclass, replace

from service.planner.activation_memory import Adapters, Numbers, block_ops, head_of, layer_op, no_head
from service.planner.model_structure import Outline, Transformer
from service.planner.step_memory import Block, Layout, Memory, Work, peak_memory
from service.planner.trainable_parameters import Adapted
from service.planner.units import block_of, unit_sizes
from trainyard.contract.spec.sections import BuiltinData, ConvnetModel, JsonlData, MlpModel
from trainyard.contract.spec.training_spec import TrainingSpec

LONGEST_ROW = 2048
"""As `worker/tasks/causal_lm.py` has it."""
_IMAGE = 64
SHARDED = frozenset({"zero1", "zero2", "fsdp", "hsdp"})


def share_of(spec: TrainingSpec) -> int:
    """Examples of an update on the rank with the most."""
    return -(-spec.batch.size // spec.gpus)


@dataclass(frozen=True)
class Sized:
    """A model as it is trained, cut into its blocks: what does not depend on strategy, precision or batch."""

    adapted: Adapted
    blocks: tuple[Block, ...]
    """Elements alone. Of a decoder, alike neighbours are one."""


def sized(spec: TrainingSpec, adapted: Adapted) -> Sized:
    """Goes through every parameter: once for a model and its `lora`, `trainable` and `fsdp.wrap`."""
    blocks = _plain_blocks(adapted, spec)
    return Sized(adapted, tuple(blocks) if adapted.outline.sizes else _merged(blocks))


def memory_of(spec: TrainingSpec, model: Sized, micro_size: int, context: int | None = None) -> Memory | None:
    """The peak on one rank; None where the model's activations are unknown.

    Args:
        spec: resolved; its `micro_size` is not read.
        context: tokens that a Hugging Face model sees at most.
    """
    micro = min(micro_size, share_of(spec))
    layout = layout_of(spec, micro)
    work = work_of(spec, model, micro, layout.numbers, context)
    return None if work is None else peak_memory(work, layout)


def least_of(spec: TrainingSpec, model: Sized) -> Memory:
    """What parameters, gradients and optimizer alone take, whatever the activations are."""
    adapted = model.adapted
    work = Work(model.blocks, no_head(0, 0), adapted.outline.count, adapted.trained_count, 0)
    return peak_memory(work, layout_of(spec, share_of(spec)))


def layout_of(spec: TrainingSpec, micro: int) -> Layout:
    """How the resolved spec spreads and computes."""
    half = spec.precision in ("bf16", "fp16")
    numbers = Numbers(2 if half else 4, autocast=half and spec.strategy not in SHARDED)
    return Layout(
        strategy=spec.strategy,
        shards=spec.gpus // spec.fsdp.replicas if spec.strategy in SHARDED else 1,
        numbers=numbers,
        accumulates=micro < share_of(spec),
        moments=2 if spec.optimizer.name != "sgd" else int(spec.optimizer.momentum > 0),
        checkpointing=spec.activation_checkpointing,
        offload=spec.strategy in SHARDED and spec.fsdp.cpu_offload,
        bucket_view=spec.ddp.gradient_as_bucket_view,
    )


def work_of(spec: TrainingSpec, model: Sized, micro: int, numbers: Numbers, context: int | None) -> Work | None:
    """One micro-batch; None where nothing is known of the model's activations."""
    outline = model.adapted.outline
    if outline.transformer is not None:
        return _decoder(spec, model, outline.transformer, micro, tokens_of(spec, context), numbers)
    if not outline.sizes:
        return None
    return _plain(spec, model, micro, numbers)


def tokens_of(spec: TrainingSpec, context: int | None) -> int:
    """Tokens of an example at most, as `worker/tasks/causal_lm.py` makes them."""
    own = getattr(spec.model, "context", None)
    if isinstance(spec.data, JsonlData):
        return max(1, (spec.data.max_length or min(own or context or LONGEST_ROW, LONGEST_ROW)) - 1)
    return own or context or LONGEST_ROW


def _decoder(spec: TrainingSpec, sizes: Sized, model: Transformer, micro: int, length: int, numbers: Numbers) -> Work:
    adapted, tokens = sizes.adapted, micro * length
    adapters = None
    if spec.lora_rank is not None:
        targets = frozenset(target.rpartition(".")[2] for target in adapted.targets)
        adapters = Adapters(spec.lora_rank, targets, spec.lora.dropout > 0)
    ops = block_ops(model, tokens, numbers, adapters)
    stream = numbers.stream * tokens * model.width
    blocks = tuple(replace(block, ops=ops, stream=stream, residual=stream) for block in sizes.blocks)
    head = head_of(model, tokens, numbers, frozen=adapters is not None)
    rows = share_of(spec) * (length + 1)
    batch = 8 * tokens + (rows if isinstance(spec.data, BuiltinData) else 16 * rows)
    return Work(blocks, head, adapted.outline.count, adapted.trained_count, batch)


def _plain(spec: TrainingSpec, model: Sized, micro: int, numbers: Numbers) -> Work:
    adapted, outline = model.adapted, model.adapted.outline
    outputs = _outputs(spec)
    sizes = (*outline.sizes, outputs)
    blocks = []
    for place, block in enumerate(model.blocks):
        ops = layer_op(sizes[place], sizes[place + 1], block.elements, micro, numbers)
        blocks.append(replace(block, ops=ops, stream=numbers.bytes * sizes[place] * micro))
    values = _IMAGE + 2 if isinstance(spec.model, ConvnetModel) else sizes[0] + outputs
    return Work(
        tuple(blocks), no_head(outputs, micro), outline.count, adapted.trained_count, 4 * values * share_of(spec)
    )


def _outputs(spec: TrainingSpec) -> int:
    match spec.model:
        case MlpModel(sizes=sizes):
            return sizes[-1]
        case ConvnetModel(classes=classes):
            return classes
    return 0


def _plain_blocks(adapted: Adapted, spec: TrainingSpec) -> list[Block]:
    """Sizes alone, in the model's order; alike ones are not yet put together."""
    outline: Outline = adapted.outline
    gathered = unit_sizes(outline, spec.fsdp)
    elements = dict.fromkeys(outline.blocks, 0)
    trained = dict.fromkeys(outline.blocks, 0)
    for parameter in outline.parameters:
        block = block_of(parameter.name, elements)
        if block is not None:
            elements[block] += parameter.size
            trained[block] += parameter.size if parameter.name in adapted.trained else 0
    return [Block((), elements[name], trained[name], gathered[name], 0) for name in outline.blocks]


def _merged(blocks: list[Block]) -> tuple[Block, ...]:
    """Neighbours that are alike as one."""
    found: list[Block] = []
    for block in blocks:
        if found and replace(found[-1], count=1) == block:
            found[-1] = replace(found[-1], count=found[-1].count + 1)
        else:
            found.append(block)
    return tuple(found)
