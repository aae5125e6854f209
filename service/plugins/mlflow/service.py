"""MLflow's searches and reads, each in a read session."""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

from service.core.errors import InvalidRequestError, NotFoundError
from service.core.ids import job_created_at
from service.db.engine import Database
from service.db.models import Job
from service.db.paging import PageRequest
from service.jobs.listing import JobFilter
from service.jobs.repository import JobRepository
from service.plugins.mlflow.repository import MlflowRepository, RunScan
from service.plugins.mlflow.schemas import (
    DEFAULT_EXPERIMENT,
    DEFAULT_NAME,
    RUN_ATTRIBUTES,
    SPEC_PREFIX,
    STATUSES,
    Document,
    Run,
    default_experiment,
    sweep_experiment,
)
from trainyard.contract.mlflow_filter import Condition, FilterError, Kind, parse_filter

MAX_RUNS = 1000
"""Maximum number of jobs that a search reads. If further conditions select few of them, the answer has few runs and a
page token."""
_MAX_VALUES = 50_000
"""Maximum number of metrics, parameters and tags in an answer."""
_ORDER = re.compile(r"(?:(?:attributes?|attr|run)\.)?[`\"]?start_time[`\"]?(?:\s+(?P<order>ASC|DESC))?", re.IGNORECASE)
_SWEEP_ID = re.compile(r"swp_[0-9a-z]{26}", re.ASCII)


@dataclass(frozen=True)
class RunSearch:
    """The arguments of a search for runs."""

    experiment_ids: Collection[str]
    filter: str = ""
    order_by: Sequence[str] = ()
    max_results: int = MAX_RUNS
    page_token: str = ""


def search_runs(database: Database, search: RunSearch) -> Document:
    """Return a page of runs. Raises InvalidRequestError: the filter, the order or the page token cannot be used."""
    conditions = _parse(search.filter, RUN_ATTRIBUTES, ("param", "tag", "metric"))
    scan = _scan_of(search, conditions)
    runs: list[Run] = []
    values, last, rows_read, has_more = 0, "", 0, False
    with database.read() as session:
        repository = MlflowRepository(session)
        with closing(repository.scan(scan)) as jobs:
            for job in jobs:
                run = Run.of(job)
                if all(condition.holds(run.value(condition.kind, condition.key)) for condition in conditions):
                    has_more = len(runs) == search.max_results or (bool(runs) and values + run.size > _MAX_VALUES)
                    if has_more:
                        break
                    runs.append(run)
                    values += run.size
                last, rows_read = job.id, rows_read + 1
        newest = repository.newest_points([run.job for run in runs])
    page: Document = {"runs": [run.document(newest.get(run.job.pk, {})) for run in runs]}
    return page | ({"next_page_token": last} if has_more or rows_read == scan.limit else {})


def _parse(text: str, attributes: Sequence[str], kinds: Sequence[Kind]) -> list[Condition]:
    try:
        return parse_filter(text, attributes, kinds)
    except FilterError as error:
        raise InvalidRequestError(str(error), param="filter") from None


def _scan_of(search: RunSearch, conditions: Sequence[Condition]) -> RunScan:
    token = search.page_token or None
    if token is not None and job_created_at(token) is None:
        raise InvalidRequestError(f"{token[:80]!r} is no token of a page", param="page_token")
    return RunScan(
        job_filter=_indexed(conditions),
        sweeps={one for one in search.experiment_ids if _SWEEP_ID.fullmatch(one)},
        default=DEFAULT_EXPERIMENT in search.experiment_ids,
        run_ids=next((_operands(one) for one in _equalities(conditions) if one.key == "run_id"), None),
        after=token,
        descending=_is_descending(search.order_by),
        # Without conditions, every job that is read is a run of the page, and one extra job shows whether others
        # follow.
        limit=MAX_RUNS if conditions else min(search.max_results, MAX_RUNS) + 1,
    )


