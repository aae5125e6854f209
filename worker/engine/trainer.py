"""The loop: step, log, evaluate, checkpoint, stop."""

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.reports import Progress
from trainyard.progress_file import ProgressCounter
from worker.checkpoint.manager import CheckpointManager
from worker.core.distributed import Ranks
from worker.core.errors import RefusedError
from worker.core.random_state import seed_generators
from worker.data.sampler import GlobalBatches
from worker.engine.callbacks.garbage_collector import GarbageCollector
from worker.engine.callbacks.non_finite import NonFinite
from worker.engine.callbacks.performance import PerformanceMonitor
from worker.engine.callbacks.profiler import StepProfiler
from worker.engine.evaluation import evaluate
from worker.engine.flops import flops_per_example, run_peak_flops
from worker.engine.micro_batch_size import MicroBatchFinder
from worker.engine.optim import LearningRates, build_optimizers
from worker.engine.precision import Precision
from worker.engine.state import TrainingState
from worker.engine.step_sync import StepSync
from worker.engine.strategies.select import MANAGES_DTYPE, SHARDED, parallelise
from worker.engine.train_step import StepResult, TrainStep
from worker.engine.trainable import freeze_parameters
from worker.reporting.reporter import Reporter
from worker.tasks.base import Task, check_model

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """How the loop ended: all steps done, or stopped before."""

    step: int
    completed: bool
    module: nn.Module


