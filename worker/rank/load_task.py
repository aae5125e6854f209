"""Loads the task of a rank and its data, and reports the accounts of the data."""

import time
from collections.abc import Callable

from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.layout import DATA_CACHE, RunLayout
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.data_accounts import DataAccount
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.progress_file import ProgressCounter
from worker.checkpoint.manager import CheckpointManager
from worker.core.distributed import Ranks
from worker.core.errors import RefusedError
from worker.data.notices import Notice
from worker.data.source_account import account_notice
from worker.data.text_examples import DataAccess
from worker.data.token_cache import TokenCache, own_cache_folder
from worker.data.uploaded import UploadNames, locate_uploads
from worker.reporting.reporter import Reporter
from worker.tasks.base import Task
from worker.tasks.select import select_task

_NOTICE_SECONDS = 2.0
"""Seconds between two messages of the first rank that it still works."""
_WORKING, _DONE = 0, 1


def load_task(
    given: TrainingSpec,
    launch: LaunchDocument,
    layout: RunLayout,
    ranks: Ranks,
    reporter: Reporter,
    checkpoints: CheckpointManager,
    progress: ProgressCounter,
) -> tuple[Task, list[Notice]]:
    """Return the task of a spec with its data loaded, and notices about the data for the user. Report data accounts.

    Raises:
        RefusedError: There is no task for the spec's model and data, or they cannot be loaded.
    """
    runs = layout.root.parent
    spec, roots = locate_uploads(given, launch.roots, runs)
    names = UploadNames.of(given, runs)

    def report_account(account: DataAccount) -> None:
        # An attempt that continues from a checkpoint of this job has reported the accounts before.
        if not checkpoints.start_step or checkpoints.is_fork:
            notice = names.notice(account_notice(account))
            reporter.event(notice.kind, notice.message, level=notice.level, data=notice.data)

    with names.in_errors():
        task = select_task(spec, _data_access(given, layout, ranks, progress, roots, report_account))
    return task, [names.notice(notice) for notice in task.notices]


def _data_access(
    spec: TrainingSpec,
    layout: RunLayout,
    ranks: Ranks,
    progress: ProgressCounter,
    roots: AllowedRoots,
    on_account: Callable[[DataAccount], None],
) -> DataAccess:
    first = FirstRank(ranks, lambda: progress.mark("starting"))
    # In the folder of all runs, a container sees this run alone.
    shared = None if spec.environment.container else own_cache_folder(layout.root.parent)
    folder = shared or layout.root / DATA_CACHE
    cache = TokenCache(folder, first.on_progress)
    if ranks.is_rank_0:
        cache.keep_used()
    return DataAccess(roots, cache, first.share, first.on_progress, on_account=on_account)


class FirstRank:
    """Computes a text on the first rank and returns it on all.

    The others mark progress only when the first rank does, so that the watchdog notices if the first rank stalls.
    """

    def __init__(self, ranks: Ranks, mark: Callable[[], None]) -> None:
        self._ranks = ranks
        self._mark = mark
        self._working = False
        self._notified = 0.0

    def on_progress(self) -> None:
        """Mark progress; called by the first rank now and then while it works."""
        self._mark()
        if self._working and self._ranks.is_rank_0 and time.monotonic() - self._notified > _NOTICE_SECONDS:
            self._ranks.from_rank_0(_WORKING)
            self._notified = time.monotonic()

    def share(self, compute: Callable[[], str]) -> str:
        """Return on every rank the result of `compute` on the first rank. A collective.

        Raises:
            RefusedError: On every rank, if `compute` raised it.
        """
        if self._ranks.world == 1:
            return compute()
        outcome: tuple[str, RefusedError | None] = ("", None)
        if self._ranks.is_rank_0:
            self._working, self._notified = True, time.monotonic()
            try:
                outcome = (compute(), None)
            except RefusedError as error:
                outcome = ("", error)
            finally:
                self._working = False
            self._ranks.from_rank_0(_DONE)
        else:
            while self._ranks.from_rank_0(_WORKING) != _DONE:
                self._mark()
        text, refusal = outcome if self._ranks.is_rank_0 else ("", None)
        shared = self._ranks.broadcast((text, None if refusal is None else (str(refusal), refusal.hint)))
        if refusal is not None:
            raise refusal
        if shared[1] is not None:
            raise RefusedError(*shared[1])
        return str(shared[0])
