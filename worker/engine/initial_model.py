"""Builds the model of a run: whole, or without memory until each rank fills its shards or its converted base."""

import logging
from typing import Any

from torch import nn

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.distributed import Ranks
from worker.core.random_state import seed_generators
from worker.deferred.model import DeferredModel
from worker.deferred.recorder import record
from worker.deferred.recording import CannotDeferError
from worker.engine.frozen_base import held_dtype
from worker.engine.trainable import freeze_parameters
from worker.reporting.reporter import Reporter
from worker.tasks.base import Task, check_model

log = logging.getLogger(__name__)


def build_initial_model(
    spec: TrainingSpec, task: Task, ranks: Ranks, reporter: Reporter
) -> tuple[nn.Module, DeferredModel | None]:
    """Return the task's model, initialised from the spec's seed alone, with the untrained parameters frozen. A
    collective for sharded strategies and for `lora.base_dtype`.

    With these its tensors have no memory, and the second value fills them, unless their values could differ then: the
    model is whole in the host memory of each rank, and an event names the reason.
    """
    if spec.strategy_kind.is_sharded or held_dtype(spec):
        deferred, result, reason = _try_to_defer(spec, task, examine=ranks.is_rank_0)
        # All ranks must shard the same kind of model.
        reasons = [text for text in ranks.gather_text(reason) if text]
        if deferred is not None and not reasons:
            if deferred.examination is not None:
                deferred.examination.apply(ranks.broadcast(result))
            return deferred.module, deferred
        del deferred
        next_step = "shards" if spec.strategy_kind.is_sharded else "converts"
        message = f"each rank builds the whole model in host memory before it {next_step} it: {reasons[0]}"
        log.info(message)
        reporter.event("whole_model_built", message, data={"reason": reasons[0]})
    return _whole(spec, task), None


def _whole(spec: TrainingSpec, task: Task) -> nn.Module:
    seed_generators(spec.seed)
    model = task.build_model()
    check_model(spec, model)
    freeze_parameters(spec, model)
    return model


def _try_to_defer(spec: TrainingSpec, task: Task, *, examine: bool) -> tuple[DeferredModel | None, Any, str]:
    """Return the deferred model and, with `examine`, the result of its examination; or None and the reason."""
    if spec.task_kind.has_own_code and task.flops_per_example is not None:
        return None, None, "the task's flops_per_example() may read the model"
    if spec.lora_rank is not None and (spec.lora.dora or spec.lora.modules_to_save):
        field = "dora" if spec.lora.dora else "modules_to_save"
        return None, None, f"lora.{field} begins with values of the base"
    seed_generators(spec.seed)
    try:
        deferred = _defer(spec, task)
        # Examine the model before adapters are added, which are in no file.
        result = deferred.examination.run() if examine and deferred.examination else None
        deferred = deferred.extended(lambda module: freeze_parameters(spec, module))
        deferred.tensors()
    except CannotDeferError as error:
        return None, None, str(error)
    return deferred, result, ""


def _defer(spec: TrainingSpec, task: Task) -> DeferredModel:
    stored = None if spec.task_kind.has_own_code else task.deferred_model()
    if stored is not None:
        return stored

    def build() -> nn.Module:
        model = task.build_model()
        check_model(spec, model)
        return model

    module, recording = record(build, strict=True)
    return DeferredModel(module, (recording,))
