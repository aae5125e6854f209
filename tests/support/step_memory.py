"""Memory of a step of the engine on the CPU."""

import gc

import numpy as np

from tests.support.host_memory import LiveTensorBytes
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.progress_file import ProgressCounter
from worker.core.distributed import Ranks
from worker.data.answers import AnswerExamples
from worker.data.sampler import GlobalBatches
from worker.engine.callbacks.non_finite import NonFiniteGuard
from worker.engine.initial_model import build_initial_model
from worker.engine.optim import LearningRates, build_optimizers
from worker.engine.precision import Precision
from worker.engine.strategies.base import ParallelModel
from worker.engine.strategies.select import parallelise
from worker.engine.train_step import TrainStep
from worker.reporting.reporter import NullReporter
from worker.tasks.base import Task

STEPS = 3


def measure(spec: TrainingSpec, task: Task, ranks: Ranks) -> dict[str, int]:
    """Return the peaks of the start and of the last step and the end of that step in bytes, and the parameters of the
    whole model."""
    with LiveTensorBytes() as meter:
        model = build_parallel_model(spec, task, ranks)
        start = meter.peak
        train_step, batches = engine(spec, task, ranks, model)
        parameters = list(model.module.parameters())
        for step in range(STEPS):
            if step == STEPS - 1:
                gc.collect()
                meter.reset_peak()
            train_step.run(step + 1, batches.at(step), log_due=True)
        return {
            "start": start,
            "peak": meter.peak,
            "rest": meter.live,
            "parameters": sum(p.numel() for p in parameters),
            "trained": sum(p.numel() for p in parameters if p.requires_grad),
        }


def build_parallel_model(spec: TrainingSpec, task: Task, ranks: Ranks) -> ParallelModel:
    module, deferred = build_initial_model(spec, task, ranks, NullReporter())
    return parallelise(spec, module, ranks, deferred)


def engine(spec: TrainingSpec, task: Task, ranks: Ranks, model: ParallelModel) -> tuple[TrainStep, GlobalBatches]:
    """Build the other parts of `worker.engine.trainer.Trainer` and run its dry run."""
    optimizers = build_optimizers(task, spec, model.module, sharded=spec.strategy_kind.is_sharded)
    precision = Precision(spec.precision, spec.amp, ranks.device, autocast=not spec.strategy_kind.sets_forward_dtype)
    train_step = TrainStep(
        task,
        model,
        LearningRates(spec.schedule, optimizers, STEPS),
        precision,
        NonFiniteGuard(spec.health.on_nan, precision, ranks),
        ranks,
        micro_batch_size=spec.batch.micro_size if isinstance(spec.batch.micro_size, int) else None,
        clip_norm=spec.optimizer.clip_norm,
        progress=ProgressCounter(),
    )
    batches = GlobalBatches(task.examples.train, spec.batch.size, seed=spec.seed, last=spec.batch.last, shuffle=True)
    set_reference(task, batches)
    train_step.warm_up(batches.at(0))
    return train_step, batches


def set_reference(task: Task, batches: GlobalBatches) -> None:
    """Let a reference give every answer the probability 1. Its values are no tensors, so they change no memory."""
    if isinstance(task.examples, AnswerExamples):
        pairs = task.examples.compared(batches.at(step) for step in range(STEPS))
        task.examples.set_reference(np.zeros(len(task.examples.lengths(pairs)), dtype=np.float32), pairs)
