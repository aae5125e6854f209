"""The training loop: step, evaluate, checkpoint, stop."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.samples import FOLDER
from trainyard.progress_file import ProgressCounter
from worker.checkpoint.manager import CheckpointManager
from worker.core.distributed import Ranks
from worker.core.errors import RefusedError
from worker.core.random_state import seed_generators
from worker.data.sampler import GlobalBatches, Indices
from worker.engine.attention import choose_attention
from worker.engine.callbacks.base import Callback
from worker.engine.callbacks.early_stopping import EarlyStopping
from worker.engine.callbacks.garbage_collector import GarbageCollector
from worker.engine.callbacks.metrics_logger import MetricsLogger
from worker.engine.callbacks.non_finite import NonFiniteGuard
from worker.engine.callbacks.performance import PerformanceMonitor
from worker.engine.callbacks.progress import ProgressMarker
from worker.engine.callbacks.stragglers import StragglerReporter
from worker.engine.callbacks.weight_average import WeightAverage
from worker.engine.evaluation import evaluate, held_out_sets
from worker.engine.flops import model_flops, run_peak_flops
from worker.engine.generation import SampleGenerator, write_samples
from worker.engine.initial_adapter import adapter_values
from worker.engine.initial_model import build_initial_model
from worker.engine.memory_schedule import MemorySchedule
from worker.engine.micro_batch_size import MicroBatchFinder
from worker.engine.neftune import add_embedding_noise
from worker.engine.optim import LearningRates, build_optimizers
from worker.engine.precision import Precision
from worker.engine.reference import ReferenceFile, fill_reference
from worker.engine.run_inputs import RunInputs
from worker.engine.run_progress import RunProgress
from worker.engine.sources import reference_digest, source_digests
from worker.engine.state import TrainingState
from worker.engine.step_sync import StepSync
from worker.engine.strategies.select import parallelise
from worker.engine.train_step import TrainStep
from worker.reporting.reporter import Reporter
from worker.tasks.base import Task, count_tokens


@dataclass(frozen=True)
class Outcome:
    """The outcome of the loop: completed (with all steps, or stopped early) or interrupted."""

    step: int
    completed: bool
    paused: bool
    """Whether it was interrupted at the step `pause_at_step` of the launch document."""
    module: nn.Module
    """The model as the export shall have it: with the average of its weights if the spec says so."""
    best_step: int | None = None
    """The step of the best evaluation, if the run was stopped early."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The metrics of the last step, as its checkpoint records them."""


