"""The batch script of a spec, made as a submission makes it, with ids that stand for those to come."""

import os

from service.cluster.placement import Place
from service.core.settings import Settings
from service.scheduler.launch_document import launch_document, source_tree
from service.scheduler.launch_plan import inherited_environment, plan_launch
from service.scheduler.slurm.batch_script import batch_script
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.launch import LaunchDocument

JOB, ATTEMPT = "JOB-ID", "ATTEMPT-ID"


def preview(settings: Settings, spec: TrainingSpec, place: Place) -> tuple[str | None, str | None]:
    """The script, or why there is none."""
    slurm = settings.backend == "slurm"
    folder = RunLayout(settings.runs / JOB).attempt(1).root
    try:
        document = _document(settings, spec, place, slurm=slurm)
        plan = plan_launch(
            document,
            folder=folder,
            python=settings.python,
            inherited=inherited_environment(os.environ),
            search_path=source_tree(),
        )
        if slurm:
            return batch_script(document, plan, extra=settings.slurm_extra_options), None
    except ValueError as error:
        return None, f"the batch script cannot be made: {error}"
    return plan.script, None


def _document(settings: Settings, spec: TrainingSpec, place: Place, *, slurm: bool) -> LaunchDocument:
    return launch_document(
        spec,
        settings,
        accelerator=place.accelerator,
        partition_limit_minutes=place.limit_minutes,
        slurm=slurm,
        job_id=JOB,
        attempt_id=ATTEMPT,
        attempt=1,
        tag=f"ty-{settings.instance}-{ATTEMPT}",
        execution=1,
        max_restarts=0,
    )
