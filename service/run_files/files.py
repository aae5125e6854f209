"""Changes of run folders, and reading of their owners' data, with the rights that the job has.

A job's `uid` is the Unix account that it runs as; None: it runs as the service.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from service.as_owner.accounts import Account, AccountError, UnknownAccountError
from service.as_owner.calls import OwnerCallError, OwnerCalls
from service.as_owner.links import link_checkpoint
from service.run_files.trash import discard
from trainyard.contract.layout import RunLayout, write_atomic


@dataclass(frozen=True)
class AttemptFiles:
    """Folders and files in the order in which they are made, by paths relative to the run folder."""

    folder_mode: int
    folders: tuple[str, ...]
    files: tuple[tuple[str, int, str], ...]
    """Path, mode and content of each file."""


@dataclass(frozen=True)
class RunFiles:
    """Acts as the service, for all jobs: `TRAINYARD_RUN_AS=service`."""

    runs: Path

    def problem(self, uid: int | None) -> str | None:
        """Return why a job cannot run as the account that it has; None: it can.

        Raises:
            UnknownAccountError: the account does not exist now.
        """
        if uid is None:
            return None
        return (
            f"the job was submitted to run as the Unix account with uid {uid}, and jobs run as that of the service now "
            "(TRAINYARD_RUN_AS=service). Submit it again."
        )

    def account(self, uid: int | None) -> Account | None:
        """Return the account of a job; None: the account of the service.

        Raises:
            AccountError: the service cannot act as this account.
        """
        return None

    def write(self, uid: int | None, job_id: str, files: AttemptFiles) -> None:
        """Write the files of an attempt into the run folder, which is made if it does not exist.

        Raises:
            AccountError: the service cannot act as this account.
            OSError: not all of it was written, as far as is known.
        """
        root = self.runs / job_id
        for folder in ("", *files.folders):
            (root / folder).mkdir(mode=files.folder_mode, parents=True, exist_ok=True)
        for path, mode, content in files.files:
            write_atomic(root / path, content, mode=mode)

    def link(self, uid: int | None, job_id: str, source: Path, target: Path) -> None:
        """Link the files of a checkpoint into the run folder of a new job. A repeated call starts again.

        Args:
            source: The folder of the checkpoint.
            target: The new folder, in the run folder.

        Raises:
            FileNotFoundError: the checkpoint does not exist.
            AccountError: the service cannot act as this account.
            OSError: it cannot be linked, or is only in part.
        """
        link_checkpoint(source, target)

    def remove_links(self, uid: int | None, job_id: str) -> None:
        """Remove the links that were made for a job that was not accepted. The maintenance task removes the rest."""
        run = RunLayout(self.runs / job_id)
        shutil.rmtree(run.origins, ignore_errors=True)
        if run.root.is_dir() and not any(run.root.iterdir()):
            run.root.rmdir()

    def remove_run(self, uid: int | None, job_id: str) -> bool:
        """Remove a run folder; return whether all of it is removed. The next call continues.

        Raises:
            OSError: it cannot be removed yet.
        """
        run = self.runs / job_id
        if uid is not None and os.path.lexists(run):
            raise _other_account(uid)
        # The folder itself is in the service's folder, so that no link of an owner is on the way.
        discard(self.runs, run, job_id)
        return True

    def remove_checkpoint(self, uid: int | None, job_id: str, step: int, checkpoint_id: str) -> None:
        """Remove a checkpoint. Raises OSError: it cannot be removed yet."""
        if uid is not None:
            raise _other_account(uid)
        discard(self.runs, RunLayout(self.runs / job_id).checkpoint(step).root, checkpoint_id)

    def command(
        self, uid: int | None, command: Sequence[str], environment: Mapping[str, str], seconds: float, text: str
    ) -> str:
        """Run a command that reads data in a folder of its own, and return its output.

        Args:
            text: Its input.

        Raises:
            TimeoutError: it takes longer than `seconds`.
            AccountError: the service cannot act as this account.
            OSError: the outcome is unknown.
        """
        with TemporaryDirectory(prefix="trainyard-data-", ignore_cleanup_errors=True) as folder:
            try:
                done = subprocess.run(
                    command,
                    input=text.encode(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**environment, "TMPDIR": folder},
                    cwd=folder,
                    timeout=seconds,
                    start_new_session=True,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"it takes longer than {seconds:g} seconds") from None
        return done.stdout.decode(errors="replace")


@dataclass(frozen=True)
class OwnerRunFiles(RunFiles):
    """Acts as the owners of jobs: `TRAINYARD_RUN_AS=owner`. Jobs from before the setting are the service's."""

    owners: OwnerCalls

    def problem(self, uid: int | None) -> str | None:
        if uid is None:
            return (
                "the job was submitted to run as the Unix account of the service, and jobs run as those of their "
                "owners now (TRAINYARD_RUN_AS=owner). Submit it again."
            )
        try:
            self.owners.accounts.get(uid)
        except UnknownAccountError:
            raise
        except AccountError as error:
            return str(error)
        return None

    def account(self, uid: int | None) -> Account | None:
        return None if uid is None else self.owners.accounts.get(uid)

    def write(self, uid: int | None, job_id: str, files: AttemptFiles) -> None:
        if uid is None:
            super().write(uid, job_id, files)
            return
        with _as_file_errors():
            self.owners.write(uid, self.runs, job_id, folders=files.folders, files=files.files)

    def link(self, uid: int | None, job_id: str, source: Path, target: Path) -> None:
        if uid is None:
            super().link(uid, job_id, source, target)
            return
        checkpoint, path = source.relative_to(self.runs).as_posix(), target.relative_to(self.runs / job_id).as_posix()
        with _as_file_errors():
            self.owners.link(uid, self.runs, job_id, checkpoint, path)

    def remove_links(self, uid: int | None, job_id: str) -> None:
        if uid is None:
            super().remove_links(uid, job_id)
            return
        with suppress(AccountError, OwnerCallError):
            self.owners.remove(uid, self.runs, job_id, ["."])

    def remove_run(self, uid: int | None, job_id: str) -> bool:
        if uid is None or not os.path.lexists(self.runs / job_id) or self._is_left_to_root(uid):
            return super().remove_run(None, job_id)
        return not self._remove(uid, job_id, ".")

    def remove_checkpoint(self, uid: int | None, job_id: str, step: int, checkpoint_id: str) -> None:
        if uid is None:
            super().remove_checkpoint(uid, job_id, step, checkpoint_id)
            return
        run = RunLayout(self.runs / job_id)
        self._remove(uid, job_id, run.checkpoint(step).root.relative_to(run.root).as_posix())

    def command(
        self, uid: int | None, command: Sequence[str], environment: Mapping[str, str], seconds: float, text: str
    ) -> str:
        if uid is None:
            return super().command(uid, command, environment, seconds, text)
        with _as_file_errors():
            return self.owners.command(uid, command, environment, seconds, text=text)[1]

    def _is_left_to_root(self, uid: int) -> bool:
        """Whether nobody can act as the account any more, but the service is root."""
        if os.geteuid() != 0:
            return False
        try:
            self.owners.accounts.get(uid)
        except AccountError:
            return True
        return False

    def _remove(self, uid: int, job_id: str, path: str) -> list[str]:
        """Remove a path as the owner. The maintenance of all owners waits only briefly; the next call continues."""
        try:
            return self.owners.briefly(uid, lambda: self.owners.remove(uid, self.runs, job_id, [path]))
        except (AccountError, OwnerCallError) as error:
            raise OSError(str(error)) from None


def make_run_files(runs: Path, owners: OwnerCalls | None) -> RunFiles:
    """Return the files of runs for jobs that run as their owners; without `owners`, as the service."""
    return RunFiles(runs) if owners is None else OwnerRunFiles(runs, owners)


def _other_account(uid: int) -> OSError:
    return PermissionError(f"it belongs to uid {uid}, as whom the service acts only with TRAINYARD_RUN_AS=owner")


@contextmanager
def _as_file_errors() -> Iterator[None]:
    try:
        yield
    except OwnerCallError as error:
        raise OSError(str(error)) from None
