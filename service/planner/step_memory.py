"""The fullest moment of an update on one rank, in parts. Pure.

An update is walked through as our engine makes it: the end of the forward, the loss's backward, each block's backward,
the root's, and the optimizer's step. Parameters, gradients and optimizer state are in fp32 whatever the forward
computes in: 16 bytes a parameter with Adam, the sum of the ZeRO paper's 2 + 2 + 12 (Rajbhandari et al. 2020), but the
2-byte copies come on top. Sharding divides as there: `zero1` and `zero2` keep gathered parameters until the backward,
`fsdp` gathers two units at a time, and a unit's reduction needs its whole gradient twice (torch's `fully_shard`: the
gradient, and the buffer that is scattered, which lives until the next unit's).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from service.planner.activation_memory import ComputeDtype, Head, Op, saved

PARTS = ("parameters", "gradients", "optimizer", "buckets", "gathered", "activations", "logits", "transient")


@dataclass(frozen=True)
class Block:
    """One of the parts that a forward computes one after the other."""

    ops: Sequence[Op]
    elements: int
    trained: int
    gathered: int
    """Elements of its largest unit."""
    stream: int
    """Bytes of its input, which is all that full checkpointing keeps."""
    residual: int = 0
    """Bytes of the gradient that goes past it, where its output is added to its input."""
    count: int = 1
    """So many alike, one after the other."""


@dataclass(frozen=True)
class MicroBatchWork:
    """A micro-batch on one rank."""

    blocks: Sequence[Block]
    head: Head
    elements: int
    trained: int
    batch: int
    """Bytes of the update's examples."""

    @property
    def root(self) -> int:
        """Elements that no block gathers."""
        return self.elements - sum(block.elements * block.count for block in self.blocks if block.gathered)

    @property
    def root_trained(self) -> int:
        return self.trained - sum(block.trained * block.count for block in self.blocks if block.gathered)


@dataclass(frozen=True)
class Layout:
    """How the model is spread and computed."""

    strategy: str
    shards: int
    """Ranks that a sharded model is cut over."""
    dtype: ComputeDtype
    accumulates: bool
    """Whether an update takes several micro-batches."""
    moments: int
    """Values that the optimizer keeps for each trained parameter."""
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
    """Bytes on one rank."""

    peak: int
    parts: dict[str, int]
    """At the peak; see `PARTS`."""
    phase: str
    host: int = 0
    """Bytes in the host's memory, with `fsdp.cpu_offload`."""


@dataclass(frozen=True)
class _Walk:
    work: MicroBatchWork
    layout: Layout
    base: dict[str, int] = field(default_factory=dict)


