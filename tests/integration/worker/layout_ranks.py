"""Ranks that train many small specs in one process group and write results to compare."""

import gc
import json
import os
import pickle
import signal
import traceback
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.host_memory import LiveTensorBytes
from tests.support.no_checkpoints import NoCheckpoints
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.launch import LaunchDocument
from worker.checkpoint.manager import CheckpointManager
from worker.core import distributed
from worker.core.errors import TrainingError
from worker.core.random_state import seed_generators
from worker.core.stop_signal import StopSignal
from worker.data.model_files import remove_private_folders
from worker.engine import step_sync
from worker.engine.frozen_base import held_dtype, hold_base
from worker.engine.precision import COMPUTE_DTYPE
from worker.engine.run_inputs import load_inputs
from worker.engine.step_sync import StepSync
from worker.engine.strategies import ddp
from worker.engine.train_step import TrainStep
from worker.engine.trainable import freeze_parameters
from worker.engine.trainer import Trainer
from worker.export.weights import export_weights, whole_weights
from worker.tasks import causal_lm
from worker.tasks.language_loss import summed_loss
from worker.tasks.select import select_task

TENSORS = ("parameters", "exported", "logits")
"""Results with many numbers."""


class ListReporter:
    def __init__(self):
        self.series = {}
        self.events = {}
        self.stopped_early = []

    def points(self, step, values, progress=None):
        for key, value in values.items():
            self.series.setdefault(key, {})[step] = repr(value)

    def event(self, type_, message, *, level="info", data=None):
        self.events[type_] = message
        if type_ == "stopped_early":
            self.stopped_early.append(data)

    def flush_to_disk(self):
        pass

    def checkpoint(self, report):
        pass


class StopAtStep(StopSignal):
    """A stop request that one rank receives while a given step runs."""

    def __init__(self, request, recorder, step):
        super().__init__(request)
        self.recorder, self.step = recorder, step

    @property
    def requested(self):
        return self.recorder.step >= self.step


class StopBefore(StepSync):
    """Stops before a given step."""

    def __init__(self, ranks, start, until):
        super().__init__(ranks, StopSignal(Path("stop")))
        self.step, self.until = start, until

    def should_stop(self):
        self.step += 1
        return super().should_stop() or self.step > self.until


COLLECTIVES = {
    "scatters": "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor",
    "gathers": "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor",
    "sums": "all_reduce",
}
"""The collectives that `fully_shard` calls in this release of torch."""


def site():
    return Site(os.environ.get("TRAINYARD_TEST_ACCELERATOR", "cpu"), emulates_gpus=True)


