"""The header `Idempotency-Key`, also on routes whose response contains a secret and is therefore never stored."""

from typing import Annotated, Any

from fastapi import Header

from service.api.openapi import described_headers
from service.core.errors import InvalidRequestError

IdempotencyKey = Annotated[
    str | None, Header(description="Repeating a request with the same key and body returns the first response.")
]

REPLAYED: dict[int | str, dict[str, Any]] = {
    201: {
        "headers": described_headers(
            {"Idempotent-Replayed": "`true`: the stored response of an earlier request with this key."}
        )
    }
}
"""OpenAPI responses of a route that takes the key."""

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
