"""Removal of run directories and checkpoints, as the account that owns them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.as_owner.accounts import AccountError
from service.as_owner.calls import OwnerCallError, OwnerCalls
from service.maintenance import disk
from trainyard.contract.layout import RunLayout


@dataclass(frozen=True)
class RunRemoval:
    """Removes the files of jobs, whose uid is None if they ran as the service."""

    runs: Path
    owners: OwnerCalls | None
    """Set where jobs run as their owners."""

    def remove_run(self, job_id: str, uid: int | None) -> bool:
        """Remove a run directory; return whether all of it is removed. The next call continues.

        Raises:
            OSError: it cannot be removed yet.
        """
        run = self.runs / job_id
        if uid is not None and os.path.lexists(run) and not self._is_left_to_root(uid):
            with _as_file_errors():
                return not self._remove(uid, job_id, ".")
        # The folder itself is in the service's folder, so that no link of an owner is on the way.
        disk.discard(self.runs, run, job_id)
        return True

    def remove_checkpoint(self, job_id: str, uid: int | None, step: int, checkpoint_id: str) -> None:
        """Remove a checkpoint.

        Raises:
            OSError: it cannot be removed yet.
        """
        run = RunLayout(self.runs / job_id)
        folder = run.checkpoint(step).root
        if uid is None:
            disk.discard(self.runs, folder, checkpoint_id)
            return
        with _as_file_errors():
            self._remove(uid, job_id, folder.relative_to(run.root).as_posix())

    def _is_left_to_root(self, uid: int) -> bool:
        """Whether nobody can act as the account any more, but the service is root."""
        if os.geteuid() != 0 or self.owners is None:
            return False
        try:
            self.owners.accounts.get(uid)
        except AccountError:
            return True
        return False

    def _remove(self, uid: int, job_id: str, path: str) -> list[str]:
        """Remove a path as the owner. The maintenance of all owners waits only briefly; the next call continues."""
        calls = self._calls(uid)
        return calls.briefly(uid, lambda: calls.remove(uid, self.runs, job_id, [path]))

    def _calls(self, uid: int) -> OwnerCalls:
        if self.owners is None:
            raise PermissionError(f"it belongs to uid {uid}, as whom the service acts only with TRAINYARD_RUN_AS=owner")
        return self.owners


@contextmanager
def _as_file_errors() -> Iterator[None]:
    try:
        yield
    except (AccountError, OwnerCallError) as error:
        raise OSError(str(error)) from None
