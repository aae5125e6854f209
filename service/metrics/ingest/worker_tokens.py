"""Cache of authenticated worker tokens, so that metrics requests need no database query each."""

from collections.abc import Callable
from datetime import datetime, timedelta

from starlette.concurrency import run_in_threadpool

from service.auth.principals import Principal
from service.core.errors import PermissionDeniedError

CACHE_DURATION = timedelta(seconds=10)
"""A revoked token is rejected at most this much later."""
_MAX_ENTRIES = 10_000


class WorkerTokenCache:
    """Remembers which Authorization header was authenticated for which attempt."""

    def __init__(self, authenticate: Callable[[str | None, datetime], Principal]):
        """
        Args:
            authenticate: Looks the token up in the database; raises AuthenticationError.
        """
        self._authenticate = authenticate
        self._checked_at: dict[tuple[str, str], datetime] = {}

    async def require(self, authorization: str | None, attempt_id: str, now: datetime) -> None:
        """Require the header to hold the token of this attempt's worker.

        Raises:
            AuthenticationError: The token is missing, unknown or expired.
            PermissionDeniedError: The token belongs to another attempt or to a user.
        """
        entry = (authorization or "", attempt_id)
        checked_at = self._checked_at.get(entry)
        if checked_at is not None and checked_at <= now < checked_at + CACHE_DURATION:
            return
        principal = await run_in_threadpool(self._authenticate, authorization, now)
        if principal.kind != "worker" or principal.id != attempt_id:
            raise PermissionDeniedError("this token does not belong to the worker of this attempt")
        if len(self._checked_at) >= _MAX_ENTRIES:
            self._checked_at.clear()
        self._checked_at[entry] = now