class Trainer:
    """One rank's part of the run."""

    def __init__(
        self,
        spec: TrainingSpec,
        task: Task,
        ranks: Ranks,
        *,
        reporter: Reporter,
        boundary: StepSync,
        checkpoints: CheckpointManager,
        pulse: ProgressCounter | None = None,
        profiler: StepProfiler | None = None,
        record: Path | None = None,
    ) -> None:
        self._pulse = pulse or ProgressCounter()
        self._profiler = profiler
        self._garbage = GarbageCollector()
        self._prober = MicroBatchFinder(spec, ranks, record, reporter)
        self._spec = spec
        self._task = task
        self._ranks = ranks
        self._reporter = reporter
        self._boundary = boundary
        self._checkpoints = checkpoints
        self._batches = _global_batches(spec, task)
        self.total_steps = spec.steps or (spec.epochs or 0) * self._batches.steps_per_epoch
        _check_lengths(spec, self.total_steps)
        model = _built(spec, task)
        flops = flops_per_example(task, model, spec.model)
        self._model = parallelise(spec, model, ranks)
        optimizers = build_optimizers(task, spec, self._model.module, sharded=spec.strategy in SHARDED)
        self._rates = LearningRates(spec.schedule, optimizers, self.total_steps)
        self._precision = Precision(spec.precision, spec.amp, ranks.device, autocast=spec.strategy not in MANAGES_DTYPE)
        self._health = NonFinite(spec.health.on_nan, self._precision, ranks)
        self._stepper = TrainStep(
            task,
            self._model,
            optimizers,
            self._precision,
            self._health,
            ranks,
            micro_size=spec.batch.micro_size if isinstance(spec.batch.micro_size, int) else None,
            clip_norm=spec.optimizer.clip_norm,
            pulse=self._pulse,
        )
        self._state = TrainingState(self._model.module, list(optimizers.values()), self._precision, ranks, spec.seed)
        self._performance = PerformanceMonitor(
            ranks, task.tokens_per_example, flops, run_peak_flops(spec, ranks.device)
        )
        self._latest: dict[str, float] = {}
        """The metrics of the current step that a checkpoint carries."""

    @property
    def module(self) -> nn.Module:
        """The model as it stands, shards and all."""
        return self._model.module

    def run(self) -> Outcome:
        """Train from the latest checkpoint to the last step, or to the step at which all agree to stop."""
        step = self._resume()
        while step < self.total_steps and not self._boundary.should_stop():
            if self._profiler:
                self._profiler.before(step + 1, self._boundary.profile_request)
            self._step(step + 1)
            step += 1
            if self._profiler:
                self._profiler.after(step)
            if self._log_due(step):
                self._log(step)
            if self._evaluation_due(step):
                self._evaluate(step)
            if self._checkpoints.due(step, self.total_steps):
                self._save(step)
        self._garbage.close()
        if self._profiler:
            self._profiler.finish(step)
        if 0 < step < self.total_steps:
            self._save(step)
        self._pulse.mark("saving")
        self._checkpoints.finish()
        if step == self.total_steps:
            self._health.check_trained(step)
        return Outcome(step, completed=step == self.total_steps, module=self._model.module)

    def _resume(self) -> int:
        first = self._batches.at(0)
        self._stepper.warm_up(first)
        if self._spec.batch.micro_size == "auto":
            share = -(-len(first) // self._ranks.world)
            size = self._prober.settle(share, lambda n: self._stepper.dry_run(first[:n]), self._model.module)
            self._stepper.settle(size)
        seed_generators(self._spec.seed, self._ranks.rank)
        start = self._checkpoints.start_step
        if start:
            state = self._state.template(self._checkpoints.saved_ranks)
            self._checkpoints.load(state)
            self._health.restore(self._state.restore(state))
        elif self._checkpoints.weights_only:
            weights = self._state.weights()
            self._checkpoints.load(weights)
            self._state.restore_weights(weights)
        return start

    def _step(self, step: int) -> None:
        started = time.perf_counter()
        self._pulse.mark("between", step)
        self._rates.set(step)
        indices = self._batches.at(step - 1)
        self._result: StepResult = self._stepper.run(step, indices, norm_wanted=self._log_due(step))
        if self._stepper.loads_ahead and step < self.total_steps:
            self._stepper.load_ahead(self._batches.at(step))
        self._performance.add(self._result, len(indices), time.perf_counter() - started)
        self._latest = {}
        self._pulse.underway = True
        self._garbage.after_step(step)

    def _log_due(self, step: int) -> bool:
        return step == 1 or step % self._spec.log.every_steps == 0 or step == self.total_steps

    def _evaluation_due(self, step: int) -> bool:
        every = self._spec.evaluation.every_steps
        wanted = step == self.total_steps or (every is not None and step % every == 0)
        return wanted and self._task.examples.held_out > 0

    def _log(self, step: int) -> None:
        losses = self._global_losses()
        loss = losses["train/loss"]
        assert self._result.grad_norm is not None
        values = {**losses, **self._rates.metrics(), "train/grad_norm": float(self._result.grad_norm.item())}
        if self._precision.scaler:
            values["train/loss_scale"] = self._precision.scaler.get_scale()
        if self._health.counts_skips:
            values["train/skipped_steps"] = float(self._health.skipped)
        self._latest |= {"train/loss": loss}
        values |= self._performance.take()
        self._reporter.points(step, values, self._progress(step))
        if self._ranks.first:
            speed = values["perf/examples_per_second"]
            log.info("step %d/%d  loss %.6f  %.0f examples/s", step, self.total_steps, loss, speed)
        self._health.check(step)

    def _global_losses(self) -> dict[str, float]:
        """Over all ranks: the loss, and each of several by its name. A collective; waits for the device."""
        several = {f"train/loss/{name}": loss for name, loss in self._result.losses.items() if name}
        parts = {"train/loss": self._result.loss, **several}
        rows = self._ranks.gather([float(part.item()) for part in parts.values()])
        return {key: math.fsum(column) for key, column in zip(parts, zip(*rows, strict=True), strict=True)}

    def _evaluate(self, step: int) -> None:
        found = evaluate(self._task, self._model, self._precision, self._ranks, self._pulse)
        self._latest |= found
        self._reporter.points(step, found, self._progress(step))
        if self._ranks.first:
            log.info("step %d/%d  %s", step, self.total_steps, "  ".join(f"{k} {v:.6f}" for k, v in found.items()))

    def _save(self, step: int) -> None:
        if step == self._checkpoints.last_step:
            return
        self._health.check(step)
        started = time.perf_counter()
        self._pulse.mark("saving")
        self._checkpoints.save(step, self._state.capture(step, self._health.skipped), self._latest)
        self._performance.stalled(time.perf_counter() - started)

    def _progress(self, step: int) -> Progress:
        return Progress(
            step=step,
            total_steps=self.total_steps,
            epoch=self._batches.epoch_of(step - 1),
            seconds_per_step=self._performance.pace.seconds_per_step,
        )


def _built(spec: TrainingSpec, task: Task) -> nn.Module:
    """The task's model, from the spec's seed alone, with what is trained chosen."""
    seed_generators(spec.seed)
    model = task.build_model()
    check_model(spec, model)
    freeze_parameters(spec, model)
    return model


def _global_batches(spec: TrainingSpec, task: Task) -> GlobalBatches:
    return GlobalBatches(
        task.examples.train,
        spec.batch.size,
        seed=spec.seed,
        last=spec.batch.last,
        shuffle=spec.data.shuffle if spec.data else getattr(task, "shuffle", True),
    )


def _check_lengths(spec: TrainingSpec, total: int) -> None:
    """Raises RefusedError: something is to happen after the run's last step, known only now that the data are."""
    if spec.schedule.warmup_steps > total:
        raise RefusedError(f"schedule.warmup_steps is {spec.schedule.warmup_steps}, more than the run's {total} steps")
    if spec.profile is not None and spec.profile.start_step > total:
        raise RefusedError(f"profile.start_step is {spec.profile.start_step}, after the run's last step, {total}")
