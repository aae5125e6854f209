"""Sweeps: several variants of a spec, or searches for the best values. Their members are ordinary jobs."""

from collections.abc import Callable, Sequence

from service.api.dependencies import AppState
from service.api.plugin import PagePart, Plugin, RunGroups, Shortcut
from service.core.periodic_task import PeriodicTask
from service.core.process_pool import ProcessPool
from service.db.leader_lease import LeaderLease
from service.plugins.sweeps.pages import BY_SWEEP, PARAMETER, compare_members, recent_sweeps
from service.plugins.sweeps.part import NAME, SweepPart, part_of
from service.plugins.sweeps.routes import PREFIX, router
from service.plugins.sweeps.search import searcher
from service.plugins.sweeps.search.searcher import SweepSearcher

_PROPOSAL_SECONDS = 60.0
"""Time limit of a proposal of a search."""


def make_searcher(app_state: AppState, lease: LeaderLease, on_change: Callable[[], None]) -> SweepSearcher:
    """Build the task that proposes, continues and stops the trials of searches."""
    return SweepSearcher(
        database=app_state.database,
        lease=lease,
        clock=app_state.clock,
        accept=part_of(app_state).accept_trial,
        # No request waits for a proposal. The pool's process ends with this process, whose end closes its pipe.
        run_in_process=ProcessPool(size=1, seconds=_PROPOSAL_SECONDS).run,
        quotas=app_state.quotas,
        run_as=app_state.settings.run_as,
        failpoint=lambda label: app_state.failpoint(label),
        on_change=on_change,
    )


def _make_tasks(app_state: AppState, lease: LeaderLease) -> Sequence[PeriodicTask]:
    notify_reconciler = app_state.notify_reconciler
    searching = PeriodicTask(NAME, make_searcher(app_state, lease, notify_reconciler).run_once, searcher.SECONDS)

    def notify() -> None:
        notify_reconciler()
        searching.notify()

    app_state.notify_reconciler = notify
    return (searching,)


SWEEPS = Plugin(
    name=NAME,
    prefixes=(PREFIX,),
    project_paths=(PREFIX,),
    routers=(router,),
    make_part=SweepPart,
    make_tasks=_make_tasks,
    templates="service.plugins.sweeps",
    resource_pages={"sweep": f"/compare?{PARAMETER}={{id}}"},
    shortcuts=(Shortcut("s", BY_SWEEP, "Go to the jobs of sweeps, by sweep"),),
    page_parts={
        "submit.html": PagePart({"editor": "sweep_form.html"}, "sweep_form.js", "sweep_form.css"),
        "jobs.html": PagePart({"actions": "sweeps_link.html", "filters": "sweep_filter.html"}, "sweep_members.js"),
    },
    run_groups=(RunGroups(PARAMETER, "Sweeps", compare_members, recent_sweeps),),
)
