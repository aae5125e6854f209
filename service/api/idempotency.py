"""The header `Idempotency-Key` on routes whose response contains a secret and is therefore never stored."""

from typing import Annotated

from fastapi import Header

from service.core.errors import InvalidRequestError

UnsupportedKey = Annotated[
    str | None, Header(alias="Idempotency-Key", description="Not supported: the response contains a secret.")
]


def reject_key(key: str | None) -> None:
    """Raises InvalidRequestError: the caller expects a response that can be replayed."""
    if key is not None:
        raise InvalidRequestError(
            "is not supported by this route: its response contains a secret, which is not stored",
            param="Idempotency-Key",
            code="not_replayable",
        )