def peak_memory(work: MicroBatchWork, layout: Layout) -> Memory:
    """The largest of all moments."""
    walk = _Walk(work, layout, _standing(work, layout))
    phases = [*_forward(walk), *_head(walk), *_blocks(walk), *_root(walk), _step(walk)]
    name, parts = max(phases, key=lambda phase: sum(phase[1].values()))
    state = 4 * work.elements + (4 + 4 * layout.moments) * work.trained
    host = -(-state // layout.shards) if layout.offload else 0
    return Memory(sum(parts.values()), {part: parts.get(part, 0) for part in PARTS}, name, host)


Phase = tuple[str, dict[str, int]]


def _standing(work: MicroBatchWork, layout: Layout) -> dict[str, int]:
    """What is there all the time."""
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
    """Held when the backward has passed `done` trained elements; all of them where earlier micro-batches left some."""
    layout, trained = walk.layout, walk.work.trained
    so_far = trained if layout.accumulates else done
    if layout.strategy == "ddp":
        # They lie in the buckets, but for those that wait there for the last micro-batch.
        return 4 * so_far if layout.accumulates or not layout.bucket_view else 0
    if layout.strategy == "zero1" and layout.accumulates:
        return 4 * trained
    if layout.sharded:
        return 0 if layout.offload else 4 * so_far // layout.shards
    return 4 * so_far


def _kept(walk: _Walk, block: Block) -> int:
    """Of one block, from its forward to its backward."""
    match walk.layout.checkpointing:
        case "full":
            return block.stream
        case "selective":
            return block.stream + sum(op.saved_output for op in block.ops)
    return saved(block.ops, walk.layout.dtype)


def _all_kept(walk: _Walk) -> int:
    return sum(_kept(walk, block) * block.count for block in walk.work.blocks)


def _gathered(walk: _Walk, *, behind: int, here: int, ahead: int) -> int:
    """Bytes of whole parameters while a block computes.

    Args:
        behind: elements of the blocks that the backward has still to do, this one not counted.
        here: of this block's unit.
        ahead: of the unit that is gathered meanwhile.
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
    """The loss, with everything kept; and the gathering of the last unit, which for a moment is there twice."""
    layout, head = walk.layout, walk.work.head
    gathered = _gathered(walk, behind=_units(walk), here=0, ahead=0)
    kept = _all_kept(walk) + head.kept
    yield (
        "the loss's forward",
        _add(
            walk.base,
            gradients=_gradients(walk, 0),
            gathered=gathered,
            activations=kept,
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
                activations=_all_kept(walk),
                transient=twice,
            ),
        )


def _head(walk: _Walk) -> Iterator[Phase]:
    layout, head = walk.layout, walk.work.head
    last = walk.work.blocks[-1].gathered if walk.work.blocks else 0
    gathered = _gathered(walk, behind=_units(walk), here=0, ahead=last)
    base = _add(walk.base, gradients=_gradients(walk, 0), gathered=gathered, activations=_all_kept(walk) + head.kept)
    yield "the loss's backward", _add(base, logits=head.logits, transient=head.backward)
    graded = head.weights if walk.work.root_trained >= head.weights else 0
    if graded and head.weights:
        cast = 4 if layout.dtype.copy else 0
        several = 4 if head.pieces > 1 else 0
        weights = graded * (layout.dtype.bytes + cast + several)
        yield "the head's backward", _add(base, logits=head.logits and head.after, transient=weights)


def _blocks(walk: _Walk) -> Iterator[Phase]:
    """The first and the last one of those that are alike: between them every part changes evenly."""
    work = walk.work
    kept, left = _all_kept(walk), _units(walk)
    done = _head_graded(walk)
    before = 0
    for number, block in reversed(list(enumerate(work.blocks))):
        ahead = work.blocks[number - 1].gathered if number else 0
        places = sorted({0, 1, block.count - 2, block.count - 1} & set(range(block.count)))
        for place in places:
            yield from _block(
                walk,
                block,
                kept=kept - place * _kept(walk, block),
                behind=left - (place + 1) * (block.elements if block.gathered else 0),
                ahead=block.gathered if place < block.count - 1 else ahead,
                done=done + place * block.trained,
                scattered=block.trained if place else before,
            )
        kept -= block.count * _kept(walk, block)
        left -= block.count * block.elements if block.gathered else 0
        done += block.count * block.trained
        before = block.trained


def _head_graded(walk: _Walk) -> int:
    head = walk.work.head.weights
    return head if walk.work.root_trained >= head else 0


def _block(
    walk: _Walk, block: Block, *, kept: int, behind: int, ahead: int, done: int, scattered: int
) -> Iterator[Phase]:
    """One block's backward, operation by operation.

    Args:
        kept: bytes of this block and those before it.
        behind, ahead: see `_gathered`.
        done: trained elements that the backward has passed.
        scattered: trained elements of the unit whose reduction is under way.
    """
    layout = walk.layout
    dtype, root = layout.dtype, _head_graded(walk)
    full = saved(block.ops, dtype)
    held = kept - _kept(walk, block) + max(full, _kept(walk, block))
    share = block.trained / max(1, sum(op.weights for op in block.ops))
    whole = 0
    # A sharded model's own units reduce at their end; the root's gradients wait for the root's.
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
        # The weight's gradient is cast to fp32 when what the operation had kept is gone.
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
        beside = block.residual + dtype.bytes * root
        yield _reduction(walk, block, gathered=gathered, held=held, beside=beside, done=units_done)


def _reduction(walk: _Walk, block: Block, *, gathered: int, held: int, beside: int, done: int) -> Phase:
    """The end of a sharded unit's backward: its parameters are let go of, and its gradient is scattered."""
    layout, width = walk.layout, walk.layout.dtype.bytes
    # zero1's accumulated gradient is the unit's own; in half precision it is held once more than in fp32.
    own = 0 if layout.strategy == "zero1" and layout.accumulates else width
    reducing = (own + (2 if own == 2 else 0) + 4) * block.trained + 4 * block.trained // layout.shards
    return "a unit's reduction", _add(
        walk.base,
        gradients=_gradients(walk, done),
        gathered=gathered - width * block.gathered,
        activations=held,
        transient=beside + reducing,
    )


def _root(walk: _Walk) -> Iterator[Phase]:
    """The end of the backward: the embeddings' gradients, and a sharded root's reduction."""
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
    # Of a tied weight the head's gradient waits for the embedding's, and both are summed.
    twice = 4 * walk.work.head.weights if root else 0
    yield "the embedding's backward", _add(walk.base, gradients=_gradients(walk, walk.work.trained), transient=twice)


def _step(walk: _Walk) -> Phase:
    return "the optimizer's step", _add(walk.base, gradients=_gradients(walk, walk.work.trained))