class Reads(TorchDispatchMode):
    """Counts reads of a tensor's value as a number, for which the host waits for the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class StepRecorder:
    """Records the examples and collectives of each step, and multiplies the loss of one step by a factor, or kills the
    process before a step."""

    def __init__(self, plant, world, count_reads=False, kill_at=None):
        self.kill_at = kill_at
        self.count_reads = count_reads
        self.reads = {}
        self.plant = plant and {**plant, "rank": plant["rank"] % world}
        self.collectives = {}
        self.most_gathered = 0
        self.originals = {}
        self.step = 0
        self.inside = False
        self.examples = {}
        self.scales = {}

    def __enter__(self):
        self.run, self.load = TrainStep.run, TrainStep._load
        recorder = self
        for what, name in COLLECTIVES.items():
            self.originals[name] = getattr(dist, name)
            setattr(dist, name, self.counted(what, self.originals[name]))

        def run(stepper, step, indices, **options):
            recorder.step, recorder.inside = step, True
            if step == recorder.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            with Reads() if recorder.count_reads else nullcontext() as reads:
                result = recorder.run(stepper, step, indices, **options)
            recorder.reads[step] = reads.count if reads else None
            recorder.inside = False
            if stepper._precision.scaler:
                recorder.scales[step] = stepper._precision.scaler.get_scale()
            return result

        def load(stepper, share, indices):
            recorder.examples.setdefault(recorder.step, []).extend(share.tolist())
            return recorder.load(stepper, share, indices)

        TrainStep.run, TrainStep._load = run, load
        return self

    def __exit__(self, *exc):
        TrainStep.run, TrainStep._load = self.run, self.load
        for name, original in self.originals.items():
            setattr(dist, name, original)

    def counted(self, what, original):
        def collective(*args, **options):
            counts = self.collectives.setdefault(self.step, dict.fromkeys(COLLECTIVES, 0))
            counts[what] += self.inside
            return original(*args, **options)

        return collective

    def watch_gathered(self, model):
        def check_state(*_):
            gathered = sum(p.numel() for p in model.parameters() if not isinstance(p, DTensor))
            self.most_gathered = max(self.most_gathered, gathered)

        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(check_state)
                module.register_full_backward_pre_hook(check_state)

    def wrap(self, task, rank):
        def factor():
            planted = self.plant and (self.plant["rank"], self.plant["step"]) == (rank, self.step)
            return float(self.plant["value"]) if planted else None

        def plant_in(loss):
            return loss if (value := factor()) is None else loss * value

        original = task.loss_sum
        task.loss_sum = lambda model, batch: plant_in(original(model, batch))
        measured = task.measured_loss

        def measured_loss(model, batch):
            result = measured(model, batch)
            return result and (plant_in(result[0]), result[1])

        task.measured_loss = measured_loss
        return task


def train(case, ranks, folder):
    document = {**case["spec"], "gpus": case.get("gpus", ranks.world)}
    if ranks.world == 1 and case.get("single", site().accelerator == "cpu"):
        document["strategy"] = "single"
    spec = resolve(parse_spec(document), site())
    reporter = ListReporter()
    checkpoints = manager(RunLayout(folder.parent / case["run"]), spec, ranks) if "run" in case else NoCheckpoints()
    recorder = StepRecorder(case.get("plant"), ranks.world, case.get("count_reads", False), case.get("kill_at"))
    stop_signal = StopSignal(folder / "stop")
    if case.get("stop", {}).get("rank") == ranks.rank:
        stop_signal = StopAtStep(folder / "stop", recorder, case["stop"]["step"])
    stop = StepSync(ranks, stop_signal)
    if "until" in case:
        stop = StopBefore(ranks, checkpoints.start_step, case["until"])
    period = patch.object(step_sync, "PERIOD_SECONDS", case.get("period_seconds", step_sync.PERIOD_SECONDS))
    averaging = patch.object(ddp, "can_average", lambda *_: False) if case.get("sums") else nullcontext()
    chunks = patch.dict(summed_loss.__kwdefaults__, {"max_logits": case["max_logits"]} if "max_logits" in case else {})
    with chunks, period, averaging, recorder:
        task = recorder.wrap(select_task(spec), ranks.rank)
        layout = RunLayout(folder.parent / case["run"]) if "run" in case else None
        trainer = Trainer(
            spec,
            task,
            ranks,
            reporter=reporter,
            step_sync=stop,
            checkpoints=checkpoints,
            inputs=load_inputs(spec, layout),
        )
        if case.get("watch_gathered"):
            recorder.watch_gathered(trainer._model.module)
        error = None
        try:
            module = trainer.run().module
        except TrainingError as raised:
            module, error = trainer._model.module, str(raised)
    logits = None
    if "export" in case:
        export_weights(Path(case["export"]), module, spec, task, trainer.total_steps, ranks)
        logits = logits_of(module, trainer) if spec.task == "causal_lm" else None
    return {
        "logits": logits,
        "series": reporter.series,
        "events": reporter.events,
        "stopped_early": reporter.stopped_early,
        "examples": recorder.examples,
        "scales": recorder.scales,
        "error": error,
        "reads": recorder.reads,
        "collectives": recorder.collectives,
        "most_gathered": recorder.most_gathered,
        "sharded": sum(p.to_local().numel() for p in module.parameters() if isinstance(p, DTensor)),
        "parameters": {name: value.flatten().tolist() for name, value in whole(module).items()},
        "exported": {name: value.flatten().tolist() for name, value in whole_weights(module).items()},
    }


def measure_start(case, ranks):
    """Build the trainer; return the peak of its tensors in bytes, and which of its tensors differ from those of a whole
    model."""
    spec = resolve(parse_spec({**case["spec"], "gpus": ranks.world}), site())
    task = select_task(spec)
    reporter = ListReporter()
    stop = StepSync(ranks, StopSignal(Path("stop")))
    gc.collect()
    with LiveTensorBytes() as meter:
        trainer = Trainer(spec, task, ranks, reporter=reporter, step_sync=stop, checkpoints=NoCheckpoints())
        peak = meter.peak
    module = trainer._model.module
    generator = torch.get_rng_state()
    sharded = whole(module)
    seed_generators(spec.seed)
    expected = task.build_model()
    freeze_parameters(spec, expected)
    whole_bytes, largest = (how(p.nbytes for p in expected.parameters()) for how in (sum, max))
    if held_dtype(spec):
        gathered_as = COMPUTE_DTYPE.get(spec.precision, torch.float32) if spec.strategy_kind.is_sharded else None
        hold_base(expected, spec.lora.base_dtype, gathered_as=gathered_as)
    values = expected.state_dict()
    buffers = dict(module.named_buffers())
    return {
        "peak": peak,
        "shards": sum(getattr(parameter, "_local_tensor", parameter).nbytes for parameter in module.parameters()),
        "whole": whole_bytes,
        "largest": largest,
        "differing": [name for name, value in values.items() if not same_bytes(sharded[name], value)]
        + [name for name, value in expected.named_buffers() if not torch.equal(buffers[name], value)],
        "same_generator": torch.equal(generator, torch.get_rng_state()),
        "events": reporter.events,
    }


def same_bytes(one, other):
    """Return whether two tensors are equal, also where their bytes are no numbers."""
    bytes_of = [tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bytes_of)


@torch.no_grad()
def logits_of(module, trainer):
    """Return the trained model's logits of some tokens."""
    module.eval()
    inputs = torch.arange(24).view(2, 12) * 7 % 200
    with trainer._precision.autocast():
        logits = module(inputs).float()
    return logits.flatten().tolist()


