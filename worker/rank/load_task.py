"""Loads the task of a rank and its data, and reports the accounts of the data."""

from collections.abc import Callable

from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.layout import DATA_CACHE, RunLayout
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.data_accounts import DataAccount
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.progress_file import ProgressCounter
from worker.checkpoint.manager import CheckpointManager
from worker.core.distributed import Ranks
from worker.core.first_rank import FirstRank
from worker.data.notices import Notice
from worker.data.source_account import account_notice
from worker.data.text_examples import DataAccess
from worker.data.token_cache import TokenCache, own_cache_folder
from worker.data.uploaded import UploadNames, locate_uploads
from worker.reporting.reporter import Reporter
from worker.tasks.base import Task
from worker.tasks.select import select_task


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
    if ranks.is_first:
        cache.keep_used()
    return DataAccess(roots, cache, first.share, first.on_progress, on_account=on_account)
