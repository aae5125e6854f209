"""What people and the reconciler ask of the planner: a spec accepted, a plan of it, or why it can never run."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from service.api.dependencies import AppState
from service.cluster.placement import find_place, place_of, site_of
from service.cluster.repository import ClusterRepository
from service.core.errors import InvalidSpecError
from service.core.setting_parsers import parse_gpu_memory
from service.core.settings import Settings
from service.jobs.service import accept_spec
from service.planner.build_plan import compose
from service.planner.devices import Device, devices
from service.planner.fit import Question, automatic, too_large
from service.planner.host import machine_bytes, share_of_machine
from service.planner.model_reader import Found
from service.planner.script import preview
from service.planner.trainable_parameters import mismatch
from service.scheduler.launch_document import MSG_UNKNOWN_ACCELERATOR, ranks_per_node
from service.specs.preflight import STALE, refusals
from trainyard.contract.problems import Problem
from trainyard.contract.spec.training_spec import LOOP_TASKS, TrainingSpec, parse_spec
from trainyard.contract.wire.plans import PlanResource


@dataclass(frozen=True)
class Accepted:
    """A spec as it will be run."""

    spec: TrainingSpec
    plain: TrainingSpec
    """As it is without knowledge of the cluster, which changes: what an idempotency key stands for."""
    why: str
    """Of the strategy."""


def accept(services: AppState, document: Any, now: datetime) -> Accepted:
    """A document as a resolved spec; `strategy: auto` is settled by what fits, where that is known.

    Raises:
        InvalidSpecError: with every problem found.
    """
    find = partial(site_of, services, now=now)
    spec = accept_spec(document, find)
    if wrong := mismatch(spec):
        raise InvalidSpecError([wrong])
    site = find(spec)
    plain = spec if services.settings.site.accelerator else parse_spec(document)
    if document.get("strategy", "auto") != "auto":
        return Accepted(spec, plain, "the spec says so")
    if spec.task not in LOOP_TASKS:
        return Accepted(spec, plain, f"a `{spec.task}` job runs its own program, which no strategy is applied to")
    if spec.gpus == 1:
        return Accepted(spec, plain, "`auto` takes single on one rank")
    if site.accelerator is None:
        return Accepted(spec, plain, f"`auto` is settled later: {MSG_UNKNOWN_ACCELERATOR}")
    if site.accelerator == "cpu":
        return Accepted(spec, plain, "`auto` takes ddp on several ranks")
    question = question_of(services, spec, services.models.find(spec, site.roots), now)
    if question is None:
        return Accepted(spec, plain, "`auto` takes ddp on several ranks; the model is not known")
    strategy, why = automatic(question, spec)
    if strategy == spec.strategy:
        return Accepted(spec, plain, why)
    try:
        return Accepted(accept_spec({**document, "strategy": strategy}, find), plain, why)
    except InvalidSpecError as error:
        return Accepted(spec, plain, f"`auto` takes ddp: {strategy} does not go with this spec ({error.problems[0]})")


def plan(services: AppState, document: Any, now: datetime) -> PlanResource:
    """What a spec will need. Blocks while its model's folder is read.

    Raises:
        InvalidSpecError: with every problem found.
    """
    accepted = accept(services, document, now)
    spec = accepted.spec
    found = services.models.find(spec, services.settings.site.roots)
    with services.database.read() as session:
        place = find_place(session, services.settings, spec.resources, now)
        refused = ungiven(session, services.settings, spec, now)
    script, problem = preview(services.settings, spec, place)
    return compose(
        spec,
        found,
        _devices(services, spec, now),
        why=accepted.why,
        cpu=place.accelerator == "cpu",
        script=script,
        warnings=[*([problem] if problem else []), *(f"{one}: submitted, it is refused" for one in refused)],
    )


def ungiven(session: Session, settings: Settings, spec: TrainingSpec, now: datetime) -> list[Problem]:
    """What of a resolved spec this cluster can never give."""
    if settings.backend != "slurm" or not settings.slurm_preflight:
        return []
    cluster = ClusterRepository(session).resource("slurm", now)
    ranks, limit = ranks_per_node(spec), spec.resources.time_limit_minutes or settings.slurm_time_limit_minutes
    place = place_of(settings, spec.resources, cluster)
    return refusals(spec.resources, spec.gpus // ranks, ranks if place.accelerator == "cuda" else 0, limit, cluster)


def outsized(services: AppState, document: Mapping[str, Any], now: datetime) -> list[Problem]:
    """Why a job's resolved spec can never run on the GPUs that it asks for, or on this machine without any; nothing
    where that is not beyond doubt.

    Reads the model's folder: not in a database session.
    """
    spec = parse_spec(document)
    if spec.task not in LOOP_TASKS or _on_other_hosts(services, spec, now):
        return []
    question = question_of(services, spec, services.models.find(spec, services.settings.site.roots), now)
    return too_large(question, spec) if question else []


def question_of(services: AppState, spec: TrainingSpec, found: Found, now: datetime) -> Question | None:
    """None where the model is not known."""
    if found.outline is None:
        return None
    cpu = site_of(services, spec, now).accelerator == "cpu"
    return Question(found.outline, _devices(services, spec, now), found.context, cpu)


def _on_other_hosts(services: AppState, spec: TrainingSpec, now: datetime) -> bool:
    """Whether it runs in the memory of machines of which nothing is known."""
    return not _here(services) and site_of(services, spec, now).accelerator == "cpu"


def _here(services: AppState) -> bool:
    """Whether the ranks run on this machine."""
    return services.settings.backend == "local"


def _devices(services: AppState, spec: TrainingSpec, now: datetime) -> list[Device]:
    """By the cluster's newest snapshot, unless it is out of date; without GPUs, of this machine's memory."""
    settings = services.settings
    if site_of(services, spec, now).accelerator == "cpu":
        return [share_of_machine(machine_bytes(), spec.gpus)] if _here(services) else []
    with services.database.read() as session:
        cluster = ClusterRepository(session).resource(settings.backend, now)
    if cluster.age_seconds is not None and cluster.age_seconds > STALE.total_seconds():
        cluster = cluster.model_copy(update={"partitions": []})
    return devices(spec.resources, cluster, parse_gpu_memory(settings.gpu_memory_gb))
