"""The planner: the memory, disk and start of a spec before its submission, and the strategy that `auto` selects."""

from collections.abc import Callable, Sequence

from service.api.dependencies import AppState
from service.api.plugin import PagePart, Plugin
from service.db.leader_lease import LeaderLease
from service.plugins.planner.part import NAME, PlannerPart, part_of
from service.plugins.planner.routes import ESTIMATES_PREFIX, PREFIX, router
from service.plugins.planner.start_estimates import StartEstimates
from service.scheduler.base import Scheduler


def _make_scheduler_work(app_state: AppState, scheduler: Scheduler, lease: LeaderLease) -> Sequence[Callable[[], bool]]:
    return (StartEstimates(app_state.database, lambda: app_state.clock(), scheduler, lease).run_once,)


PLANNER = Plugin(
    name=NAME,
    prefixes=(PREFIX, ESTIMATES_PREFIX),
    routers=(router,),
    make_part=PlannerPart,
    make_advisor=lambda app_state: part_of(app_state).planner,
    make_scheduler_work=_make_scheduler_work,
    templates="service.plugins.planner",
    page_parts={
        "submit.html": PagePart(
            {"title": "plan_title.html", "options": "plan_options.html", "plan": "plan.html"},
            "plan_panel.js",
            "plan.css",
        )
    },
)