class Trainer:
    """One rank's part of the run."""

    def __init__(
        self,
        spec: TrainingSpec,
        task: Task,
        ranks: Ranks,
        *,
        reporter: Reporter,
        step_sync: StepSync,
        checkpoints: CheckpointManager,
        progress: ProgressCounter | None = None,
        callbacks: Sequence[Callback] = (),
        inputs: RunInputs | None = None,
    ) -> None:
        """`callbacks` come in addition to the trainer's own."""
        self._spec = spec
        self._task = task
        self._ranks = ranks
        self._step_sync = step_sync
        self._checkpoints = checkpoints
        self._progress = progress or ProgressCounter()
        self._reporter, self._inputs = reporter, inputs or RunInputs()
        self._run, self._samples = self._inputs.layout, self._inputs.samples
        record = self._run.micro_size if self._run else None
        self._micro_batch_finder = MicroBatchFinder(spec, ranks, record, reporter)
        self._batches = _global_batches(spec, task)
        self.total_steps = spec.steps or (spec.epochs or 0) * self._batches.steps_per_epoch
        _check_steps(spec, self.total_steps)
        model, deferred = build_initial_model(spec, task, ranks, reporter)
        add_embedding_noise(model, spec.loss.neftune_alpha)
        choose_attention(spec, task, model, ranks.device, reporter)
        flops = model_flops(task, model, spec.model)
        self._model = parallelise(spec, model, ranks, deferred)
        optimizers = build_optimizers(task, spec, self._model.module, sharded=spec.strategy_kind.is_sharded)
        self._learning_rates = LearningRates(spec.schedule, optimizers, self.total_steps)
        autocast = not spec.strategy_kind.sets_forward_dtype
        self._precision = Precision(spec.precision, spec.amp, ranks.device, autocast=autocast)
        self._guard = NonFiniteGuard(spec.health.on_nan, self._precision, ranks, step_sync, self._log_due)
        self._memory_checkpoints, self._train_step = self._build_memory_schedule(), self._build_train_step()
        stopping = spec.early_stopping
        self._early_stopping = EarlyStopping(stopping, reporter, total_steps=self.total_steps) if stopping else None
        self._average = WeightAverage(spec.ema, self._model.module) if spec.ema else None
        self._state = self._build_state(list(optimizers.values()))
        stragglers = StragglerReporter(ranks, reporter) if ranks.world > 1 else None
        performance = PerformanceMonitor(ranks.device, flops, run_peak_flops(spec, ranks.device), stragglers)
        self._phases = self._build_progress(reporter, performance)
        self._metrics = self._build_metrics_logger(reporter, performance)
        # Ends run in reverse: garbage is collected and traces close before metrics are logged.
        own: list[Callback] = [GarbageCollector(), ProgressMarker(self._progress), performance]
        own += [policy for policy in (self._early_stopping, self._average) if policy is not None]
        self._callbacks: list[Callback] = [self._guard, self._metrics, *callbacks, *own]

    def report_export(self, step: int) -> None:
        """Report that the trained model is being exported."""
        self._phases.begin("exporting", step, report=True)

    @property
    def module(self) -> nn.Module:
        """The model as the strategy holds it, with sharded parameters where it shards."""
        return self._model.module

    def run(self) -> Outcome:
        """Train from the latest checkpoint to the last step, or to the step at which it is to pause, the ranks agree to
        stop or the evaluations no longer improve.

        Raises:
            RefusedError: the task or the checkpoint does not fit the spec.
            TrainingError: on all ranks alike, where going on is pointless, as after a loss that is NaN.
        """
        step = self._prepare()
        self._phases.start(step)
        if self._spec.evaluation.first and step == 0 and self._evaluates:
            self._evaluate(step)
        if self._spec.batch.loaders:
            # Batches of their own: these processes are ahead, and each change of the epoch shuffles all examples.
            ahead = map(_global_batches(self._spec, self._task).at, range(step, self._last_step))
            self._train_step.start_loaders(ahead, processes=self._spec.batch.loaders, seed=self._spec.seed)
        with self._step_sync.delivering():
            while step < self._last_step and not self._stops_early and not self._step_sync.should_stop():
                step += 1
                for callback in self._callbacks:
                    callback.on_step_start(step)
                result = self._train_step.run(step, self._batches.at(step - 1), log_due=self._log_due(step))
                if self._train_step.prefetches and step < self._last_step:
                    self._train_step.prefetch(self._batches.at(step))
                for callback in reversed(self._callbacks):
                    callback.on_step_end(result)
                if self._evaluation_due(step):
                    self._evaluate(step)
                self._save_if_due(step)
        self._end_loop(step)
        if step:
            self._save(step)
        self._phases.begin("saving", step, report=True)
        self._checkpoints.finish()
        self._phases.end()
        completed = step == self.total_steps or self._stops_early
        if completed:
            self._guard.check_trained(step)
            if self._average and self._average.options.export:
                self._average.swap()
        best = self._early_stopping.best_step if self._early_stopping and step < self.total_steps else None
        best = best if completed else None
        metrics = dict(self._metrics.latest)
        paused = not completed and step >= self._last_step
        return Outcome(
            step, completed=completed, paused=paused, module=self._model.module, best_step=best, metrics=metrics
        )

    @property
    def _last_step(self) -> int:
        """The step after which this execution ends: the run's last step, or the step at which it must pause."""
        return min(self.total_steps, self._inputs.pause_at or self.total_steps)

    @property
    def _stops_early(self) -> bool:
        return self._early_stopping is not None and self._early_stopping.reached

    def _prepare(self) -> int:
        """Choose the micro-batch size, warm up, load the checkpoint; return the steps done before."""
        first_batch = self._batches.at(0)
        if self._inputs.adapter is not None:
            self._state.restore_weights({"model": adapter_values(self._model.module, self._inputs.adapter)})
        if self._spec.batch.micro_size == "auto":
            share = -(-len(first_batch) // self._ranks.world)
            largest = self._task.examples.largest(share)
            size = self._micro_batch_finder.find(
                share, lambda size: self._train_step.dry_run(largest[:size]), self._model.module
            )
            self._train_step.set_micro_batch_size(size)
        self._train_step.warm_up(first_batch)
        seed_generators(self._spec.seed, self._ranks.rank)
        start = self._checkpoints.start_step
        if not self._checkpoints.weights_only:
            self._fill_reference()
        if start:
            state = self._state.template(
                self._checkpoints.saved_ranks, self._checkpoints.stored_dtypes(), is_fork=self._checkpoints.is_fork
            )
            self._checkpoints.load(state)
            self._guard.restore(self._state.restore(state))
        elif self._checkpoints.weights_only:
            weights = self._state.weights(self._checkpoints.stored_dtypes())
            self._checkpoints.load(weights)
            self._state.restore_weights(weights)
            self._fill_reference()
        # After loading, which names the tensors that do not fit.
        first = self._ranks.is_rank_0
        origin, roots = self._checkpoints.initial_weights, self._inputs.roots
        sources = source_digests(self._spec, self._task, self._batches, origin=origin, roots=roots) if first else {}
        self._checkpoints.bind_sources(sources, self._task.classes)
        return start

    def _fill_reference(self) -> None:
        """Compute the log-probabilities of the reference, which is the current model, or read the values of the run's
        first execution."""
        task = self._task
        if not task.needs_reference:
            return
        origin = self._checkpoints.initial_weights
        roots = self._inputs.roots
        digest = reference_digest(self._spec, task, origin, roots) if self._ranks.is_rank_0 else ""
        fill_reference(
            task,
            self._model,
            self._precision,
            self._ranks,
            ReferenceFile(self._run.reference if self._run else None, digest),
            batches=self._compared_batches(),
            size=self._train_step.micro_batch_length(self._batches.size),
            may_compute=not (origin and self._checkpoints.start_step),
            progress=self._progress,
            reporter=self._reporter,
        )

    def _compared_batches(self) -> Iterator[Indices]:
        """Yield the examples of each step of the whole run, and of each evaluation."""
        yield from map(self._batches.at, range(self.total_steps))
        examples = self._task.examples
        for held_out in held_out_sets(examples, self._spec.evaluation.limit).values():
            yield held_out + examples.train

    def _tokens_before(self, steps: int) -> int:
        return sum(count_tokens(self._task, indices).tokens for indices in self._batches.before(steps))

    def _log_due(self, step: int) -> bool:
        return step == 1 or step % self._spec.log.every_steps == 0 or step == self.total_steps

    def _evaluation_due(self, step: int) -> bool:
        every = self._spec.evaluation.every_steps
        due = step == self.total_steps or (every is not None and step % every == 0)
        return due and self._evaluates

    @property
    def _evaluates(self) -> bool:
        return self._task.examples.held_out > 0 or self._samples is not None

    def _evaluate(self, step: int) -> None:
        self._step_sync.flush()
        for callback in self._callbacks:
            callback.on_evaluation_start(step)
        self._phases.begin("evaluating", step)
        averaged = self._average is not None and self._average.options.evaluate
        size, metrics = self._train_step.micro_batch_length(self._batches.size), {}
        with self._average.applied() if self._average and averaged else contextlib.nullcontext():
            if self._task.examples.held_out:
                metrics = evaluate(
                    self._task,
                    self._model,
                    self._precision,
                    self._ranks,
                    self._progress,
                    options=self._spec.evaluation,
                    training_size=size,
                    on_examples=self._phases.evaluated,
                )
            if self._samples is not None:
                self._store_samples(step, self._samples, size)
        self._phases.end()
        for callback in self._callbacks:
            callback.on_evaluation(step, metrics)

    def _store_samples(self, step: int, generator: SampleGenerator, size: int) -> None:
        sharded = self._spec.strategy_kind.is_sharded
        samples = generator.generate(
            self._model, self._precision, self._ranks, self._progress, size=size, sharded=sharded
        )
        if self._ranks.is_rank_0 and self._run is not None:
            name = write_samples(self._run.samples, step, samples)
            message = f"Generated samples of step {step}: {len(samples)}"
            self._reporter.event("samples_written", message, data={"step": step, "path": f"{FOLDER}/{name}"})

    def _save(self, step: int) -> None:
        if step == self._checkpoints.last_step:
            return
        self._step_sync.flush()
        for callback in self._callbacks:
            callback.on_checkpoint_start(step)
        self._phases.begin("saving", step)
        self._checkpoints.save(step, self._state.capture(step, self._guard.skipped), self._metrics.latest)
        self._phases.end()
        for callback in reversed(self._callbacks):
            callback.on_checkpoint_end(step)

    def _save_if_due(self, step: int) -> None:
        if self._checkpoints.due(step, self.total_steps):
            self._save(step)
        if (
            self._memory_checkpoints
            and step < self._last_step
            and not self._stops_early
            and self._memory_checkpoints.due(step)
        ):
            self._guard.queue_check(step)
            self._memory_checkpoints.write(
                step, lambda: self._state.capture(step, self._guard.skipped), self._checkpoints.sources
            )

    def _end_loop(self, step: int) -> None:
        self._train_step.end_loaders()
        for callback in reversed(self._callbacks):
            callback.on_loop_end(step)
        if self._memory_checkpoints:
            self._memory_checkpoints.close()

    def _wait_copied(self) -> None:
        self._checkpoints.wait_staged()
        if self._memory_checkpoints:
            self._memory_checkpoints.wait_copied()

    def _build_memory_schedule(self) -> MemorySchedule | None:
        every = self._spec.checkpoint.memory_steps
        if every is None or not self._checkpoints.memory_files:
            return None
        return MemorySchedule(every, self._checkpoints.memory_files, self._ranks, self._step_sync, self._reporter)

    def _build_train_step(self) -> TrainStep:
        spec = self._spec
        return TrainStep(
            self._task,
            self._model,
            self._learning_rates,
            self._precision,
            self._guard,
            self._ranks,
            micro_batch_size=spec.batch.micro_size if isinstance(spec.batch.micro_size, int) else None,
            clip_norm=spec.optimizer.clip_norm,
            progress=self._progress,
            before_update=self._wait_copied,
        )

    def _build_state(self, optimizers: Sequence[torch.optim.Optimizer]) -> TrainingState:
        return TrainingState(
            self._model.module,
            optimizers,
            self._precision,
            self._ranks,
            self._spec.seed,
            self._early_stopping,
            self._average,
        )

    def _build_progress(self, reporter: Reporter, performance: PerformanceMonitor) -> RunProgress:
        return RunProgress(
            reporter,
            total_steps=self.total_steps,
            epoch_of=self._batches.epoch_of,
            seconds_per_step=lambda: performance.step_time.seconds_per_step,
            training_seconds=lambda: performance.training_time.seconds_per_step,
            evaluate_every=self._spec.evaluation.every_steps,
            evaluates=self._evaluates,
            save_every=self._spec.checkpoint.every_steps,
            held_out=min(self._task.examples.held_out, self._spec.evaluation.limit or self._task.examples.held_out),
            batch_size=self._batches.size,
        )

    def _build_metrics_logger(self, reporter: Reporter, performance: PerformanceMonitor) -> MetricsLogger:
        return MetricsLogger(
            reporter,
            self._step_sync,
            is_rank_0=self._ranks.is_rank_0,
            due=self._log_due,
            total_steps=self.total_steps,
            progress_of=self._phases.at,
            tokens_before=self._tokens_before,
            learning_rates=self._learning_rates,
            precision=self._precision,
            guard=self._guard,
            performance=performance,
            complete=self._task.complete_metrics,
        )


def _global_batches(spec: TrainingSpec, task: Task) -> GlobalBatches:
    shuffle = spec.data.shuffle if spec.data else task.shuffle
    examples = task.examples
    order = examples.order_by_epoch()
    if order is None and examples.mixture is not None:
        order = examples.mixture.order(seed=spec.seed, shuffle=shuffle)
    return GlobalBatches(
        examples.train,
        spec.batch.size,
        seed=spec.seed,
        last=spec.batch.last,
        shuffle=shuffle,
        order=order,
    )


def _check_steps(spec: TrainingSpec, total: int) -> None:
    """Raise RefusedError if something is due after the run's last step, which depends on the size of the data."""
    if spec.schedule.warmup_steps > total:
        raise RefusedError(f"schedule.warmup_steps is {spec.schedule.warmup_steps}, more than the run's {total} steps")
    if spec.ema is not None and spec.ema.every > total:
        raise RefusedError(f"ema.every is {spec.ema.every}, more than the run's {total} steps")
    if spec.profile is not None and spec.profile.start_step > total:
        raise RefusedError(f"profile.start_step is {spec.profile.start_step}, after the run's last step, {total}")
