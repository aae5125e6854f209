"""Whether a run fits a GPU, what would make it fit, and which strategy `auto` takes. Pure.

To fit, a run leaves 8 % and 1.5 GiB of the GPU free: for the driver's context, NCCL's buffers and fragments. To be
refused, nine tenths of what it needs are more than all the memory that the largest of the GPUs has: the estimate is
within a tenth of what was measured (`docs/planner.md`), so between the two nothing is claimed.

Ranks without GPUs share their machine's memory: each leaves what Python with torch holds, and only a run whose state
alone is more than all of that memory is refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from service.planner.devices import GIB, Device, largest, smallest
from service.planner.model_structure import Outline
from service.planner.step_memory import Memory
from service.planner.trainable_parameters import adapt
from service.planner.work import Sized, least_of, memory_of, share_of, sized
from trainyard.contract.problems import Problem
from trainyard.contract.spec.training_spec import Strategy, TrainingSpec

SPARE_SHARE = 0.92
SPARE_BYTES = int(1.5 * GIB)
HOST_SPARE_BYTES = GIB // 2
"""Of the host's memory: a rank of a tiny model holds 0.35 GiB."""
SURE = 0.9
"""The part of an estimate that is beyond doubt."""
PROPOSED_RANK = 16
MOST_GPUS = 64


@dataclass(frozen=True)
class Estimate:
    """One spec on one rank. Bytes."""

    micro_size: int
    least: int
    """State alone."""
    memory: Memory | None = None
    """None: activations are not known."""

    @property
    def peak(self) -> int:
        return self.memory.peak if self.memory else self.least


@dataclass(frozen=True)
class Question:
    """A model and the GPUs it is to fit."""

    outline: Outline
    devices: list[Device] = field(default_factory=list)
    context: int | None = None
    cpu: bool = False
    """The ranks have no GPUs; the devices are shares of their machine's memory."""
    _sized: dict[object, Sized | Problem] = field(default_factory=dict, compare=False)

    def model(self, spec: TrainingSpec) -> Sized | Problem:
        """As the spec trains it; gone through once, however many strategies are asked about."""
        key = (spec.lora_rank, spec.lora, spec.trainable, spec.fsdp.wrap, spec.fsdp.min_params)
        if key not in self._sized:
            adapted = adapt(self.outline, spec)
            self._sized[key] = adapted if isinstance(adapted, Problem) else sized(spec, adapted)
        return self._sized[key]

    def estimate(self, spec: TrainingSpec) -> Estimate | Problem:
        """For the spec's micro size; where that is `auto`, the largest halving of a rank's share that fits, or where
        none does the one that needs least."""
        model = self.model(spec)
        if isinstance(model, Problem):
            return model
        least = least_of(spec, model).peak
        asked = spec.batch.micro_size
        sizes = [asked] if isinstance(asked, int) else list(_halvings(share_of(spec)))
        tried: list[Estimate] = []
        for size in sizes:
            tried.append(Estimate(size, least, memory_of(spec, model, size, self.context)))
            if self.fits(tried[-1]) is not False or tried[-1].memory is None:
                return tried[-1]
        # Smaller is not always less: gradients wait for the update's last micro-batch.
        return min(tried, key=lambda one: one.peak)

    def fits(self, estimate: Estimate) -> bool | None:
        """None: not known."""
        room, most = smallest(self.devices), largest(self.devices)
        if room is None or most is None:
            return None
        if estimate.memory is not None:
            return estimate.peak <= SPARE_SHARE * room - (HOST_SPARE_BYTES if self.cpu else SPARE_BYTES)
        return False if estimate.least > most else None

    def surely_not(self, estimate: Estimate) -> bool:
        """Beyond doubt, on every GPU that it could get."""
        most, sure = largest(self.devices), 0.0 if self.cpu else SURE * estimate.peak
        return most is not None and max(sure, estimate.least) > most