def whole(module):
    return get_model_state_dict(module, options=StateDictOptions(full_state_dict=True))


def manager(run, spec, ranks):
    launch = LaunchDocument(
        job_id="job",
        attempt_id="a1",
        attempt=1,
        tag="ty-test-a1",
        service_url="http://127.0.0.1:1",
        execution=1,
        max_restarts=0,
        ranks_per_node=ranks.world,
        heartbeat_seconds=1,
        spec=spec,
    )
    checkpoints = CheckpointManager(run, launch, 1, ranks)
    checkpoints.bind(ListReporter())
    return checkpoints


def write_results(folder, rank, results):
    """Write the results as JSON, and the tensors, which as JSON take a tenth of the time of all cases, as pickles."""
    tensors = {case: {name: result.pop(name) for name in TENSORS if name in result} for case, result in results.items()}
    (folder / f"rank-{rank}.json").write_text(json.dumps(results))
    (folder / f"rank-{rank}.tensors").write_bytes(pickle.dumps(tensors))


def read_results(folder, rank):
    results = json.loads((folder / f"rank-{rank}.json").read_text())
    for case, tensors in pickle.loads((folder / f"rank-{rank}.tensors").read_bytes()).items():
        results[case] |= tensors
    return results


def run(rank, cases, folder):
    """Run all cases on one rank."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    # One group for all cases: on GPUs also with gloo, which offloaded parameters need.
    base = next(iter(cases.values()))["spec"] | {"backend": "auto", "fsdp": {"cpu_offload": True}, "strategy": "fsdp"}
    ranks = distributed.join(parse_spec(base | {"backend": "nccl" if site().accelerator == "cuda" else "gloo"}))
    results = {}
    # Each run asks whether objects are frozen, and a count of all imported ones takes a tenth of a short run.
    reads_once = patch.object(causal_lm, "load_stdlib", cache(causal_lm.load_stdlib))
    with reads_once, patch.object(gc, "get_freeze_count", lambda: 1):
        for name, case in cases.items():
            # Each run starts with a garbage collection, which should not scan the imported modules.
            gc.freeze()
            results[name] = measure_start(case, ranks) if case.get("only_start") else train(case, ranks, folder)
    write_results(folder, rank, results)
    ranks.barrier()
    distributed.leave()


def main(rank, environ, folder):
    """Run the cases of `cases.json` in the folder on one rank, which writes to its own log. Never returns."""
    status = 1
    try:
        log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ |= environ
        run(rank, json.loads((folder / "cases.json").read_text()), folder)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        remove_private_folders()
        # During the interpreter's shutdown, torch's threads abort the process.
        os._exit(status)
