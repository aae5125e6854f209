"""Cache of authenticated worker tokens, so that metrics requests need no database query each."""

from collections.abc import Callable
from datetime import datetime, timedelta

from starlette.concurrency import run_in_threadpool

from service.auth.principals import Principal

CACHE_DURATION = timedelta(seconds=10)
"""A revoked token is rejected at most this much later."""
_MAX_ENTRIES = 10_000


class WorkerTokenCache:
    """Remembers the workers whose `Authorization` headers were authenticated."""

    def __init__(self, authenticate: Callable[[str | None, datetime], Principal]):
        """
        Args:
            authenticate: Looks the token up in the database; raises AuthenticationError.
        """
        self._authenticate = authenticate
        self._checked: dict[str | None, tuple[Principal, datetime]] = {}

    async def authenticate(self, authorization: str | None, now: datetime) -> Principal:
        """Return the principal of the header; only workers are cached.

        Raises:
            AuthenticationError: The token is missing, unknown or expired.
        """
        principal, checked_at = self._checked.get(authorization, (None, now))
        if principal is not None and checked_at <= now < checked_at + CACHE_DURATION:
            return principal
        self._checked.pop(authorization, None)
        principal = await run_in_threadpool(self._authenticate, authorization, now)
        if principal.kind == "worker":
            if len(self._checked) >= _MAX_ENTRIES:
                self._checked.clear()
            self._checked[authorization] = (principal, now)
        return principal
