"""What the routes and the searches of sweeps share: the acceptance of members, and the slots of submissions."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from service.api.dependencies import AppState
from service.auth.principals import Principal
from service.code.service import check_code
from service.core.errors import InvalidSpecError
from service.core.thread_slots import ThreadSlots
from service.db.visibility import jobs_of
from service.jobs.quota import check_gpu_quota
from service.plugins.sweeps.acceptance import BatchAcceptance
from service.specs.acceptance import AcceptedSpec, RejectedSpec
from service.specs.data_files import pin_or_reject

NAME = "sweeps"


@dataclass(frozen=True)
class SweepPart:
    """The shared part."""

    app_state: AppState
    slots: ThreadSlots = field(default_factory=lambda: ThreadSlots(each=1, total=3))
    """Sweeps of a user are checked in turn: several at once would leave little time to the event loop."""

    def accept_members(
        self, user: Principal, documents: list[dict[str, Any]], now: datetime
    ) -> Iterator[AcceptedSpec | RejectedSpec]:
        """Yield each document as an accepted spec with the digests of its files, or with its problems."""
        state = self.app_state
        batch = BatchAcceptance(state.database, state.acceptance, state.process_pool)
        for accepted in batch.accept_all(user.name, documents, now):
            yield accepted if isinstance(accepted, RejectedSpec) else pin_or_reject(state.files, accepted)

    def check_member(self, user: Principal, accepted: AcceptedSpec) -> None:
        """Raises ServiceError: the user may not submit the spec."""
        self.app_state.secrets.require(user, accepted.spec)
        check_code(user, accepted.spec, self.app_state.settings)

    def accept_trial(self, user: Principal, document: dict[str, Any], now: datetime) -> AcceptedSpec | RejectedSpec:
        """Return the spec of a trial of a search, as if its user submitted it now.

        Raises:
            ServiceError: it cannot be checked now.
        """
        with jobs_of(user.reader(own_only=self.app_state.settings.run_as == "owner")):
            accepted = next(iter(self.accept_members(user, [document], now)))
            if isinstance(accepted, RejectedSpec):
                return accepted
            try:
                self.check_member(user, accepted)
                check_gpu_quota(self.app_state.quotas, user.role, accepted.spec)
            except InvalidSpecError as error:
                return RejectedSpec(tuple(error.problems))
        return accepted


def part_of(app_state: AppState) -> SweepPart:
    """Return the part of a service."""
    part: SweepPart = app_state.plugin_parts[NAME]
    return part
