"""Whose batch is it: a worker's token, looked up once in a while instead of with each of its batches."""

from collections.abc import Callable
from datetime import datetime, timedelta

from starlette.concurrency import run_in_threadpool

from service.auth.principals import Principal
from service.core.errors import PermissionDeniedError

TRUSTED_FOR = timedelta(seconds=10)
"""A token that ends is refused this much later at most."""
_REMEMBERED = 10_000


class Admission:
    """Remembers which header opened which attempt."""

    def __init__(self, authenticate: Callable[[str | None, datetime], Principal]):
        """`authenticate` may ask the database; it raises AuthenticationError."""
        self._authenticate = authenticate
        self._seen: dict[tuple[str, str], datetime] = {}

    def remembers(self, authorization: str, attempt_id: str, now: datetime) -> bool:
        """Whether it was good a moment ago."""
        seen = self._seen.get((authorization, attempt_id))
        return seen is not None and seen <= now < seen + TRUSTED_FOR

    async def check(self, authorization: str | None, attempt_id: str, now: datetime) -> None:
        """Raises AuthenticationError, or PermissionDeniedError when the token is another attempt's."""
        if self.remembers(authorization or "", attempt_id, now):
            return
        principal = await run_in_threadpool(self._authenticate, authorization, now)
        if principal.kind != "worker" or principal.id != attempt_id:
            raise PermissionDeniedError("this token is not the one of this attempt's worker")
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        self._seen[(authorization or "", attempt_id)] = now
