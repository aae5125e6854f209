"""Saves and loads checkpoints with torch.distributed.checkpoint in a separate process group."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from trainyard.contract.layout import CheckpointLayout
from worker.checkpoint.compatibility import match_state
from worker.checkpoint.staging import OverlappedStager, writer_share

StateDict = dict[str, Any]


class CheckpointFilesError(Exception):
    """The files of a checkpoint could not be written or read; the cause is the first rank's error."""


class CheckpointStorage:
    """Saves one checkpoint at a time. All methods are collectives but `wait` and `wait_staged`."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, *, asynchronous: bool) -> None:
        self._group = group
        self._stager = OverlappedStager(device) if asynchronous else None
        self._pending: Future[None] | None = None
        self._completer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")

    def save(self, checkpoint: CheckpointLayout, state: StateDict, complete: Callable[[], None]) -> None:
        """Write the files, and call `complete` on every rank once all ranks have written theirs.

        An asynchronous save returns before the state is copied: the caller must call `wait_staged` before it changes a
        tensor of the state. The caller must have waited for the previous save. `wait` raises any error, including a
        folder that cannot be created.
        """
        from torch.distributed.checkpoint import state_dict_saver as dcp

        if error := self._create_folder(checkpoint):
            self._pending = Future()
            self._pending.set_exception(error)
            return
        state = writer_share(state, self._group.rank(), self._group.size())
        if self._stager:
            saving = dcp.async_save(
                state, checkpoint_id=checkpoint.root, process_group=self._group, async_stager=self._stager
            )
            assert isinstance(saving, dcp.AsyncSaveResponse)
            self._pending = self._completer.submit(_after, saving.upload_completion, complete)
            return
        done: Future[None] = Future()
        self._pending = done
        try:
            dcp.save(state, checkpoint_id=checkpoint.root, process_group=self._group)
            complete()
        except (Exception, CheckpointException) as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    def _create_folder(self, checkpoint: CheckpointLayout) -> OSError | None:
        """Create the folder on all ranks; return an error on all ranks if any failed, as the save is a collective."""
        error: OSError | None = None
        try:
            checkpoint.root.mkdir(parents=True, exist_ok=True)
        except OSError as raised:
            error = raised
        failed = torch.tensor([int(error is not None)], dtype=torch.int32)
        if self._group.size() > 1:
            dist.all_reduce(failed, dist.ReduceOp.MAX, group=self._group)
        if error is None and failed.item():
            return OSError(f"the folder {checkpoint.root.name} could not be created on another rank")
        return error

    def wait_staged(self) -> None:
        """Wait until the state of the last save is copied. Not a collective."""
        if self._stager:
            self._stager.synchronize_staging()

    def wait(self) -> None:
        """Wait until the last save is complete.

        Raises:
            Exception: The save failed.
        """
        pending, self._pending = self._pending, None
        if pending:
            with _translated_errors():
                pending.result()

    def load(self, checkpoint: CheckpointLayout, state: StateDict) -> None:
        """Fill the tensors of `state` in place, after `match_state` has removed parts that the checkpoint lacks.

        Raises:
            RefusedError: The checkpoint does not fit the model.
            CheckpointFilesError: Its files cannot be read.
        """
        from torch.distributed.checkpoint import state_dict_loader as dcp

        match_state(checkpoint, state)
        with _translated_errors():
            dcp.load(state, checkpoint_id=checkpoint.root, process_group=self._group)


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Replace torch's error, which derives from BaseException and starts with a list of ranks, by its cause."""
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items(), key=lambda failure: failure[0])
        raise CheckpointFilesError(f"rank {rank}: {type(cause).__name__}: {cause}") from cause


def _after(saving: "Future[Any]", complete: Callable[[], None]) -> None:
    saving.result()
    complete()


def sync_folder(checkpoint: CheckpointLayout) -> None:
    """Flush the folder, so that the names of its files survive a power failure."""
    handle = os.open(checkpoint.root, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
