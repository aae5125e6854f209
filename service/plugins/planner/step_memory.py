"""Peak memory of one step on one rank, by part. Pure functions; all values are bytes unless stated otherwise.

One step is simulated as the engine executes it: the end of the forward, the backward of the loss, of each block and
of the root, and the optimizer's update. Parameters, gradients and optimizer state are fp32 unless the spec states
other types: 16 bytes per parameter with Adam, like the 2 + 2 + 12 of mixed precision in ZeRO (Rajbhandari et al.
2020, arXiv:1910.02054, section 3.1), but 2-byte copies come on top. Sharding divides them as ZeRO does. `zero1` and
`zero2` keep gathered parameters until the backward; `fsdp` gathers two units at a time, and the root, the head and
the last block stay gathered between forward and backward. The reduction of a unit needs its whole gradient twice: the
gradient, and the reduce-scatter buffer, which lives until the next unit's reduction (PyTorch documentation,
`torch.distributed.fsdp.fully_shard`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from service.plugins.planner.activation_memory import ComputeDtype, Head, pinned_bytes, saved
from service.plugins.planner.step_sizes import NO_UNIT, Block, Memory, Unit
from trainyard.contract.kinds.strategies import StrategyKind

PARTS = ("parameters", "gradients", "optimizer", "buckets", "gathered", "activations", "logits", "transient")


@dataclass(frozen=True)
class MicroBatchWork:
    """One micro-batch on one rank."""

    blocks: Sequence[Block]
    head: Head
    elements: int
    trained: int
    batch: int
    """Bytes of the rank's examples of a step."""
    optimizer_bytes: int
    """Bytes of the optimizer's state and of the average of the weights."""
    embedding_unit: Unit = NO_UNIT
    head_unit: Unit = NO_UNIT
    """The input embeddings and the head, if they are FSDP units; else they belong to the root unit."""
    update: int = 0
    """Bytes of temporary values in the optimizer's update."""
    held: int | None = None
    """Bytes of all parameters as a rank would hold them without sharding. None: 4 for each element."""
    converted: int = 0
    """Bytes of the weight of a layer that computes, converted from how it is held."""

    @property
    def held_bytes(self) -> int:
        return 4 * self.elements if self.held is None else self.held

    @property
    def root(self) -> int:
        """Elements of the root unit."""
        inner = sum(block.elements * block.count for block in self.blocks if block.unit_elements)
        return self.elements - inner - self.embedding_unit.elements - self.head_unit.elements

    @property
    def root_trained(self) -> int:
        inner = sum(block.trained * block.count for block in self.blocks if block.unit_elements)
        return self.trained - inner - self.embedding_unit.trained - self.head_unit.trained

    @property
    def last_unit(self) -> int:
        """Elements of the unit of the last block."""
        return self.blocks[-1].unit_elements if self.blocks else 0


@dataclass(frozen=True)
class Layout:
    """How the model is sharded, and in which dtype it computes."""

    strategy: StrategyKind
    shards: int
    """The number of ranks over which a model is sharded."""
    dtype: ComputeDtype
    accumulates: bool
    """Whether a step has several micro-batches."""
    checkpointing: str = "none"
    offload: bool = False
    bucket_view: bool = True
    gradient_bytes: int = 4
    """Bytes of a stored value of a gradient."""


@dataclass(frozen=True)
class _Simulation:
    work: MicroBatchWork
    layout: Layout
    base: dict[str, int] = field(default_factory=dict)


