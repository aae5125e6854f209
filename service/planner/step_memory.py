"""Peak memory of one step on one rank, by part. Pure functions; all values are bytes unless stated otherwise.

One step is simulated as the engine executes it: the end of the forward, the backward of the loss, of each block and of
the root, and the optimizer's update. Parameters, gradients and optimizer state are fp32 whatever the forward computes
in: 16 bytes per parameter with Adam, like the 2 + 2 + 12 of mixed precision in ZeRO (Rajbhandari et al. 2020,
arXiv:1910.02054, section 3.1), but 2-byte copies come on top. Sharding divides them as ZeRO does. `zero1` and `zero2`
keep gathered parameters until the backward; `fsdp` gathers two units at a time. The reduction of a unit needs its whole
gradient twice: the gradient, and the reduce-scatter buffer, which lives until the next unit's reduction (PyTorch
documentation, `torch.distributed.fsdp.fully_shard`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from service.planner.activation_memory import ComputeDtype, Head, Op, saved

PARTS = ("parameters", "gradients", "optimizer", "buckets", "gathered", "activations", "logits", "transient")


@dataclass(frozen=True)
class Block:
    """One of the blocks that the forward computes one after the other."""

    ops: Sequence[Op]
    elements: int
    trained: int
    gathered: int
    """Elements of its largest FSDP unit; 0: its parameters belong to the root unit."""
    stream: int
    """Bytes of its input, which is all that full activation checkpointing saves."""
    residual: int = 0
    """Bytes of the gradient of its residual connection."""
    count: int = 1
    """The number of equal blocks in a row."""


@dataclass(frozen=True)
class MicroBatchWork:
    """One micro-batch on one rank."""

    blocks: Sequence[Block]
    head: Head
    elements: int
    trained: int
    batch: int
    """Bytes of the rank's examples of one step."""

    @property
    def root(self) -> int:
        """Elements of the root unit."""
        return self.elements - sum(block.elements * block.count for block in self.blocks if block.gathered)

    @property
    def root_trained(self) -> int:
        return self.trained - sum(block.trained * block.count for block in self.blocks if block.gathered)


@dataclass(frozen=True)
class Layout:
    """How the model is sharded, and in which dtype it computes."""

    strategy: str
    shards: int
    """The number of ranks over which a model is sharded."""
    dtype: ComputeDtype
    accumulates: bool
    """Whether a step has several micro-batches."""
    moments: int
    """Values that the optimizer stores for each trained parameter."""
    checkpointing: str = "none"
    offload: bool = False
    bucket_view: bool = True

    @property
    def sharded(self) -> bool:
        return self.strategy in ("zero1", "zero2", "fsdp", "hsdp")

    @property
    def keeps_gathered(self) -> bool:
        return self.strategy in ("zero1", "zero2")


@dataclass(frozen=True)
class Memory:
    """The peak memory of one rank, in bytes."""

    peak: int
    parts: dict[str, int]
    """The parts of the peak, by the names in `PARTS`."""
    phase: str
    host: int = 0
    """Host memory, with `fsdp.cpu_offload`."""


@dataclass(frozen=True)
class _Walk:
    work: MicroBatchWork
    layout: Layout
    base: dict[str, int] = field(default_factory=dict)


