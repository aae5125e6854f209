"""Removal of run directories and checkpoints, as the account that owns them."""

import os
from dataclasses import dataclass
from pathlib import Path

from service.as_owner.accounts import AccountError
from service.as_owner.calls import OwnerCallError, OwnerCalls
from service.maintenance import disk
from trainyard.contract.layout import RunLayout


@dataclass(frozen=True)
class RunRemoval:
    """Removes what belongs to jobs, whose uid is None if they ran as the service."""

    runs: Path
    owner_calls: OwnerCalls

    def remove_run(self, job_id: str, uid: int | None) -> bool:
        """Remove a run directory; return whether all of it is removed. The next call continues.

        Raises:
            OSError: it cannot be removed yet.
        """
        if uid is None:
            disk.discard(self.runs, self.runs / job_id, job_id)
            return True
        if not os.path.lexists(self.runs / job_id):
            return True
        try:
            return not self.owner_calls.remove(uid, self.runs, job_id, ["."])
        except AccountError as error:
            if os.geteuid() != 0:
                raise OSError(f"{error} Remove {self.runs / job_id} as root.") from None
            # The folder itself is in the service's folder, so that no link of the owner is on the way.
            disk.discard(self.runs, self.runs / job_id, job_id)
            return True
        except OwnerCallError as error:
            raise OSError(str(error)) from None

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
        try:
            self.owner_calls.remove(uid, self.runs, job_id, [folder.relative_to(run.root).as_posix()])
        except (AccountError, OwnerCallError) as error:
            raise OSError(str(error)) from None