def _is_descending(order_by: Sequence[str]) -> bool:
    """Return whether newer runs come first, which is MLflow's default."""
    if not order_by:
        return True
    match = _ORDER.fullmatch(order_by[0].strip())
    if match is None:
        message = f"is {order_by[0][:80]!r}; runs can only be ordered by start_time, others are for the program to sort"
        raise InvalidRequestError(message, param="order_by")
    return (match["order"] or "ASC").upper() == "DESC"


def _equalities(conditions: Sequence[Condition]) -> Iterator[Condition]:
    """Yield the conditions on attributes that one or more values meet."""
    yield from (one for one in conditions if one.kind == "attribute" and one.operator in ("=", "IN"))


def _operands(condition: Condition) -> tuple[str, ...]:
    operand = condition.operand
    return operand if isinstance(operand, tuple) else (str(operand),)


def _indexed(conditions: Sequence[Condition]) -> JobFilter:
    """Return the part of the conditions that has an index; all conditions are checked again."""
    single = {one.key: str(one.operand) for one in _equalities(conditions) if one.operator == "="}
    statuses: tuple[str, ...] = ()
    for one in _equalities(conditions):
        if one.key == "status":
            unknown = [name for name in _operands(one) if name not in STATUSES]
            if unknown:
                message = f"names the status {unknown[0][:40]!r}; possible are {', '.join(STATUSES)}"
                raise InvalidRequestError(message, param="filter")
            statuses = tuple(status for name in _operands(one) for status in STATUSES[name])
    params = {
        one.key: str(one.operand)
        for one in conditions
        if one.kind == "param" and one.operator == "=" and not one.key.startswith(SPEC_PREFIX)
    }
    return JobFilter(
        statuses=statuses, name=single.get("run_name"), created_by=single.get("user_id"), parameters=params
    )


def read_run(database: Database, run_id: str, now: datetime) -> Document:
    """Return a run. Raises NotFoundError."""
    with database.read() as session:
        job: Job = JobRepository(session, now).get(run_id)
        newest = MlflowRepository(session).newest_points([job])
    return {"run": Run.of(job).document(newest.get(job.pk, {}))}


def search_experiments(database: Database, text: str, limit: int, token: str) -> Document:
    """Return a page of experiments: the default experiment, then the sweeps, newest first.

    Raises:
        InvalidRequestError: The filter or the page token cannot be used.
    """
    conditions = _parse(text, ("name",), ())
    if token and not _SWEEP_ID.fullmatch(token):
        raise InvalidRequestError(f"{token[:80]!r} is no token of a page", param="page_token")
    with database.read() as session:
        sweeps, has_more = MlflowRepository(session).sweeps(PageRequest(limit=limit, after=token or None))
    experiments = [] if token else [default_experiment()]
    experiments += [sweep_experiment(sweep) for sweep in sweeps]
    matches = [one for one in experiments if all(condition.holds(one["name"]) for condition in conditions)]
    return {"experiments": matches} | ({"next_page_token": sweeps[-1].id} if has_more else {})


def read_experiment(database: Database, experiment_id: str) -> Document:
    """Return an experiment by id. Raises NotFoundError."""
    if experiment_id == DEFAULT_EXPERIMENT:
        return {"experiment": default_experiment()}
    with database.read() as session:
        sweep = MlflowRepository(session).sweep(experiment_id)
    if sweep is None:
        raise NotFoundError(f"there is no experiment {experiment_id[:80]!r}")
    return {"experiment": sweep_experiment(sweep)}


def find_experiment(database: Database, name: str) -> Document:
    """Return an experiment by name: of several sweeps with it, the newest. Raises NotFoundError."""
    if name == DEFAULT_NAME:
        return {"experiment": default_experiment()}
    with database.read() as session:
        sweep = MlflowRepository(session).newest_sweep(name)
    if sweep is None:
        raise NotFoundError(f"there is no experiment {name[:80]!r}")
    return {"experiment": sweep_experiment(sweep)}