def peak_memory(work: MicroBatchWork, layout: Layout) -> Memory:
    """Return the memory at the phase of the step with the largest sum."""
    walk = _Walk(work, layout, _standing(work, layout))
    phases = [*_forward(walk), *_head(walk), *_blocks(walk), *_root(walk), _step(walk)]
    name, parts = max(phases, key=lambda phase: sum(phase[1].values()))
    state = 4 * work.elements + (4 + 4 * layout.moments) * work.trained
    host = -(-state // layout.shards) if layout.offload else 0
    return Memory(sum(parts.values()), {part: parts.get(part, 0) for part in PARTS}, name, host)


Phase = tuple[str, dict[str, int]]


def _standing(work: MicroBatchWork, layout: Layout) -> dict[str, int]:
    """Return the memory that is allocated during the whole step."""
    if layout.offload:
        return {"activations": work.batch}
    shards = layout.shards if layout.sharded else 1
    standing = {
        "parameters": -(-4 * work.elements // shards),
        "optimizer": -(-4 * layout.moments * work.trained // shards),
        "activations": work.batch,
    }
    if layout.strategy == "ddp":
        standing["buckets"] = 4 * work.trained
    return standing


def _gradients(walk: _Walk, done: int) -> int:
    """Return the gradients after the backward of `done` trained elements; all of them if micro-batches accumulate."""
    layout, trained = walk.layout, walk.work.trained
    so_far = trained if layout.accumulates else done
    if layout.strategy == "ddp":
        # With `gradient_as_bucket_view`, gradients are views of the buckets, except while micro-batches accumulate
        # (PyTorch documentation, DistributedDataParallel).
        return 4 * so_far if layout.accumulates or not layout.bucket_view else 0
    if layout.strategy == "zero1" and layout.accumulates:
        return 4 * trained
    if layout.sharded:
        return 0 if layout.offload else 4 * so_far // layout.shards
    return 4 * so_far


def _saved_by(walk: _Walk, block: Block) -> int:
    """Return what one block saves from its forward to its backward."""
    match walk.layout.checkpointing:
        case "full":
            return block.stream
        case "selective":
            return block.stream + sum(op.saved_output for op in block.ops)
    return saved(block.ops, walk.layout.dtype)


def _all_saved(walk: _Walk) -> int:
    return sum(_saved_by(walk, block) * block.count for block in walk.work.blocks)


def _gathered(walk: _Walk, *, behind: int, here: int, ahead: int) -> int:
    """Return the bytes of gathered parameters while a block computes.

    Args:
        behind: Elements of the blocks that the backward has not reached, without this one.
        here: Elements of this block's unit.
        ahead: Elements of the unit that is prefetched meanwhile.
    """
    layout = walk.layout
    if not layout.sharded:
        return 0
    held = behind + here if layout.keeps_gathered else here + ahead
    return layout.dtype.bytes * (held + walk.work.root)


def _add(base: dict[str, int], **more: int) -> dict[str, int]:
    return {part: base.get(part, 0) + more.get(part, 0) for part in {*base, *more}}


def _units(walk: _Walk) -> int:
    return sum(block.elements * block.count for block in walk.work.blocks if block.gathered)


def _forward(walk: _Walk) -> Iterator[Phase]:
    """Yield the loss with all activations saved, and the gathering of the last unit, which then exists twice."""
    layout, head = walk.layout, walk.work.head
    gathered = _gathered(walk, behind=_units(walk), here=0, ahead=0)
    saved_bytes = _all_saved(walk) + head.saved_bytes
    yield (
        "the loss's forward",
        _add(
            walk.base,
            gradients=_gradients(walk, 0),
            gathered=gathered,
            activations=saved_bytes,
            logits=head.logits,
            transient=head.forward,
        ),
    )
    if layout.sharded:
        largest = max((block.gathered for block in walk.work.blocks), default=0) or walk.work.root
        twice = layout.dtype.bytes * largest * (1 if layout.keeps_gathered else 2)
        yield (
            "the gathering of a unit",
            _add(
                walk.base,
                gradients=_gradients(walk, 0),
                gathered=gathered,
                activations=_all_saved(walk),
                transient=twice,
            ),
        )


def _head(walk: _Walk) -> Iterator[Phase]:
    layout, head = walk.layout, walk.work.head
    last = walk.work.blocks[-1].gathered if walk.work.blocks else 0
    gathered = _gathered(walk, behind=_units(walk), here=0, ahead=last)
    base = _add(
        walk.base, gradients=_gradients(walk, 0), gathered=gathered, activations=_all_saved(walk) + head.saved_bytes
    )
    yield "the loss's backward", _add(base, logits=head.logits, transient=head.backward)
    graded = head.weights if walk.work.root_trained >= head.weights else 0
    if graded and head.weights:
        cast = 4 if layout.dtype.copy else 0
        several = 4 if head.pieces > 1 else 0
        weights = graded * (layout.dtype.bytes + cast + several)
        yield "the head's backward", _add(base, logits=head.logits and head.after, transient=weights)


def _blocks(walk: _Walk) -> Iterator[Phase]:
    """Yield the backward of the blocks. Of equal blocks, the first and last two suffice: between them all parts change
    linearly."""
    work = walk.work
    saved_bytes, left = _all_saved(walk), _units(walk)
    done = _head_graded(walk)
    before = 0
    for number, block in reversed(list(enumerate(work.blocks))):
        ahead = work.blocks[number - 1].gathered if number else 0
        indices = sorted({0, 1, block.count - 2, block.count - 1} & set(range(block.count)))
        for index in indices:
            yield from _block(
                walk,
                block,
                saved_bytes=saved_bytes - index * _saved_by(walk, block),
                behind=left - (index + 1) * (block.elements if block.gathered else 0),
                ahead=block.gathered if index < block.count - 1 else ahead,
                done=done + index * block.trained,
                scattered=block.trained if index else before,
            )
        saved_bytes -= block.count * _saved_by(walk, block)
        left -= block.count * block.elements if block.gathered else 0
        done += block.count * block.trained
        before = block.trained


def _head_graded(walk: _Walk) -> int:
    head = walk.work.head.weights
    return head if walk.work.root_trained >= head else 0


def _block(
    walk: _Walk, block: Block, *, saved_bytes: int, behind: int, ahead: int, done: int, scattered: int
) -> Iterator[Phase]:
    """Yield the backward of one block, operation by operation.

    Args:
        kept: Bytes saved by this block and those before it.
        behind, ahead: See `_gathered`.
        done: Trained elements whose gradients exist already.
        scattered: Trained elements of the unit that is being reduced.
    """
    layout = walk.layout
    dtype, root = layout.dtype, _head_graded(walk)
    full = saved(block.ops, dtype)
    held = saved_bytes - _saved_by(walk, block) + max(full, _saved_by(walk, block))
    share = block.trained / max(1, sum(op.weights for op in block.ops))
    whole = 0
    # Units of a sharded model are reduced at their end; the gradients of the root unit wait for its own reduction.
    waiting = dtype.bytes * root + 4 * scattered if layout.sharded else 0
    units_done = max(0, done - root) if layout.sharded else done
    gathered = _gathered(walk, behind=behind, here=block.gathered, ahead=ahead)
    for op in reversed(block.ops):
        mine = int(op.weights * share)
        fresh = dtype.bytes * mine
        if layout.sharded:
            gradients, earlier = _gradients(walk, units_done), dtype.bytes * whole
        else:
            gradients, earlier = _gradients(walk, done if layout.strategy == "ddp" else done + whole), 0
        released = op.saved + dtype.copy * op.weights
        # The weight's gradient is cast to fp32 after the operation's saved tensors are freed.
        cast = max(0, 4 * mine - released - op.grad_out) if dtype.copy else 0
        yield (
            "a block's backward",
            _add(
                walk.base,
                gradients=gradients,
                gathered=gathered,
                activations=held,
                transient=block.residual + op.grad_out + op.grad_in + fresh + earlier + cast + waiting,
            ),
        )
        held -= released
        whole += mine
    if layout.sharded and block.gathered:
        others = block.residual + dtype.bytes * root
        yield _reduction(walk, block, gathered=gathered, held=held, others=others, done=units_done)


def _reduction(walk: _Walk, block: Block, *, gathered: int, held: int, others: int, done: int) -> Phase:
    """Return the end of a sharded unit's backward: its parameters are freed and its gradient is reduce-scattered."""
    layout, width = walk.layout, walk.layout.dtype.bytes
    # The accumulated gradient of zero1 is the unit's own; half precision needs one more copy than fp32.
    own = 0 if layout.strategy == "zero1" and layout.accumulates else width
    reducing = (own + (2 if own == 2 else 0) + 4) * block.trained + 4 * block.trained // layout.shards
    return "a unit's reduction", _add(
        walk.base,
        gradients=_gradients(walk, done),
        gathered=gathered - width * block.gathered,
        activations=held,
        transient=others + reducing,
    )


def _root(walk: _Walk) -> Iterator[Phase]:
    """Yield the end of the backward: the gradients of embeddings, or the reduction of a sharded root."""
    layout, root = walk.layout, walk.work.root_trained
    if layout.sharded:
        done = walk.work.trained - root
        gathered = layout.dtype.bytes * walk.work.root
        transient = root * (layout.dtype.bytes + 4) + 4 * root // layout.shards
        yield (
            "the root's reduction",
            _add(walk.base, gradients=_gradients(walk, done), gathered=gathered, transient=transient),
        )
        return
    # For a tied weight, the gradient of the head waits for that of the embedding, to which it is added.
    twice = 4 * walk.work.head.weights if root else 0
    yield "the embedding's backward", _add(walk.base, gradients=_gradients(walk, walk.work.trained), transient=twice)


def _step(walk: _Walk) -> Phase:
    return "the optimizer's step", _add(walk.base, gradients=_gradients(walk, walk.work.trained))
