"""The planner: the needs of an accepted spec, the strategy that `auto` selects, and specs that can never fit."""

import os
from dataclasses import dataclass, field

from service.core.errors import InvalidRequestError, TooManyRequestsError
from service.core.process_pool import ProcessPool
from service.core.setting_parsers import parse_gpu_memory
from service.core.settings import Settings
from service.plugins.planner.build_plan import build_plan
from service.plugins.planner.devices import Device, devices, machine_bytes, share_of_machine
from service.plugins.planner.fit import FitEstimator, choose_strategy
from service.plugins.planner.model_reader import ModelInfo, ModelReader
from service.plugins.planner.proposals import exceeds_memory
from service.plugins.planner.trainable_parameters import trainable_problem
from service.scheduler.backends import BACKENDS
from service.scheduler.launch_document import MSG_UNKNOWN_ACCELERATOR, launch_document, source_tree
from service.scheduler.launch_plan import inherited_environment, plan_launch
from service.specs.acceptance import AcceptedSpec
from service.specs.preflight import is_stale, unavailable_resources
from trainyard.contract.kinds.strategies import Strategy
from trainyard.contract.layout import RunLayout, attempt_folder_name
from trainyard.contract.problems import Problem
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.plans import PlanResource

JOB, ATTEMPT = "JOB-ID", "ATTEMPT-ID"
"""Placeholders for the ids in a previewed script."""