def _halvings(share: int) -> Iterator[int]:
    while share > 1:
        yield share
        share = -(-share // 2)
    yield 1


def automatic(question: Question, spec: TrainingSpec) -> tuple[Strategy, str]:
    """What `auto` becomes on several ranks, and why: the least communication that fits.

    Args:
        spec: resolved, with `ddp`.
    """
    ddp = question.estimate(spec)
    if isinstance(ddp, Problem) or question.fits(ddp) is None:
        return "ddp", "`auto` takes ddp on several ranks; whether it fits is not known"
    if question.fits(ddp):
        return "ddp", "`auto` takes ddp: the whole model fits on each GPU"
    for strategy in ("zero2", "fsdp"):
        found = question.estimate(spec.model_copy(update={"strategy": strategy}))
        if not isinstance(found, Problem) and question.fits(found):
            return strategy, f"`auto` takes {strategy}: ddp needs {_gb(ddp.peak)} a GPU, {strategy} {_gb(found.peak)}"
    return "ddp", "`auto` takes ddp: no strategy fits as the spec is"


@dataclass(frozen=True)
class Proposal:
    """A change that fits."""

    set: dict[str, Any]
    message: str
    peak: int


def proposals(question: Question, spec: TrainingSpec, count: int = 3) -> list[Proposal]:
    """Changes under which a spec that does not fit would, the cheapest in time first."""
    found: list[Proposal] = []
    for changes, words in _candidates(spec, most_gpus=0 if question.cpu else MOST_GPUS):
        if any(changes == other.set for other in found):
            continue
        changed = _changed(spec, changes)
        estimate = question.estimate(changed)
        if not isinstance(estimate, Problem) and estimate.memory is not None and question.fits(estimate):
            found.append(Proposal(changes, f"{words}: {_gb(estimate.peak)}", estimate.peak))
            if len(found) == count:
                break
    return found


def _candidates(spec: TrainingSpec, *, most_gpus: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Less at once costs nearly nothing, sharding communication, checkpointing a third more arithmetic. More ranks that
    share a machine's memory would each have less of it: there `most_gpus` is 0."""
    micro = spec.batch.micro_size
    smaller: dict[str, Any] = {}
    if isinstance(micro, int):
        for size in list(_halvings(micro))[1:]:
            smaller = {"batch.micro_size": size}
            yield smaller, f"batch.micro_size {size}"
    sharded: dict[str, Any] = {}
    if spec.gpus > 1 and spec.strategy not in ("fsdp", "hsdp"):
        sharded = {"strategy": "fsdp"}
        yield sharded, "strategy fsdp"
        if smaller:
            yield sharded | smaller, f"strategy fsdp and batch.micro_size {smaller['batch.micro_size']}"
    if spec.activation_checkpointing != "full":
        again = {"activation_checkpointing": "full"}
        yield again, "activation_checkpointing full"
        yield sharded | smaller | again, " and ".join(_words(sharded | smaller | again))
    else:
        again = {}
    gpus = spec.gpus * 2
    while gpus <= min(most_gpus, spec.batch.size):
        more = {"gpus": gpus, "strategy": spec.strategy if spec.strategy == "hsdp" else "fsdp"}
        yield more | smaller, " and ".join(_words(more | smaller))
        yield more | smaller | again, " and ".join(_words(more | smaller | again))
        gpus *= 2
    if spec.lora_rank is None and spec.trainable is None:
        for others in ({}, sharded | smaller | again):
            lora = {"lora_rank": PROPOSED_RANK, **others}
            yield lora, f"{' and '.join(_words(lora))} (it trains adapters alone, which is another training)"


def _words(changes: dict[str, Any]) -> list[str]:
    return [f"{path} {value}" for path, value in changes.items()]


def _changed(spec: TrainingSpec, changes: dict[str, Any]) -> TrainingSpec:
    plain = {path: value for path, value in changes.items() if "." not in path}
    if "batch.micro_size" in changes:
        plain["batch"] = spec.batch.model_copy(update={"micro_size": changes["batch.micro_size"]})
    return spec.model_copy(update=plain)


def too_large(question: Question, spec: TrainingSpec) -> list[Problem]:
    """Why a resolved spec can never run on these GPUs, with the numbers and the cheapest change. A model that the
    adapters do not seem to fit is left to the worker, which has the model itself."""
    estimate = question.estimate(spec)
    if isinstance(estimate, Problem) or not question.surely_not(estimate):
        return []
    ways = proposals(question, spec, count=1)
    changed = "strategy or checkpointing" if question.cpu else "strategy, checkpointing or GPUs"
    way = f"; {ways[0].message} would fit" if ways else f"; no change of {changed} would fit"
    return [Problem(param="strategy", message=f"{needs(question, estimate)}{way}")]


def needs(question: Question, estimate: Estimate) -> str:
    """`needs about 38 GiB of 24 GiB per GPU: parameters 12, ...`."""
    most = largest(question.devices)
    room = f"{f' of {_gb(most)}' if most is not None else ''} per {'rank' if question.cpu else 'GPU'}"
    if question.cpu and most is not None:
        room += f" ({question.devices[0].type})"
    if estimate.memory is None:
        return f"needs more than {_gb(estimate.least)}{room}, without activations"
    parts = sorted(estimate.memory.parts.items(), key=lambda part: -part[1])
    unit = _unit(estimate.peak)[0]
    told = ", ".join(f"{name} {size / unit:.3g}" for name, size in parts if size >= 0.01 * estimate.peak)
    return f"needs about {_gb(estimate.peak)}{room}: {told}"


def _gb(size: int) -> str:
    unit, name = _unit(size)
    return f"{size / unit:.3g} {name}"


def _unit(size: int) -> tuple[int, str]:
    if size >= 1000 * GIB:
        return 2**40, "TiB"
    return (GIB, "GiB") if size >= GIB // 2 else (2**20, "MiB")
