"""Data accounts of specs. A separate process of the worker's interpreter reads the data. It has the rights that the job
would have, and limits on time and memory."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from service.as_owner.accounts import AccountError
from service.core.errors import InvalidRequestError, TooManyRequestsError
from service.core.settings import Settings
from service.core.thread_slots import SlotsTakenError, ThreadSlots
from service.run_files.files import RunFiles
from service.scheduler.launch_document import source_tree
from service.scheduler.launch_plan import inherited_environment
from trainyard.contract.spec.text_data import TextData
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec
from trainyard.contract.wire.data_accounts import DataAccounts, DataRequest, DataUpdate

MAX_SECONDS = 30.0
"""Maximum time to read the data of one request. Clients and proxies wait longer than this for a response."""
_START_AND_END_SECONDS = 60.0
"""Additional time for the process to start, and to finish the record that it is reading at the limit."""
_MEMORY_BYTES = 4 * 2**30
_AT_ONCE = 2
_HERE = "on a machine with the files and `pip install 'trainyard[worker,hf,data]'`, run `trainyard plan --data` there"


@dataclass
class DataPlanner:
    """Makes the data accounts of specs, for at most one request of each user at a time."""

    settings: Settings
    run_files: RunFiles
    slots: ThreadSlots = field(
        default_factory=lambda: ThreadSlots(
            each=1, total=_AT_ONCE, seconds=MAX_SECONDS + _START_AND_END_SECONDS, wait_seconds=2.0
        )
    )

    async def accounts(
        self, owner: str, uid: int | None, spec: TrainingSpec, records: int, seconds: float
    ) -> DataAccounts:
        """Return the data accounts of the sources of an accepted spec. Some data, such as images, has no account.

        Args:
            owner: The user who requests them.
            uid: The Unix account as which a job of the user runs; None: the service's account.
            records: Maximum number of records per source.
            seconds: How long to read, at most `MAX_SECONDS`.

        Raises:
            InvalidRequestError: The data cannot be read here, or not in time.
            TooManyRequestsError: Other requests are being processed.
        """
        if not isinstance(spec.data, TextData) or spec.task_kind.has_own_code:
            return DataAccounts()
        settings = self.settings
        request = DataRequest(
            spec=dump_spec(spec),
            records=records,
            seconds=min(seconds, MAX_SECONDS),
            roots=settings.site.allowed_roots,
            runs=str(settings.runs),
            memory_bytes=_MEMORY_BYTES,
        )
        try:
            return await self.slots.run(owner, self._read, uid, request)
        except SlotsTakenError as error:
            whose = "another request of yours reads data" if error.is_own else "other users' data is being read"
            raise TooManyRequestsError(f"{whose}; try again in a few seconds") from None

    def _read(self, uid: int | None, request: DataRequest) -> DataAccounts:
        command = [self.settings.python, "-P", "-m", "worker.rank.data_plan"]
        limit = request.seconds + _START_AND_END_SECONDS
        text = request.model_dump_json()
        try:
            output = self.run_files.command(uid, command, self._environment(uid), limit, text)
        except TimeoutError:
            raise _failed(f"the data was not read within {limit:g} seconds") from None
        except (OSError, AccountError) as error:
            raise _failed(str(error)) from None
        return _result(output)

    def _environment(self, uid: int | None) -> Mapping[str, str]:
        account = self.run_files.account(uid)
        inherited = inherited_environment(os.environ, listed=self.settings.job_environment, account=account)
        path = ":".join(map(str, source_tree()))
        # Reading data needs no GPU, and loading the libraries of one would exceed the memory limit.
        own = {"PYTHONPATH": path} if path else {}
        return {
            **inherited,
            **own,
            "PYTHONSAFEPATH": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "TOKENIZERS_PARALLELISM": "false",
        }


def _result(output: str) -> DataAccounts:
    """Return the result from the last line of the output. The process runs as the owner, who could forge the result,
    but nobody else reads it."""
    lines = output.strip().splitlines()
    try:
        update = DataUpdate.model_validate(json.loads(lines[-1])) if lines else DataUpdate()
    except (ValueError, ValidationError, RecursionError):
        update = DataUpdate()
    if update.result is not None:
        return update.result
    failure = update.failure or "the process ended without a result; it may have needed too much memory"
    raise _failed(failure, update.hint)


def _failed(problem: str, hint: str | None = None) -> InvalidRequestError:
    return InvalidRequestError(f"{problem}. {hint or f'Read fewer records, or {_HERE}.'}", code="data_not_read")