@dataclass
class Planner:
    """Estimates accepted specs. Its methods may read the model's folder: call them outside of database sessions."""

    settings: Settings
    models: ModelReader = field(default_factory=ModelReader)
    pool: ProcessPool | None = None
    """Estimates models with very many tensors. None: they are estimated in this process."""

    def __reduce__(self) -> tuple[type["Planner"], tuple[Settings]]:
        """A copy in another process reads the models itself, and estimates large ones there."""
        return Planner, (self.settings,)

    def trainable_problem(self, spec: TrainingSpec) -> Problem | None:
        """Return why the spec's `lora`, `trainable` or optimizer does not match its builtin model."""
        return trainable_problem(spec)

    def choose_strategy(self, accepted: AcceptedSpec) -> tuple[Strategy, str]:
        """Return the strategy that `auto` becomes, and the reason.

        Args:
            accepted: Resolved for its site without looking at memory: `single`, `ddp`, `zero2` if `ddp` is refused, or
                `fsdp` if it offloads.
        """
        spec, accelerator = accepted.spec, accepted.site.accelerator
        if not spec.task_kind.in_loop:
            return spec.strategy, f"a `{spec.task}` job runs its own program, to which no strategy applies"
        if spec.strategy_kind.is_sharded and spec.fsdp.cpu_offload:
            return spec.strategy, f"`auto` selects {spec.strategy} for fsdp.cpu_offload"
        if spec.gpus == 1:
            return spec.strategy, "`auto` selects single for one rank"
        if accelerator is None:
            return spec.strategy, f"`auto` is resolved later: {MSG_UNKNOWN_ACCELERATOR}"
        if accelerator == "cpu":
            return spec.strategy, f"`auto` selects {spec.strategy} for several CPU ranks"
        several = f"`auto` selects {spec.strategy} for several ranks"
        model = self._model(accepted)
        if self.pool is not None and model.is_large:
            try:
                return self.pool.run(accepted.owner, Planner.choose_strategy, self, accepted)
            except (InvalidRequestError, TooManyRequestsError):
                return spec.strategy, f"{several}; the model is too large to compare them"
        estimator = self._estimator(accepted, model)
        if estimator is None:
            return spec.strategy, f"{several}; the size of the model is not known"
        return choose_strategy(estimator, spec)

    def plan(self, accepted: AcceptedSpec) -> PlanResource:
        """Return the needs of a spec.

        Raises:
            InvalidRequestError: The model has very many tensors, and its estimate takes too long.
            TooManyRequestsError: Other large models are being estimated.
        """
        spec = accepted.spec
        model = self._model(accepted)
        if self.pool is not None and model.is_large:
            return self.pool.run(accepted.owner, Planner.plan, self, accepted)
        script, problem = preview_script(self.settings, spec, accepted.site)
        rejections = unavailable_resources(self.settings, accepted)
        return build_plan(
            spec,
            model,
            self._devices(accepted),
            strategy_reason=accepted.strategy_reason,
            cpu=accepted.site.accelerator == "cpu",
            script=script,
            warnings=[
                *([problem] if problem else []),
                *(f"{one}: a job would be rejected" for one in rejections),
                *accepted.warnings,
            ],
        )

    def exceeds_memory(self, accepted: AcceptedSpec) -> list[Problem]:
        """Return why a resolved spec can never fit its GPUs or, without GPUs, this machine; empty if that is not
        certain."""
        spec = accepted.spec
        remote_hosts = self.settings.backend != "local" and accepted.site.accelerator == "cpu"
        if not spec.task_kind.in_loop or remote_hosts:
            return []
        model = self._model(accepted)
        if self.pool is not None and model.is_large:
            try:
                return self.pool.run(accepted.owner, Planner.exceeds_memory, self, accepted)
            except (InvalidRequestError, TooManyRequestsError):
                return []
        estimator = self._estimator(accepted, model)
        return exceeds_memory(estimator, spec) if estimator else []

    def _model(self, accepted: AcceptedSpec) -> ModelInfo:
        max_tensors = _MAX_TENSORS if self.pool is not None else None
        roots = self.settings.site.allowed_roots
        return self.models.find(accepted.spec, roots, accepted.owner, max_tensors=max_tensors)

    def _estimator(self, accepted: AcceptedSpec, model: ModelInfo) -> FitEstimator | None:
        """Return None if the structure of the model is not known."""
        if model.structure is None:
            return None
        cpu = accepted.site.accelerator == "cpu"
        return FitEstimator(model.structure, self._devices(accepted), model.context, cpu)

    def _devices(self, accepted: AcceptedSpec) -> list[Device]:
        """Return the GPUs that the job could get; without GPUs, each rank's share of this machine's memory."""
        if accepted.site.accelerator == "cpu":
            local = self.settings.backend == "local"
            return [share_of_machine(machine_bytes(), accepted.spec.gpus)] if local else []
        cluster = accepted.cluster
        if is_stale(cluster):
            cluster = cluster.model_copy(update={"partitions": []})
        return devices(accepted.spec.resources, cluster, parse_gpu_memory(self.settings.gpu_memory_gb))


_MAX_TENSORS = 5000
"""Tensors above which a model is estimated in another process. The time grows with tensors and `lora.targets`."""


def preview_script(settings: Settings, spec: TrainingSpec, site: Site) -> tuple[str | None, str | None]:
    """Return the script that a submission would make, with placeholders for the ids; or None and the reason."""
    backend = BACKENDS[settings.backend]
    folder = RunLayout(settings.runs / JOB).attempt(attempt_folder_name(1, ATTEMPT)).root
    try:
        document = launch_document(
            spec,
            settings,
            accelerator=site.accelerator,
            partition_limit_minutes=site.partition_limit_minutes,
            has_limits=backend.has_limits,
            job_id=JOB,
            attempt_id=ATTEMPT,
            attempt=1,
            tag=f"ty-{settings.instance}-{ATTEMPT}",
            execution=1,
            max_restarts=0,
        )
        plan = plan_launch(
            document,
            folder=folder,
            python=settings.python,
            inherited=inherited_environment(os.environ, machine=backend.inherited, listed=settings.job_environment),
            search_path=source_tree(),
        )
        return backend.render_script(settings, document, plan), None
    except ValueError as error:
        return None, f"the batch script cannot be made: {error}"