def peak_memory(work: MicroBatchWork, layout: Layout) -> Memory:
    """Return the memory at the phase of the step with the largest sum."""
    sim = _Simulation(work, layout, _constant_memory(work, layout))
    phases = [*_forward(sim), *_head(sim), *_blocks(sim), *_root(sim), _step(sim)]
    name, parts = max(phases, key=lambda phase: sum(phase[1].values()))
    state = -(-(work.held_bytes + 4 * work.trained + work.optimizer_bytes) // layout.shards)
    inputs = sum(block.count * pinned_bytes(block.input_bytes) for block in work.blocks)
    host = (state if layout.offload else 0) + (inputs if layout.checkpointing == "offload" else 0)
    return Memory(sum(parts.values()), {part: parts.get(part, 0) for part in PARTS}, name, host)


def evaluation_memory(work: MicroBatchWork, layout: Layout, training: Memory) -> Memory:
    """Return the memory of a forward of the evaluation, which saves nothing for a backward.

    Args:
        training: The estimate of a step. The gradients of the last step live until the next step.
    """
    sim = _Simulation(work, layout, _constant_memory(work, layout))
    last, head = work.head_unit.elements, work.head
    units = [(block.unit_elements, saved(block.ops, layout.dtype), 0) for block in work.blocks]
    forwards = [*units, (last, head.saved_bytes, head.logits + head.forward)]
    phases = [
        _add(
            sim.base,
            gradients=_gradients(sim, work.trained),
            gathered=_gathered(sim, pending=_units(sim) + last, current=unit, prefetched=work.last_unit),
            activations=activations,
            logits=logits,
            transient=work.converted,
        )
        for unit, activations, logits in forwards
    ]
    parts = max(phases, key=lambda phase: sum(phase.values()))
    return Memory(sum(parts.values()), {part: parts.get(part, 0) for part in PARTS}, "the evaluation", training.host)


Phase = tuple[str, dict[str, int]]


def _constant_memory(work: MicroBatchWork, layout: Layout) -> dict[str, int]:
    """Return the memory that is allocated during the whole step."""
    if layout.offload:
        return {"activations": work.batch}
    shards = layout.shards if layout.strategy.is_sharded else 1
    memory = {
        "parameters": -(-work.held_bytes // shards),
        "optimizer": -(-work.optimizer_bytes // shards),
        "activations": work.batch,
    }
    if layout.strategy.sums_in_buckets:
        memory["buckets"] = layout.gradient_bytes * work.trained
    return memory


def _gradients(sim: _Simulation, done: int) -> int:
    """Return the gradients after the backward of `done` trained elements; all of them if micro-batches accumulate."""
    layout, trained, width = sim.layout, sim.work.trained, sim.layout.gradient_bytes
    so_far = trained if layout.accumulates else done
    if layout.strategy.sums_in_buckets:
        # With `gradient_as_bucket_view`, gradients are views of the buckets, except while micro-batches accumulate
        # (PyTorch documentation, DistributedDataParallel).
        return width * so_far if layout.accumulates or not layout.bucket_view else 0
    if layout.strategy.accumulates_whole_gradients and layout.accumulates:
        return 4 * trained
    if layout.strategy.is_sharded:
        return 0 if layout.offload else width * so_far // layout.shards
    return width * so_far


def _saved_by(sim: _Simulation, block: Block) -> int:
    """Return the bytes that a block saves from its forward for its backward."""
    match sim.layout.checkpointing:
        case "full" | "offload" as how:
            return 0 if how == "offload" else block.input_bytes
        case "selective":
            return block.input_bytes + sum(op.saved_output for op in block.ops)
    return saved(block.ops, sim.layout.dtype)


def _all_saved(sim: _Simulation) -> int:
    """Return the bytes that all blocks save on the device; if inputs are in host memory, the largest, while it is
    copied."""
    if sim.layout.checkpointing == "offload":
        return max((block.input_bytes for block in sim.work.blocks), default=0)
    return sum(_saved_by(sim, block) * block.count for block in sim.work.blocks)


def _cached_weights(sim: _Simulation) -> int:
    """Return the cast copies of trained weights that autocast holds until the end of the forward (PyTorch
    documentation, `torch.autocast`), where blocks do not save them."""
    if sim.layout.checkpointing == "none":
        return 0
    used = (block.count * min(block.trained, sum(op.weights for op in block.ops)) for block in sim.work.blocks)
    return sim.layout.dtype.weight_copy_bytes * sum(used)


def _gathered(sim: _Simulation, *, pending: int, current: int, prefetched: int) -> int:
    """Return the bytes of gathered parameters while a block or the head computes.

    Args:
        pending: Elements of the blocks that the backward has not reached, without this block.
        current: Elements of this block's unit, or of the head's.
        prefetched: Elements of the unit that is prefetched meanwhile, or that stays gathered.
    """
    layout = sim.layout
    if not layout.strategy.is_sharded:
        return 0
    others = prefetched if layout.strategy.reshards_after_forward else pending + sim.work.embedding_unit.elements
    return layout.dtype.bytes * (current + others + sim.work.root)


def _add(base: dict[str, int], **more: int) -> dict[str, int]:
    return {part: base.get(part, 0) + more.get(part, 0) for part in {*base, *more}}


def _units(sim: _Simulation) -> int:
    return sum(block.elements * block.count for block in sim.work.blocks if block.unit_elements)


def _forward(sim: _Simulation) -> Iterator[Phase]:
    """Yield the loss with all activations saved, and the gathering of units, each of which then exists twice."""
    layout, work, head = sim.layout, sim.work, sim.work.head
    before_head = _gathered(sim, pending=_units(sim), current=0, prefetched=0)
    at_head = _gathered(sim, pending=_units(sim), current=work.head_unit.elements, prefetched=work.last_unit)
    yield (
        "the loss's forward",
        _add(
            sim.base,
            gradients=_gradients(sim, 0),
            gathered=at_head,
            activations=_all_saved(sim) + _cached_weights(sim) + head.saved_bytes,
            logits=head.logits,
            transient=head.forward,
        ),
    )
    if not layout.strategy.is_sharded:
        return
    largest = max((block.unit_elements for block in work.blocks), default=0) or work.root
    copies = 2 if layout.strategy.reshards_after_forward else 1
    units = {
        "the gathering of the embeddings": (work.embedding_unit.elements, before_head, 0),
        "the gathering of a unit": (largest, before_head, _all_saved(sim)),
        # `at_head` already includes a copy.
        "the gathering of the head": (work.head_unit.elements, at_head, _all_saved(sim)),
    }
    for name, (elements, gathered, activations) in units.items():
        extra = layout.dtype.bytes * elements * (1 if gathered is at_head else copies)
        parts = {"gradients": _gradients(sim, 0), "gathered": gathered, "activations": activations, "transient": extra}
        early = name == "the gathering of the embeddings"
        if elements and (layout.strategy.reshards_after_forward or not early):
            yield name, _add(sim.base, **parts)


def _head(sim: _Simulation) -> Iterator[Phase]:
    layout, work, head = sim.layout, sim.work, sim.work.head
    gathered = _gathered(sim, pending=_units(sim), current=work.head_unit.elements, prefetched=work.last_unit)
    base = _add(
        sim.base, gradients=_gradients(sim, 0), gathered=gathered, activations=_all_saved(sim) + head.saved_bytes
    )
    trained_weights = _trained_head_weights(sim)
    # All chunks add to the same gradient in fp32.
    accumulated = 4 * trained_weights if head.chunks > 1 else 0
    # The gradients of chunks are computed in the forward.
    cached = _cached_weights(sim) if head.chunks > 1 else 0
    activations = base["activations"] + cached
    yield (
        "the loss's backward",
        base | {"activations": activations, "logits": head.logits, "transient": head.backward + accumulated},
    )
    if trained_weights:
        cast = layout.gradient_bytes if layout.dtype.autocast else 0
        weights = trained_weights * (layout.dtype.bytes + cast) + accumulated
        yield (
            "the head's backward",
            base | {"activations": activations, "logits": head.logits and head.after, "transient": weights},
        )
    if layout.strategy.is_sharded and work.head_unit.trained:
        unit = Block((), work.head_unit.elements, work.head_unit.trained, work.head_unit.elements, 0)
        yield _reduction(sim, unit, gathered=gathered, activations=_all_saved(sim), others=0, done=0)


def _blocks(sim: _Simulation) -> Iterator[Phase]:
    """Yield the backward of the blocks. For equal blocks, the first and last two suffice: between them all parts change
    linearly."""
    work = sim.work
    saved_bytes, left = _all_saved(sim), _units(sim)
    done = _trained_head_weights(sim)
    before = work.head_unit.trained
    for number, block in reversed(list(enumerate(work.blocks))):
        prefetched = work.blocks[number - 1].unit_elements if number else 0
        indices = sorted({0, 1, block.count - 2, block.count - 1} & set(range(block.count)))
        for index in indices:
            yield from _block(
                sim,
                block,
                saved_bytes=saved_bytes - index * _saved_by(sim, block),
                pending=left - (index + 1) * (block.elements if block.unit_elements else 0),
                prefetched=block.unit_elements if index < block.count - 1 else prefetched,
                done=done + index * block.trained,
                scattered=block.trained if index else before,
            )
        saved_bytes -= block.count * _saved_by(sim, block)
        left -= block.count * block.elements if block.unit_elements else 0
        done += block.count * block.trained
        before = block.trained


def _trained_head_weights(sim: _Simulation) -> int:
    if sim.work.head_unit.elements:
        return sim.work.head_unit.trained
    head = sim.work.head.weights
    return head if sim.work.root_trained >= head else 0


def _block(
    sim: _Simulation, block: Block, *, saved_bytes: int, pending: int, prefetched: int, done: int, scattered: int
) -> Iterator[Phase]:
    """Yield the backward of a block, operation by operation.

    Args:
        saved_bytes: Bytes saved by this block and those before it.
        pending, prefetched: See `_gathered`.
        done: Trained elements whose gradients exist already.
        scattered: Trained elements of the unit that is being reduced.
    """
    layout, dtype = sim.layout, sim.layout.dtype
    root = 0 if sim.work.head_unit.elements else _trained_head_weights(sim)
    full = saved(block.ops, dtype)
    activations = saved_bytes - _saved_by(sim, block) + max(full, _saved_by(sim, block))
    trained_fraction = block.trained / max(1, sum(op.weights for op in block.ops))
    weights_done = 0
    # Units of a sharded model are reduced at their end; the gradients of the root unit wait for its own reduction.
    waiting = dtype.bytes * root + 4 * scattered if layout.strategy.is_sharded else 0
    units_done = max(0, done - root) if layout.strategy.is_sharded else done
    gathered = _gathered(sim, pending=pending, current=block.unit_elements, prefetched=prefetched)
    for op in reversed(block.ops):
        weights_trained = int(op.weights * trained_fraction)
        weight_grad = dtype.bytes * weights_trained
        if layout.strategy.is_sharded:
            gradients, earlier_grads = _gradients(sim, units_done), dtype.bytes * weights_done
        else:
            computed = done if layout.strategy.sums_in_buckets else done + weights_done
            gradients, earlier_grads = _gradients(sim, computed), 0
        released = op.saved + dtype.weight_copy_bytes * op.weights
        # The weight's gradient is cast to fp32 after the operation's saved tensors are freed.
        casts = dtype.cast_bytes and layout.gradient_bytes == 4
        cast = max(0, 4 * weights_trained - released - op.grad_out) if casts else 0
        others = weight_grad + earlier_grads + cast + waiting + (sim.work.converted if op.weights else 0)
        yield (
            "a block's backward",
            _add(
                sim.base,
                gradients=gradients,
                gathered=gathered,
                activations=activations,
                transient=block.residual_grad + op.grad_out + op.grad_in + others,
            ),
        )
        activations -= released
        weights_done += weights_trained
    if layout.strategy.is_sharded and block.unit_elements:
        others = block.residual_grad + dtype.bytes * root
        yield _reduction(sim, block, gathered=gathered, activations=activations, others=others, done=units_done)


def _reduction(sim: _Simulation, block: Block, *, gathered: int, activations: int, others: int, done: int) -> Phase:
    """Return the end of a sharded unit's backward: its parameters are freed and its gradient is reduce-scattered."""
    layout, width = sim.layout, sim.layout.dtype.bytes
    # zero1 reduces the accumulated gradient in place; half precision needs one more copy than fp32.
    gradient_bytes = 0 if layout.strategy.accumulates_whole_gradients and layout.accumulates else width
    copy_bytes = 2 if gradient_bytes == 2 else 0
    reducing = (gradient_bytes + copy_bytes + 4) * block.trained + 4 * block.trained // layout.shards
    return "a unit's reduction", _add(
        sim.base,
        gradients=_gradients(sim, done),
        gathered=gathered - width * block.unit_elements,
        activations=activations,
        transient=others + reducing,
    )


def _root(sim: _Simulation) -> Iterator[Phase]:
    """Yield the end of the backward: the gradients of embeddings, or the reduction of a sharded root."""
    layout, root, embedding = sim.layout, sim.work.root_trained, sim.work.embedding_unit
    if layout.strategy.is_sharded:
        done = sim.work.trained - root - embedding.trained
        gathered = layout.dtype.bytes * (sim.work.root + embedding.elements)
        for name, trained in (("the embedding's reduction", embedding.trained), ("the root's reduction", root)):
            transient = trained * (layout.dtype.bytes + 4) + 4 * trained // layout.shards
            yield name, _add(sim.base, gradients=_gradients(sim, done), gathered=gathered, transient=transient)
            done += trained
            gathered = layout.dtype.bytes * sim.work.root
        return
    # For a tied weight, the gradient of the head waits for the gradient of the embedding, to which it is added.
    twice = 4 * sim.work.head.weights if root else 0
    yield "the embedding's backward", _add(sim.base, gradients=_gradients(sim, sim.work.trained), transient=twice)


def _step(sim: _Simulation) -> Phase:
    update = 0 if sim.layout.offload else sim.work.update
    return "the optimizer's step", _add(sim.base, gradients=_gradients(sim, sim.work.trained), transient=update)
