"""The page that compares runs: selected runs, or the runs of a group that a plugin has."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from service.api.dependencies import AppState, AppStateDep, NowDep
from service.api.json_body import SlotRoute
from service.api.plugin import installed, named_group
from service.checkpoints.ranking import best_criterion
from service.core.errors import NotFoundError
from service.jobs.listing import read_job
from service.media.repository import have_media
from service.metrics.x_axis import TOKENS
from service.web.dependencies import PagesDep, VisitorDep
from service.web.rendering import Pages, Visitor
from trainyard.contract.spec.spec_diff import comparable, differing_paths
from trainyard.contract.stored_name import MAX_STORED_NAME
from trainyard.contract.wire.jobs import JobResource

router = APIRouter(include_in_schema=False, route_class=SlotRoute)

MAX_NAMED_RUNS = 50
DEFAULT_METRICS = ("eval/loss", "train/loss")
_MACHINE_METRICS = ("perf/", "memory/", "comm/")
_RECENT_GROUPS = 8


@dataclass(frozen=True)
class ComparisonPage:
    """A requested comparison. Plugins render it with the runs of a group."""

    app_state: AppState
    pages: Pages
    visitor: Visitor
    now: datetime
    runs: Sequence[JobResource]
    """The runs that the address names."""
    missing: Sequence[str]
    """The ids in the address that no job has."""
    key: str | None
    """The requested metric."""

    def render(
        self,
        template: str,
        runs: Sequence[JobResource],
        ranking: str | None,
        *,
        data: Mapping[str, Any] | None = None,
        **context: Any,
    ) -> HTMLResponse:
        """Return the page for some runs.

        Args:
            ranking: The metric by which the runs are ranked.
            data: More data for the page's script.
        """
        keys = metric_keys(runs)
        shared = {
            **comparison(runs),
            "keys": keys,
            "key": choose_key(keys, self.key, ranking, "train/loss"),
            "accelerator": self.app_state.settings.known_accelerator,
        }
        return self.pages.render(
            template,
            self.visitor,
            section="/compare",
            has_runs=bool(runs),
            has_media=have_media(self.app_state.database, [run.id for run in runs]),
            missing=self.missing,
            data={**shared, **(data or {})},
            **context,
        )


@router.get("/compare")
def show_compare(
    request: Request,
    app_state: AppStateDep,
    pages: PagesDep,
    visitor: VisitorDep,
    now: NowDep,
    job: Annotated[list[str] | None, Query(max_length=MAX_NAMED_RUNS)] = None,
    key: Annotated[str | None, Query(max_length=MAX_STORED_NAME)] = None,
) -> HTMLResponse:
    """Return the page for the given runs, with the fields in which their specs differ."""
    group = named_group(request)
    runs, missing = named_runs(app_state, now, list(dict.fromkeys(job or ())))
    page = ComparisonPage(app_state, pages, visitor, now, runs, missing, key)
    if group is not None:
        groups, group_id = group
        return groups.compare(page, group_id)
    kinds = [groups for plugin in installed(request.scope) for groups in plugin.run_groups]
    recent = [] if runs else [(groups, groups.list_recent(app_state, _RECENT_GROUPS)) for groups in kinds]
    return page.render("compare.html", runs, common_metric(runs), recent=recent)


def named_runs(app_state: AppState, now: datetime, ids: list[str]) -> tuple[list[JobResource], list[str]]:
    """Return the existing jobs, and the ids of the jobs that do not exist."""
    runs, missing = [], []
    for job_id in ids:
        try:
            runs.append(read_job(app_state.database, job_id, app_state.settings.runs, now))
        except NotFoundError:
            missing.append(job_id)
    return runs, missing


def common_metric(runs: Sequence[JobResource]) -> str | None:
    """Return the metric by which all runs select their best checkpoint, if each has reported it."""
    metrics = {best_criterion((run.spec.get("checkpoint") or {}).get("keep_best")).metric for run in runs}
    return next((key for key in metrics if len(metrics) == 1 and all(key in run.metrics for run in runs)), None)


def comparison(jobs: Sequence[JobResource]) -> dict[str, Any]:
    """Return the fields and reported parameters in which the jobs differ, and each run with its values."""
    specs = [comparable(job.spec, job.parameters) for job in jobs]
    fields = differing_paths(specs)
    runs = [
        {
            "id": job.id,
            "name": job.name,
            "status": job.status,
            "tokens": TOKENS in job.metrics,
            "values": [spec.get(path) for path in fields],
            "code": job.spec.get("code"),
            "commit": job.metadata.get("git_commit"),
        }
        for job, spec in zip(jobs, specs, strict=True)
    ]
    return {"fields": fields, "runs": runs}


def metric_keys(jobs: Iterable[JobResource]) -> list[str]:
    """Return the metrics of all jobs: first the metrics of the model, then the metrics of the machine."""
    return sorted({key for job in jobs for key in job.metrics}, key=lambda key: (key.startswith(_MACHINE_METRICS), key))


def choose_key(keys: Sequence[str], *preferred: str | None) -> str:
    """Return the first preferred metric that a run has, otherwise the first metric; empty if there is none."""
    return next((key for key in (*preferred, *keys) if key is not None and key in keys), "")
